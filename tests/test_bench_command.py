"""`kernelzero bench` as a user meets it: real verdicts, endpoints, one clear line for what cannot be used."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from kernelzero import cli
from kernelzero.bench.metered import MeteredEndpoint, ProgressLine, clock
from kernelzero.bench.session import cost
from kernelzero.records import Prompt, Sampling
from tests.bench_folder import RIGHT, kernel, make_kernelbench


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    return make_kernelbench(folder)


def kernelzero(monkeypatch, capfd, *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    monkeypatch.setattr("sys.argv", ["kernelzero", *map(str, arguments)])
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capfd.readouterr()
    return int(end.value.code or 0), shown.out, shown.err


def samples(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_samples_from_elsewhere_end_to_end(monkeypatch, capfd, tmp_path: Path, checkout: Path):
    """Real verdicts: right kernels, one that only the wide tolerance takes, weak tasks, and one that cannot run."""
    rows = [{"task": name, "sample_id": 0, "code": code} for name, code in RIGHT.items()]
    rows += [
        {"level": 1, "problem_id": 1, "sample_id": 1, "text": f"```python\n{kernel('x * 2 + 1.004')}```", "tokens": 9},
        {"task": "1_Shifted_ReLU", "sample_id": 1, "text": "I cannot."},
        {"task": "3_Constant", "sample_id": 0, "code": kernel("x * 0")},
        {"task": "10_Broken_matmul", "sample_id": 0, "code": kernel("x")},
    ]
    path, run = samples(tmp_path / "s.jsonl", *rows), tmp_path / "run"
    command = ("bench", "--tasks", checkout, "--samples", path, "--profile", "both", "--out", run)
    code, out, err = kernelzero(monkeypatch, capfd, *command)
    assert code == 0, err
    found = json.loads(out)
    one, two = found["groups"]["level 1"], found["groups"]["level 2"]
    assert one["failures"] == {"missing": 2, "rejected": 1, "task_refused": 2}
    assert two["failures"] == {"no_code": 1}
    assert one["pass"]["pass@1"]["value"] == pytest.approx((1 + 0.5 + 0 + 0) / 4)
    # 1.004 for 1 is within 1e-2 and not within 1e-4; nothing is degenerate by KernelBench's own rules.
    assert one["pass_kernelbench"]["pass@1"]["value"] == pytest.approx((0.5 + 0.5 + 0.5 + 0) / 4)
    assert [row["gate"] for row in found["weak_tasks"]] == ["degenerate", "runs"]
    assert found["scale_aware"] == ["level1/2_Nearly_nothing_"]
    assert found["refused_tasks"] == ["level1/10_Broken_matmul"]
    assert one["sound"]["tasks"] == 2 and one["tokens"] is None
    assert "zeros passes as an answer" in err
    assert {p.name for p in (run / "bench").glob("*.jsonl")} == {
        "bench.jsonl", "bench.samples.jsonl", "bench.tasks.jsonl", "bench.kernelbench.jsonl",
    }  # fmt: skip
    before = (run / "bench" / "bench.jsonl").read_bytes()
    assert kernelzero(monkeypatch, capfd, *command)[:2] == (0, out), "the same command again changes nothing"
    assert (run / "bench" / "bench.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tasks", "no-such-folder"), "no such folder of tasks"),
        (("--tasks", "{checkout}", "--level", "1,7"), "no tasks of level 7"),
        (("--tasks", "{checkout}", "--level", "one"), "numbers separated by commas"),
        (("--level", "1"), "built-in tasks have no levels"),
        (("--tasks", "{broken}"), "does not define get_inputs"),
        (("--model", "./no-such-model"), "no-such-model"),
        (("--model", "http://127.0.0.1:9/v1"), "say which model"),
        (("--samples", "none.jsonl"), "no such samples"),
        (("--profile", "loose"), "--profile 'loose'"),
        (("--baseline", "torch.compile"), "--baseline: eager"),
        (("--baseline", "eager,torch.compile"), "on a GPU only"),
        (("--device", "tpu", "--model", "reference"), "cpu, cuda or cuda:N"),
        (("--model", "reference", "--policy", "none"), "policy 'none'"),
        (("compare", "no-such-run"), "no such run folder"),
        (("compare", "{checkout}"), "holds no benchmark"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    monkeypatch, capfd, tmp_path: Path, checkout: Path, arguments: tuple[str, ...], message: str
):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "1_x.py").write_text("class Model: pass\ndef get_init_inputs(): return []\n")
    filled = [a.format(checkout=checkout, broken=broken) for a in arguments]
    out = [] if "compare" in filled else ["--out", str(tmp_path / "run")]
    code, _, err = kernelzero(monkeypatch, capfd, "bench", *filled, *out)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1, err


def test_a_run_of_another_configuration_is_refused(monkeypatch, capfd, tmp_path: Path, checkout: Path):
    monkeypatch.setattr("kernelzero.bench.session._keck", lambda *_, **__: NoKeck())
    path = samples(tmp_path / "s.jsonl", {"task": "3_Constant", "text": "nothing"})
    common = ("bench", "--tasks", checkout, "--level", "1", "--out", tmp_path / "run")
    assert kernelzero(monkeypatch, capfd, *common, "--samples", path)[0] == 0
    for change in (("--samples", path, "--policy", "hybrid"), ("--samples", path, "--backend", "cuda"),
                   ("--model", "reference")):  # fmt: skip
        code, _, err = kernelzero(monkeypatch, capfd, *common, *change)
        assert code == 2 and "was begun with" in err, err
    samples(path, {"task": "3_Constant", "text": "something else"})
    code, _, err = kernelzero(monkeypatch, capfd, *common, "--samples", path)
    assert code == 2 and "is not what" in err


# --- endpoints -------------------------------------------------------------------------------------------------------


class Endpoint(BaseHTTPRequestHandler):
    """Answers every chat with as many choices as asked for; the first request of all is refused as too many."""

    seen: ClassVar[list[dict]] = []
    lock = threading.Lock()

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            self.seen.append(request)
            first = len(self.seen) == 1
        n = request.get("n", 1)
        choice = {"message": {"role": "assistant", "content": "I cannot."}, "finish_reason": "stop"}
        choices = [{**choice, "index": i} for i in range(n)]
        usage = {"prompt_tokens": 100, "completion_tokens": 5 * n, "total_tokens": 100 + 5 * n}
        answer = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": choices,
            "usage": usage,
        }
        self.send_response(429 if first else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("retry-after-ms", "10")
        self.end_headers()
        self.wfile.write(json.dumps({"error": "busy"} if first else answer).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint():
    Endpoint.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def test_an_endpoint_with_tokens_and_cost(monkeypatch, capfd, tmp_path: Path, checkout: Path, endpoint: str):
    monkeypatch.setattr("kernelzero.bench.session._keck", lambda *_, **__: NoKeck())
    run = tmp_path / "run"
    common = ("bench", "--model", f"{endpoint}#m", "--tasks", checkout, "--out", run, "--price-in", 1, "--price-out", 2)
    code, out, err = kernelzero(monkeypatch, capfd, *common, "-n", 2)
    assert code == 0, err
    found = json.loads(out)
    assert found["failures"] == {"no_code": 10} and len(Endpoint.seen) == 6
    assert found["usage"] == {
        "requests": 5,
        "prompt_tokens": 500,
        "completion_tokens": 50,
        "cost": pytest.approx(0.0006),
    }
    assert found["all"]["tokens"]["value"] == 5 and "10 samples" not in err
    code, out, _ = kernelzero(monkeypatch, capfd, *common, "-n", 3)
    assert code == 0 and json.loads(out)["usage"]["requests"] == 10, "only the missing samples were asked for"
    assert json.loads(out)["samples"] == 15


class NoKeck:
    """Nothing has to be judged."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def judge(self, jobs, *, timed=True):
        raise AssertionError("nothing to judge")

    def examine(self, jobs):
        return iter(())


def test_an_endpoint_that_refuses_is_one_line(monkeypatch, capfd, tmp_path: Path, checkout: Path):
    monkeypatch.setattr("kernelzero.bench.session._keck", lambda *_, **__: NoKeck())
    monkeypatch.setattr("openai._constants.INITIAL_RETRY_DELAY", 0.01, raising=False)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01, raising=False)
    arguments = ("bench", "--model", "http://127.0.0.1:9/v1#m", "--tasks", checkout, "--out", tmp_path / "run")
    code, _, err = kernelzero(monkeypatch, capfd, *arguments)
    assert code == 2 and "gives no answer" in err and len(err.strip().splitlines()) == 1, err


def test_usage_is_written_as_it_comes(tmp_path: Path, endpoint: str):
    sampler = MeteredEndpoint(endpoint, "m", tmp_path / "usage.jsonl")
    prompt = Prompt(({"role": "user", "content": "x"},))
    [answers] = sampler.sample([prompt], 3, Sampling())
    sampler.close()
    [row] = [json.loads(line) for line in (tmp_path / "usage.jsonl").read_text().splitlines()]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (100, 15) and len(answers) == 3


def test_cost_and_clock():
    assert cost({"prompt_tokens": 2_000_000, "completion_tokens": 500_000}, (1.0, 4.0)) == pytest.approx(4.0)
    assert [clock(s) for s in (7.4, 200, 7500)] == ["7 s", "3:20 min", "2:05 h"]


def test_progress_says_what_is_left():
    said: list[str] = []
    line = ProgressLine(said.append, every_s=0)
    for done in (1, 5, 10):
        line("judge", done, 10)
    assert said[0] == "judge 1/10" and said[1].endswith(" left") and said[-1] == "judge 10/10"
