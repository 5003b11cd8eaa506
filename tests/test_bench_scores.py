"""Scores rebuilt from a run folder, second verdicts, weak tasks, comparisons and their plots."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernelzero.bench import load_tasks
from kernelzero.bench.again import KERNELBENCH, TORCH_COMPILE, judge_again
from kernelzero.bench.compare import comparison, markdown, read_runs, write_comparison
from kernelzero.bench.files import PassFiles
from kernelzero.bench.plots import bars
from kernelzero.bench.published import PUBLISHED, published_for
from kernelzero.bench.run import How, run_bench
from kernelzero.bench.scores import fast_table, full_summary, read_pass
from kernelzero.bench.tables import markdown as tables
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.records import (
    Backend,
    Basis,
    Completion,
    Finish,
    GateReport,
    Prompt,
    Sampling,
    Status,
    Timing,
    Verdict,
)
from tests.bench_folder import make_kernelbench

SAMPLING = Sampling(seed=1)


class Answers:
    """A sampler whose sample i of every task says "sample i"."""

    name, style = "answers", "compact"

    def sample(self, prompts, n, sampling, progress=None):
        code = "```python\nclass ModelNew:\n    number = {}\n```"
        return [[Completion(code.format(i), 10 + i, Finish.STOP) for i in range(n)] for _ in prompts]

    def close(self):
        pass


class Scripted:
    """A Keck with a table: (last part of the task's name, number of the sample) → status and speedup."""

    def __init__(self, table, reports=None):
        self.table, self.reports, self.asked = table, reports or {}, 0

    def judge(self, jobs, *, timed=True):
        for i, (task, candidate) in enumerate(jobs):
            self.asked += 1
            number = int(candidate.source.split("number = ")[1])
            status, speedup = self.table.get((task.name, number), (Status.CORRECT, 2.0))
            timing = Timing(Basis.MEASURED, speedup, 1.0, speedup, speedup, speedup)
            right = status is Status.CORRECT and timed
            yield i, Verdict(status, "told so", "stub", timing=timing if right else None, timed=timed)

    def examine(self, jobs):
        for i, (task, _) in enumerate(jobs):
            gate = self.reports.get(task.name, "")
            valid = None if gate == "infrastructure" else not gate
            yield i, GateReport(valid, gate, "told so")


AFFINE, SMALL, CONSTANT, BROKEN, SHIFTED = (
    "level1/1_Affine_map",
    "level1/2_Nearly_nothing_",
    "level1/3_Constant",
    "level1/10_Broken_matmul",
    "level2/1_Shifted_ReLU",
)
WRONG = (Status.INCORRECT, 1.0)
TABLE = {
    (AFFINE, 0): WRONG,
    (AFFINE, 1): (Status.CORRECT, 0.8),
    (SHIFTED, 0): (Status.COMPILE_ERROR, 1.0),
    **{(BROKEN, i): (Status.INFRA_ERROR, 1.0) for i in range(2)},
}
REPORTS = {CONSTANT: "degenerate", BROKEN: "runs"}


@pytest.fixture
def tasks(tmp_path: Path):
    return load_tasks(make_kernelbench(tmp_path))


def run(folder: Path, tasks, keck, n: int = 2, sampler=None, **changes):
    settings = dict(n=n, backend=Backend.TRITON, sampling=SAMPLING, examiner=keck, run_folder=folder)
    prompt = Prompt(({"role": "user", "content": "x"},))
    return run_bench(tasks, sampler or Answers(), keck, make_prompt=lambda _: prompt, **{**settings, **changes})


def summary(folder: Path):
    return full_summary(read_pass(folder / "bench", "bench"))


def test_levels_weak_tasks_and_refused_ones(tmp_path: Path, tasks):
    keck = Scripted(TABLE, REPORTS)
    run(tmp_path / "r", tasks, keck)
    found = summary(tmp_path / "r")
    one = found["groups"]["level 1"]
    assert one["unavailable"] is None and one["failures"] == {"incorrect": 1, "task_refused": 2}
    assert one["pass"]["pass@1"]["value"] == pytest.approx((0.5 + 1 + 1 + 0) / 4)
    assert one["sound"]["tasks"] == 2 and one["sound"]["pass"]["pass@1"]["value"] == pytest.approx(0.75)
    assert found["refused_tasks"] == [BROKEN] and [r["task"] for r in found["weak_tasks"]] == [CONSTANT, BROKEN]
    assert one["fast"]["eager"]["1"]["fast@1"]["value"] == pytest.approx((0 + 1 + 1 + 0) / 4)
    assert one["fast"]["eager"]["0.5"]["fast@2"]["value"] == pytest.approx(0.75)
    assert found["all"]["failures_by_task"][SHIFTED] == {"compile_error": 1}
    asked = keck.asked
    run(tmp_path / "r", tasks, keck)
    assert keck.asked == asked, "a task that cannot be judged is not asked about for ever"
    text = tables(found)
    assert "task_refused" in text and "3_Constant: degenerate" in text and "sound tasks" in text


def test_infrastructure_errors_stop_the_number_of_their_level_only(tmp_path: Path, tasks):
    keck = Scripted({(AFFINE, 0): (Status.INFRA_ERROR, 1.0)}, {AFFINE: "infrastructure"})
    run(tmp_path / "r", tasks, keck)
    found = summary(tmp_path / "r")
    assert found["groups"]["level 1"]["pass"] is None and found["groups"]["level 2"]["pass"]
    assert "kernelzero bench -n 2" in tables(found, "kernelzero bench -n 2")
    run(tmp_path / "r", tasks, Scripted({}))
    assert summary(tmp_path / "r")["groups"]["level 1"]["pass"]["pass@1"]["value"] == 1


def test_both_tolerances_from_one_run(tmp_path: Path, tasks):
    run(tmp_path / "r", tasks, Scripted({**TABLE, (SMALL, 1): (Status.REJECTED, 1.0)}, REPORTS))
    files = PassFiles(tmp_path / "r" / "bench", "bench", 2, Backend.TRITON, SAMPLING)
    other = Scripted({(SMALL, 0): WRONG})
    judge_again(files, KERNELBENCH, tasks, other, lambda *_: None)
    assert other.asked == 7, "all but the two that Keck cannot judge and the one that does not compile"
    found = summary(tmp_path / "r")["groups"]["level 1"]
    assert found["pass_kernelbench"]["pass@1"]["value"] == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    assert found["pass"]["pass@1"]["value"] == pytest.approx((0.5 + 0.5 + 1 + 0) / 4)
    judge_again(files, KERNELBENCH, tasks, other, lambda *_: None)
    assert other.asked == 7


def test_second_verdicts_that_say_nothing_are_asked_for_again(tmp_path: Path, tasks):
    run(tmp_path / "r", tasks, Scripted({}))
    files = PassFiles(tmp_path / "r" / "bench", "bench", 2, Backend.TRITON, SAMPLING)
    judge_again(files, KERNELBENCH, tasks, Scripted({(AFFINE, 0): (Status.INFRA_ERROR, 1.0)}), lambda *_: None)
    found = summary(tmp_path / "r")["groups"]["level 1"]["pass_kernelbench"]
    assert found == {"unavailable": "1 samples carry no verdict by KernelBench's tolerances"}
    judge_again(files, KERNELBENCH, tasks, Scripted({}), lambda *_: None)
    assert summary(tmp_path / "r")["groups"]["level 1"]["pass_kernelbench"]["pass@1"]["value"] == 1


def test_against_torch_compile_correct_samples_are_timed_again(tmp_path: Path, tasks):
    run(tmp_path / "r", tasks, Scripted({(AFFINE, 0): WRONG}))
    files = PassFiles(tmp_path / "r" / "bench", "bench", 2, Backend.TRITON, SAMPLING)
    slow = Scripted({(AFFINE, 1): (Status.CORRECT, 0.9)})
    judge_again(files, TORCH_COMPILE, tasks, slow, lambda *_: None)
    assert slow.asked == 9
    fast = summary(tmp_path / "r")["groups"]["level 1"]["fast"]
    assert fast["eager"]["1"]["fast@1"]["value"] == pytest.approx(3.5 / 4)
    assert fast["torch.compile"]["1"]["fast@1"]["value"] == pytest.approx(3 / 4)


def test_fast_p_leaves_untimed_samples_out():
    def timing(low):
        return Timing(Basis.MEASURED, low, 1.0, low, low, low)

    table = fast_table("abc", 4, {"a": (3, [timing(2.5), timing(0.7)]), "b": (1, [timing(1.2)])}, ks=(1, 4))
    assert table["1"]["fast@1"]["value"] == pytest.approx((1 / 3 + 1 / 4 + 0) / 3)
    assert table["2"]["fast@4"] == {"value": 0.0, "interval": [0.0, pytest.approx(0.6576, abs=1e-3)], "tasks": 2}
    assert table["0.5"]["fast@1"]["value"] == pytest.approx((2 / 3 + 1 / 4) / 3)


def test_judging_begins_before_the_drawing_has_ended(tmp_path: Path, tasks):
    judged = threading.Event()

    class Patient(Answers):
        calls = 0

        def sample(self, prompts, n, sampling, progress=None):
            self.calls += 1
            assert self.calls == 1 or judged.wait(20), "nothing was judged while samples were drawn"
            return super().sample(prompts, n, sampling)

    class Telling(Scripted):
        def judge(self, jobs, *, timed=True):
            yield from super().judge(jobs, timed=timed)
            judged.set()

    run(tmp_path / "r", tasks, Telling({}), sampler=Patient(), how=How(chunk_tasks=1))
    assert summary(tmp_path / "r")["samples"] == 10


def test_on_a_shared_gpu_all_samples_come_first(tmp_path: Path, tasks):
    order: list[str] = []

    class Noting(Answers):
        def sample(self, prompts, n, sampling, progress=None):
            order.append("sample")
            return super().sample(prompts, n, sampling)

    class Judging(Scripted):
        def judge(self, jobs, *, timed=True):
            order.append("judge")
            yield from super().judge(jobs, timed=timed)

    how = How(chunk_tasks=2, overlap=False, after_drawing=lambda: order.append("free"))
    run(tmp_path / "r", tasks, Judging({}), sampler=Noting(), how=how)
    assert order == ["sample", "sample", "sample", "free", "judge"]


@pytest.mark.parametrize("good", [0, 2])
def test_a_model_that_fails_keeps_what_it_gave(tmp_path: Path, tasks, good: int):
    class Failing(Answers):
        calls = 0

        def sample(self, prompts, n, sampling, progress=None):
            self.calls += 1
            if self.calls > good:
                raise InfrastructureError("connection refused")
            return super().sample(prompts, n, sampling)

    expected = InfrastructureError if good else UsageError
    with pytest.raises(expected, match="connection refused"):
        run(tmp_path / "r", tasks, Scripted({}), sampler=Failing(), how=How(chunk_tasks=1))
    run(tmp_path / "r", tasks, Scripted({}))
    found = summary(tmp_path / "r")
    assert found["samples"] == 10 and found["missing"] == 0


# --- comparison ------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(tmp_path: Path, tasks):
    run(tmp_path / "first", tasks, Scripted(TABLE))
    run(tmp_path / "second", tasks, Scripted({(AFFINE, 0): WRONG}), n=3)
    run(tmp_path / "broken", tasks, Scripted(TABLE))
    return [tmp_path / "first", tmp_path / "second"]


def test_compare_writes_tables_and_plots(tmp_path: Path, two_runs):
    data = write_comparison(read_runs(two_runs), tmp_path / "out")
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "KernelLLM-8B *" in text
    assert "arXiv 2609.33074" in text and "not to be compared digit by digit" in text
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == json.loads(json.dumps(data))
    for name in ("pass_at_k", "fast_p", "categories"):
        svg = ElementTree.parse(tmp_path / "out" / f"{name}.svg").getroot()
        words = "".join(svg.itertext())
        assert svg.tag.endswith("svg") and "second" in words, name
    assert "no pass@k" in text, "a level whose samples carry no verdict shows no number"


def test_paired_differences_and_why_there_are_none(tmp_path: Path, tasks):
    run(tmp_path / "a", tasks, Scripted({}))
    run(tmp_path / "b", tasks, Scripted({(AFFINE, 0): WRONG, (AFFINE, 1): WRONG}))
    run(tmp_path / "c", tasks[:2], Scripted({}))
    data = comparison(read_runs([tmp_path / name for name in "abc"]))
    first, second = data["differences"]
    assert first["changes"]["pass@1"]["value"] == pytest.approx(-0.2) and first["reason"] is None
    assert second["reason"] == "before and after were sampled on different tasks"
    assert "Not compared" in markdown(data)


def test_compare_says_what_is_no_run(tmp_path: Path):
    with pytest.raises(UsageError, match="no such run folder"):
        read_runs([tmp_path / "none"])
    with pytest.raises(UsageError, match="holds no benchmark"):
        read_runs([tmp_path])


def test_published_figures_are_shares_with_a_source():
    for p in PUBLISHED:
        assert all(0 <= value <= 1 for value in p.figures.values()) and p.figures
        assert p.source and p.harness and p.caveat[0].isupper()
    shown = published_for("triton", ["level 1"])
    assert {"KernelZero-7B", "KernelLLM-8B"} <= {p.system for p in shown}
    assert published_for("triton", ["single"]) == []


def test_names_in_plots_are_escaped():
    svg = bars({"a<b": [("x & y", 0.5)]}, {"a<b": 1}, "t")
    assert "a&lt;b" in svg and ElementTree.fromstring(svg) is not None
