"""Several runs beside one another: the front, the labels, and which runs cannot be compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report_sample import EVIL, edit, report, sample_run
from typer.testing import CliRunner

from kernelzero.cli import app
from kernelzero.errors import UsageError
from kernelzero.metrics import summarise
from kernelzero.report import build_report
from kernelzero.report.charts import ParetoPoint, pareto_plot
from kernelzero.report.reading import read_run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Alpha 0.5 is the most correct, alpha 0 the fastest, alpha 2 neither."""
    folder = tmp_path_factory.mktemp("runs")
    for name, alpha, gain, speed in (("half", 0.5, 0.35, -0.4), ("always", 0.0, 0.15, 1.2), ("never", 2.0, 0.05, -0.5)):
        sample_run(folder / name, rounds=1, tasks=20, gpus=2, alpha=alpha, gain=gain, speed_gain=speed)
        for part in ("proposals", "attempts", "pool"):
            (folder / name / f"{part}.jsonl").unlink()
    return folder


@pytest.fixture
def three(made: Path, tmp_path: Path) -> list[Path]:
    """Copies of the three runs."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return [tmp_path / name for name in ("half", "always", "never")]


def rows(folder: Path) -> list[dict]:
    return json.loads((folder / "summary.json").read_text())["tradeoff"]["runs"]


def reason(first: Path, other: Path) -> str | None:
    report(first, [other])
    return rows(first)[1]["reason"]


def test_points_are_those_of_the_metrics(three):
    page, text, summary = report(three[0], three[1:])
    assert [row["label"] for row in summary["tradeoff"]["runs"]] == ["alpha 0.5", "alpha 0", "alpha 2"]
    for folder, row in zip(three, summary["tradeoff"]["runs"], strict=True):
        bench = read_run(folder).after
        expected = summarise(bench.attempts, n=bench.n, names=bench.names)
        assert row["pass@1"] == expected["pass_at_k"]["pass@1"] and row["fast_1@1"] == expected["fast_1_at_1"]
        assert row["speedup"] == expected["speedup"] and row["reason"] is None and row["gpu_hours"] > 0
    assert page.count('class="point front"') + page.count('class="point behind"') == 3
    assert "Correct against fast" in text and "on the front" in text


def test_the_front_holds_what_no_other_run_beats(three):
    found = report(three[0], three[1:])[2]["tradeoff"]["runs"]
    places = [(row["pass@1"]["value"], row["fast_1@1"]["value"]) for row in found]
    for row, (x, y) in zip(found, places, strict=True):
        beaten = any(a >= x and b >= y and (a > x or b > y) for a, b in places)
        assert row["on_front"] is not beaten
    assert [row["on_front"] for row in found] == [True, True, False]


def test_equal_runs_share_the_front(three, tmp_path: Path):
    twin = tmp_path / "twin"
    shutil.copytree(three[0], twin)
    report(three[0], [twin])
    found = rows(three[0])
    assert all(row["on_front"] for row in found) and found[1]["label"] == "twin"
    assert "configurations do not differ" in report(three[0], [twin])[1]


def test_one_run_alone_says_how_to_compare(three):
    page, text, summary = report(three[0])
    assert summary["tradeoff"] is None and "kernelzero report RUN --with RUN2" in text
    assert "pareto" not in page.split("</style>")[1]


def test_a_run_without_a_benchmark_is_listed(three):
    (three[1] / "bench" / "after.jsonl").unlink()
    text = report(three[0], three[1:])[1]
    assert [row["reason"] for row in rows(three[0])] == [
        None, "there is no benchmark after training in this folder", None,
    ]  # fmt: skip
    assert "Not drawn" in text and "2 runs after training" in text


def test_the_run_itself_may_lack_the_benchmark(three):
    (three[0] / "bench" / "after.jsonl").unlink()
    report(three[0], three[1:])
    assert [row["reason"] is None for row in rows(three[0])] == [False, True, True]
    for folder in three[1:]:
        (folder / "bench" / "after.jsonl").unlink()
    assert "None of the runs can be drawn" in report(three[0], three[1:])[1]


def test_other_tasks_are_not_compared(three, tmp_path: Path):
    other = sample_run(tmp_path / "other", rounds=1, tasks=18, gpus=2)
    assert reason(three[0], other) == "it was measured on other tasks than half (18 of 20 are the same)"


def test_another_n_is_not_compared(three):
    edit(three[1], "bench/after.jsonl", lambda row: row if row["sample"] < 4 else None)
    assert reason(three[0], three[1]) == "its n is 4, that of half 5"


def test_another_device_is_not_compared(three, tmp_path: Path):
    other = sample_run(tmp_path / "cpu", rounds=1, tasks=20, gpus=0)
    assert reason(three[0], other) == "its device is cpu (triton interpreter), that of half NVIDIA H200"


def test_other_sampling_is_not_compared(three):
    for folder, temperature in zip(three, (0.6, 1.0, 0.6), strict=True):
        (folder / "bench" / "after.json").write_text(json.dumps({"n": 5, "sampling": {"temperature": temperature}}))
    report(three[0], three[1:])
    assert [row["reason"] is None for row in rows(three[0])] == [True, False, True]
    assert "its sampling is" in rows(three[0])[1]["reason"]


def test_mixed_and_unfinished_passes_are_listed(three):
    def move(row):
        row["verdict"]["device"] = "another" if row["sample"] else row["verdict"]["device"]
        return row

    edit(three[1], "bench/after.jsonl", move)
    edit(three[2], "bench/after.jsonl", lambda row: row if row["sample"] else None)
    (three[2] / "bench" / "after.json").write_text(json.dumps({"n": 5}))
    report(three[0], three[1:])
    assert "several devices" in rows(three[0])[1]["reason"] and "unfinished" in rows(three[0])[2]["reason"]


def test_a_folder_given_twice_is_drawn_once(three):
    report(three[0], [three[1], three[0], three[1]])
    assert [row["reason"] for row in rows(three[0])] == [None, None, *["its folder was given before"] * 2]


def test_labels_say_what_differs(three):
    (three[0] / "config.json").write_text(json.dumps({"run": {"name": "a"}, "coder": {"alpha": 0.5, "lr": 1e-6}}))
    other = {"run": {"name": "b", "seed": 1}, "coder": {"alpha": 0.5, "lr": 2e-6}, "proposer": {"lr": 1e-6}}
    (three[1] / "config.json").write_text(json.dumps(other))
    third = {"run": {"name": "c", "seed": 0}, "coder": {"alpha": 0.5, "lr": 1e-6}, "proposer": {"lr": 3e-6}}
    (three[2] / "config.json").write_text(json.dumps(third))
    found = report(three[0], three[1:])[2]["tradeoff"]
    assert sorted(found["differs"]) == ["coder.lr", "proposer.lr", "run.seed"]
    assert found["runs"][0]["label"] == "coder lr 1e-06"
    assert set(found["runs"][1]["label"].split(", ")) == {"coder lr 2e-06", "proposer lr 1e-06", "seed 1"}


def test_hostile_configurations_are_escaped(three):
    for number, folder in enumerate(three):
        config = {"coder": {"alpha": float("nan") if number else EVIL, EVIL: f"{EVIL}{number}", "x": [EVIL] * number}}
        (folder / "config.json").write_text(json.dumps(config))
    page, _, summary = report(three[0], three[1:])
    assert EVIL not in page and [row["alpha"] for row in summary["tradeoff"]["runs"]] == [None] * 3


def test_the_command_takes_other_runs(three):
    arguments = ["report", str(three[0]), "--with", str(three[1]), "--with", str(three[2])]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert len(rows(three[0])) == 3
    with pytest.raises(UsageError, match="no such run folder"):
        build_report(three[0], [three[0] / "none"])


@pytest.mark.parametrize("count", [1, 2, 30])
def test_labels_stay_on_the_plot(count: int):
    points = [ParetoPoint(f"run {i} " + "long " * 20, i / 60, None, 0.5, (0.4, 0.6), i == 0) for i in range(count)]
    drawing = pareto_plot(points, "x", "y")
    assert drawing.count("<circle") == count and drawing.count('class="who"') == count and "nan" not in drawing
