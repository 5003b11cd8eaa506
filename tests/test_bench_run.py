"""A benchmark pass with a fake sampler and a fake judge: complete, resumable, extendable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelzero.bench import builtin_tasks
from kernelzero.bench.run import How, run_bench
from kernelzero.errors import UsageError
from kernelzero.records import Backend, Basis, Completion, Finish, Prompt, Sampling, Status, Timing, Verdict

TASKS = builtin_tasks()[:6]
CODE = "```python\nimport torch\nclass ModelNew(torch.nn.Module):\n    pass  # {}\n```"


class FakeSampler:
    """Answers with code that differs from draw to draw; the task is named in the prompt."""

    name, style = "fake", "compact"

    def __init__(self, text: str = CODE) -> None:
        self.text, self.seeds, self.drawn = text, [], 0

    def sample(self, prompts, n, sampling, progress=None):
        self.seeds.append(sampling.seed)
        self.drawn += len(prompts) * n
        if progress:
            progress(len(prompts) * n, len(prompts) * n)
        answers = [Completion(self.text.format(f"{sampling.seed}/{i}"), 7, Finish.STOP) for i in range(n)]
        return [answers for _ in prompts]

    def close(self):
        pass


class FakeKeck:
    """Correct for every second job, last job first; may die after some verdicts or fail as infrastructure."""

    def __init__(self, dies_after: int | None = None, infra: bool = False, forgets: int = 0) -> None:
        self.judged, self.dies_after, self.infra, self.forgets = 0, dies_after, infra, forgets

    def judge(self, jobs, *, timed=True):
        for index in reversed(range(self.forgets, len(jobs))):
            if self.dies_after is not None and self.judged >= self.dies_after:
                raise KeyboardInterrupt
            self.judged += 1
            yield index, self.verdict(index)

    def verdict(self, index):
        if self.infra:
            return Verdict(Status.INFRA_ERROR, "no worker", "cpu")
        if index % 2:
            return Verdict(Status.INCORRECT, "wrong", "cpu")
        return Verdict(Status.CORRECT, "ok", "cpu", timing=Timing(Basis.MODELLED, 3.0, 2.0, 1.5, 1.5, 1.5))


def bench(folder: Path, sampler=None, keck=None, **changes):
    settings = dict(n=2, backend=Backend.TRITON, sampling=Sampling(seed=1), label="before", chunk_tasks=4)
    return run_bench(
        TASKS,
        sampler or FakeSampler(),
        keck or FakeKeck(),
        run_folder=folder,
        make_prompt=lambda task: Prompt(({"role": "user", "content": task.source},)),
        **{**settings, **changes},
    )


def rows(folder: Path, name: str = "before.jsonl"):
    return [json.loads(line) for line in (folder / "bench" / name).read_text().splitlines()]


def test_a_whole_pass(tmp_path: Path):
    seen = []
    summary = bench(tmp_path, progress=lambda *now: seen.append(now))
    assert summary["pass_at_k"]["pass@1"]["value"] == 0.5 and summary["speedup"]["value"] == pytest.approx(1.5)
    assert len(rows(tmp_path)) == 12 and len({row["key"] for row in rows(tmp_path)}) == 12
    assert {row["task"] for row in rows(tmp_path)} == {task.name for task in TASKS}
    assert seen[-1] == ("judge", 12, 12) and ("sample", 8, 12) in seen


def test_done_is_done(tmp_path: Path):
    first = bench(tmp_path)
    sampler, keck = FakeSampler(), FakeKeck()
    assert bench(tmp_path, sampler, keck) == first and sampler.drawn == 0 and keck.judged == 0


@pytest.mark.parametrize("dies_after", [0, 1, 7, 9, 11])
def test_a_killed_pass_goes_on(tmp_path: Path, dies_after: int):
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, keck=FakeKeck(dies_after))
    with (tmp_path / "bench" / "before.jsonl").open("a") as file:
        file.write('{"key": "torn')
    sampler, keck = FakeSampler(), FakeKeck()
    bench(tmp_path, sampler, keck)
    assert keck.judged == 12 - dies_after
    assert len(rows(tmp_path)) == len({row["key"] for row in rows(tmp_path)}) == 12


def test_more_samples_can_be_added(tmp_path: Path):
    bench(tmp_path)
    sampler = FakeSampler()
    summary = bench(tmp_path, sampler, n=5)
    assert sampler.drawn == 18 and summary["n"] == 5 and len(rows(tmp_path)) == 30
    texts = {(row["task_id"], row["completion"]["text"]) for row in rows(tmp_path)}
    assert len(texts) == 30, "added samples repeat earlier ones"
    assert bench(tmp_path, n=2)["samples"] == 12


def test_infrastructure_errors_are_judged_again(tmp_path: Path):
    assert "12 infrastructure errors" in bench(tmp_path, keck=FakeKeck(infra=True))["unavailable"]
    summary = bench(tmp_path)
    assert summary["unavailable"] is None and summary["samples"] == 12
    assert len(rows(tmp_path)) == len({row["key"] for row in rows(tmp_path)}) == 24


def test_a_forgotten_job_is_nobodys_failure(tmp_path: Path):
    one_call = How(overlap=False)
    assert "1 infrastructure errors" in bench(tmp_path, keck=FakeKeck(forgets=1), how=one_call)["unavailable"]
    assert bench(tmp_path)["unavailable"] is None


def test_answers_without_code_fail(tmp_path: Path):
    keck = FakeKeck()
    summary = bench(tmp_path, FakeSampler("I cannot."), keck)
    assert keck.judged == 0 and summary["failures"] == {"no_code": 12}
    assert summary["pass_at_k"]["pass@1"]["value"] == 0


def test_other_settings_are_refused(tmp_path: Path):
    bench(tmp_path)
    with pytest.raises(UsageError, match="begun with sampling"):
        bench(tmp_path, sampling=Sampling(seed=2))
    with pytest.raises(UsageError, match="at least one sample"):
        bench(tmp_path, n=0)
