"""The report's sections on time, speeds and the newer curves: whole runs, older runs, odd values."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from report_sample import EVIL, GPU, bench_rows, edit, report, sample_run, without, write

from kernelzero.report.charts import quartile_chart
from kernelzero.report.reading import read_run
from kernelzero.report.spent import gpu_hours, time_facts

NEWER = ("step_s", "judge_busy_s", "gpu_idle", "gpus", "rollout_gap", "distinct", "api_entropy", "top_skeleton")


def steps(folder: Path, rows: list[dict], bench: int = 0) -> Path:
    """A run folder of these steps, and of benchmark passes of so many tasks."""
    write(folder, "steps.jsonl", rows)
    for label in ("before", "after") if bench else ():
        write(folder, f"bench/{label}.jsonl", bench_rows(random.Random(0), 0.1, bench, GPU, 0.1))
    return folder


def step(role: str = "coder", **more) -> dict:
    seconds = {"generate": 10.0, "judge": 2.0, "train": 4.0}
    return {"round": 1, "role": role, "step": 1, "step_s": 16.0, "seconds": seconds, **more}


def test_the_mean_step_of_a_role_is_split(tmp_path: Path):
    slow = {"step_s": 34.0, "seconds": {"generate": 20.0, "judge": 4.0, "train": 8.0}, "judge_busy_s": 14.0}
    rows = [step(judge_busy_s=8.0, gpu_idle=0.25, gpus=4), step(gpu_idle=0.75, gpus=4, **slow)]
    found = time_facts(read_run(steps(tmp_path, rows, bench=2)))
    coder = found["per_role"]["coder"]
    assert coder["split_s"] == {"generate": 15.0, "judge": 3.0, "train": 6.0, "other": 1.0}
    assert coder["step_s"] == 25.0 and "proposer" not in found["per_role"]
    assert coder["judge_busy_s"] == 11.0 and coder["judge_hidden_s"] == 8.0
    assert coder["gpu_idle"] == pytest.approx((0.25 * 16 + 0.75 * 34) / 50)
    assert found["total_s"] == 50.0 and found["gpu_hours"]["total"] == pytest.approx(4 * 50 / 3600)
    assert found["gpu_hours"]["bench"] == {"before": None, "after": None}


def test_a_step_shows_its_time(tmp_path: Path):
    rows = [step(judge_busy_s=8.0, gpu_idle=0.25, gpus=4), step("proposer", gpus=4)]
    page, text, _ = report(steps(tmp_path, rows, bench=2))
    assert "wait for verdicts 2.0 s" in text and "generate 10.0 s" in text and "train 4.0 s" in text
    assert "8.0 s of a step, 6.0 s of it hidden behind generation." in text
    assert "GPU idle 25 % of the time" in text and "The GPU's idle share is not said." in text
    assert "0.036 GPU-hours" in text and "Counted: 2 training steps." in text
    assert "Not counted, for the run does not say it: the benchmark before and the benchmark after." in text
    assert page.count('class="busy"') == 1 and "width:62.50%" in page


def test_steps_that_do_not_say_their_gpus_are_named_not_guessed(tmp_path: Path):
    rows = [step(gpus=2), step(), step(gpus=None), step(gpus=0), step(gpus="two")]
    hours = gpu_hours(read_run(steps(tmp_path, rows, bench=2)))
    assert hours["training"] == pytest.approx(2 * 16 / 3600)
    assert hours["steps_counted"] == 3 and hours["steps_not_said"] == 2
    assert "2 training steps, the benchmark before and the benchmark after" in report(tmp_path)[1]


def test_benchmark_passes_count_where_the_run_says_what_they_took(tmp_path: Path):
    folder = steps(tmp_path, [step(gpus=2)], bench=2)
    (folder / "benchmark-before.json").write_text('{"seconds": 36.0}')
    (folder / "benchmark-after.json").write_text('{"seconds": 36.0, "gpus": 2}')
    hours = gpu_hours(read_run(folder))
    assert hours["bench"] == {"before": None, "after": pytest.approx(36.0 * 2 / 3600)}
    assert hours["total"] == pytest.approx(hours["training"] + hours["bench"]["after"])
    assert "Counted: 1 training step and the benchmark after." in report(folder)[1]


def test_a_run_on_a_cpu_holds_no_gpu(tmp_path: Path):
    _, text, summary = report(sample_run(tmp_path, tasks=4, gpus=0))
    assert summary["time"]["gpu_hours"]["total"] == 0 and "No GPU was held" in text
    assert summary["time"]["per_role"]["coder"]["gpu_idle"] is None and "GPU idle" not in text


def test_an_older_run_is_told_what_it_does_not_say(tmp_path: Path):
    page, text, summary = report(sample_run(tmp_path, tasks=4))
    assert summary["time"]["gpu_hours"]["total"] is None and summary["time"]["total_s"] > 0
    assert "GPU-hours are not known" in text and "hidden behind generation is not said" in text
    assert 'class="busy"' not in page and "NaN" not in page
    listed = "distinct modules; entropy of the APIs; commonest skeleton; rollout gap, Proposer; rollout gap, Coder."
    assert f"Not drawn, for no step says it: {listed}" in text


def test_the_newer_keys_are_drawn_each_for_itself(tmp_path: Path):
    _, text, _ = report(sample_run(tmp_path, tasks=4, gpus=1))
    for title in ("Distinct modules", "Entropy of the APIs", "Commonest skeleton", "Rollout gap, Coder"):
        assert title in text
    assert "for no step says it" not in text
    edit(tmp_path, "steps.jsonl", without("api_entropy"))
    assert "for no step says it: entropy of the APIs." in report(tmp_path)[1]


ODD = [None, float("nan"), float("inf"), -1, 1e308, True, "x", [], {"judge": "x"}, EVIL]


@pytest.mark.parametrize("key", [*NEWER, "seconds"])
def test_odd_values_of_the_newer_keys(tmp_path: Path, key: str):
    good = [step(gpus=2, judge_busy_s=3.0), step("proposer", gpus=2)]
    odd = [step(role, **{"gpus": 2, key: value}) for value in ODD for role in ("coder", "proposer")]
    page, _, summary = report(steps(tmp_path, [*good, *odd]))
    assert summary["time"]["steps"] == 22 and EVIL not in page
    assert summary["time"]["total_s"] <= 22 * 16 and summary["time"]["gpu_hours"]["total"] <= 22 * 16 * 2 / 3600 + 1e-9


def test_steps_without_any_time(tmp_path: Path):
    rows = [{"round": 1, "role": "coder", "step": 1, "gpus": 1}, {"round": 1, "role": "other", "step": 2}]
    _, text, summary = report(steps(tmp_path, rows))
    assert "no steps that say their seconds" in text and summary["time"]["total_s"] is None


@pytest.mark.parametrize("gpus, basis", [(2, "measured"), (0, "modelled"), (None, "modelled")])
def test_speeds_say_what_they_rest_on(tmp_path: Path, gpus, basis):
    _, text, summary = report(sample_run(tmp_path, tasks=4, gpus=gpus))
    assert summary["speeds"]["basis"] == basis and f"{basis.capitalize()} speedups by round" in text
    assert ("modelled, not timed, on cpu" in text) == (basis == "modelled")
    assert ("timed on NVIDIA H200" in text) == (basis == "measured")
    for row in summary["speeds"]["per_round"]:
        assert row["q1"] <= row["median"] <= row["q3"] and 0 <= row["faster"] <= 1 and row["kernels"] > 20


def test_quartiles_and_the_share_above_one(tmp_path: Path):
    sample_run(tmp_path, tasks=2, gpus=2)
    edges = iter([(0.5, 0.4), (1.02, 0.99), (2.0, 1.9), (3.0, 2.9), (4.0, 3.9)])

    def keep(row):
        if not row["verdict"]["timing"] or (pair := next(edges, None)) is None:
            return None
        row["verdict"]["timing"] |= {"speedup": pair[0], "speedup_low": pair[1], "speedup_high": pair[0] + 0.1}
        return row

    edit(tmp_path, "attempts.jsonl", keep)
    [row] = report(tmp_path)[2]["speeds"]["per_round"]
    assert (row["q1"], row["median"], row["q3"], row["kernels"]) == (1.02, 2.0, 3.0, 5)
    assert row["faster"] == 0.6


def test_speeds_of_two_devices_are_not_mixed(tmp_path: Path):
    sample_run(tmp_path, tasks=2, gpus=2)
    seen = []

    def move(row):
        if row["verdict"]["timing"]:
            seen.append(row)
            row["verdict"]["device"] = EVIL if len(seen) == 1 else row["verdict"]["device"]
        return row

    edit(tmp_path, "attempts.jsonl", move)
    page, text, summary = report(tmp_path)
    assert "several devices" in summary["speeds"]["problem"] and summary["speeds"]["per_round"] == []
    assert "Not drawn: one number cannot summarise several devices" in text and EVIL not in page


def test_no_correct_kernel_gives_no_speeds(tmp_path: Path):
    sample_run(tmp_path, tasks=2)
    edit(tmp_path, "attempts.jsonl", lambda row: None if row["verdict"]["timing"] else row)
    assert "no correct kernels with a time yet" in report(tmp_path)[1]


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_chart_of_few_or_many_rounds(count: int):
    drawing = quartile_chart([(str(i), 0.5, 1.0, 1.0 + i) for i in range(count)], "x", 1.0)
    assert drawing.count('class="box"') == count and "nan" not in drawing
