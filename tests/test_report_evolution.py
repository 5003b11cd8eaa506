"""The modules made of the same APIs, round by round: which are shown, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_sample import EVIL, KERNEL, report, sample_run

from kernelzero.records import Attempt, Candidate, Completion, Finish, Status, Task, Verdict
from kernelzero.report.gallery import evolutions
from kernelzero.report.reading import read_run


def task(number: int, *apis: str) -> Task:
    source = f"import torch\nclass Model:\n    def forward(self, x):\n        return torch.relu(x) + {number}\n"
    return Task(source, apis)


def row(round_: int, made: Task, rate: float | None, label: str = "traced") -> dict:
    nodes = [
        {"id": "x", "op": "placeholder", "label": "x", "inputs": []},
        {"id": "r", "op": "call_function", "label": label, "inputs": ["x"]},
        {"id": "output", "op": "output", "label": "output", "inputs": ["r"]},
    ]
    held = {"round": round_, "task_id": made.id, "task": made.to_json(), "solve_rate": rate}
    return {**held, "graph": {"nodes": nodes}}


def attempt(round_: int, made: Task, status: Status, code: bool = True) -> dict:
    verdict = Verdict(status, "said", "cpu", timed=False)
    candidate = Candidate(KERNEL) if code else None
    return {"round": round_, **Attempt(made.id, Completion("…", 9, Finish.STOP), candidate, verdict).to_json()}


def run(folder: Path, pool: list[dict], attempts: list[dict] = ()) -> Path:
    for name, rows in (("pool", pool), ("attempts", attempts)):
        lines = [json.dumps({"key": str(i), **one}) + "\n" for i, one in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def test_sets_of_the_most_rounds_then_of_the_largest_change(tmp_path: Path):
    pool = [row(r, task(r, "a", "b"), 0.5) for r in (1, 2, 3)]
    pool += [row(r, task(10 + r, "c", "d"), rate) for r, rate in ((1, 0.4), (2, 0.6))]
    pool += [row(r, task(20 + r, "e", "f"), rate) for r, rate in ((1, 0.1), (2, 0.9))]
    pool += [row(r, task(30 + r, "g", "h"), rate) for r, rate in ((2, 0.5), (3, 0.8))]
    pool += [row(r, task(40 + r, "i", "j"), rate) for r, rate in ((2, 0.5), (3, 0.55))]
    pool += [row(1, task(50, "k", "l"), 0.0)]
    found = evolutions(read_run(run(tmp_path, pool)))
    assert found.same_set
    assert [one.apis for one in found.shown] == [("a", "b"), ("e", "f"), ("g", "h"), ("c", "d")]
    assert [stage.round for stage in found.shown[0].stages] == [1, 2, 3]


def test_the_order_of_the_apis_makes_no_other_set(tmp_path: Path):
    pool = [row(1, task(1, "a", "b"), 0.5), row(2, task(2, "b", "a"), 0.5)]
    assert len(evolutions(read_run(run(tmp_path, pool))).shown) == 1


def test_a_round_shows_the_module_nearest_to_its_mean(tmp_path: Path):
    pool = [row(1, task(i, "a", "b"), rate) for i, rate in ((1, 0.0), (2, 0.4), (3, 1.0))]
    pool += [row(2, task(9, "a", "b"), None)]
    [one] = evolutions(read_run(run(tmp_path, pool))).shown
    first, second = one.stages
    assert first.task.id == task(2, "a", "b").id and first.modules == 3
    assert first.mean_solve_rate == pytest.approx(1.4 / 3)
    assert second.solve_rate is None and second.mean_solve_rate is None and one.change == 0


def test_a_stage_says_graph_rate_and_kernels(tmp_path: Path):
    made = [task(1, "a", "b"), task(2, "a", "b")]
    pool = [row(1, made[0], 0.25, "first_op"), row(2, made[1], 0.75, "second_op")]
    attempts = [attempt(1, made[0], Status.CORRECT), attempt(1, made[0], Status.INCORRECT)]
    attempts += [attempt(1, made[0], Status.COMPILE_ERROR, code=False), attempt(2, made[0], Status.CORRECT)]
    attempts += [attempt(2, made[1], Status.INCORRECT)]
    page, text, _ = report(run(tmp_path, pool, attempts))
    assert "Round 1 solved 25 % 2 kernels, 1 correct" in text and "Round 2 solved 75 % 1 kernel, 0 correct" in text
    assert "first_op" in page and "second_op" in page and page.count('class="stage"') == 2


def test_sets_that_share_a_pair_stand_in(tmp_path: Path):
    pool = [row(1, task(1, "a", "b", "c"), 0.2), row(2, task(2, "a", "b", "d"), 0.9), row(2, task(3, "e", "f"), 0.5)]
    found = evolutions(read_run(run(tmp_path, pool)))
    assert not found.same_set and [one.apis for one in found.shown] == [("a", "b")]
    text = report(tmp_path)[1]
    assert "for no whole API set occurs in two rounds" in text and "with c" in text and "with d" in text


def test_the_same_modules_are_not_shown_twice(tmp_path: Path):
    pool = [row(1, task(1, "a", "b", "c"), 0.2), row(2, task(2, "a", "b", "c", "d"), 0.9)]
    assert len(evolutions(read_run(run(tmp_path, pool))).shown) == 1


def test_nothing_in_common_is_said(tmp_path: Path):
    run(tmp_path, [row(1, task(1, "a", "b"), 0.2), row(2, task(2, "c"), 0.9), row(2, task(3), 0.9)])
    assert "No API set and no pair of APIs occurs in valid modules of two rounds." in report(tmp_path)[1]


def test_modules_made_beforehand_are_left_out(tmp_path: Path):
    steps = [{"key": "s", "round": 1, "role": "coder", "step": 1}]
    (tmp_path / "steps.jsonl").write_text(json.dumps(steps[0]) + "\n")
    pool = [row(r, task(r, "a", "b"), 0.5) for r in (0, 1)]
    assert not evolutions(read_run(run(tmp_path, pool))).shown


def test_an_older_run_without_a_pool_shows_its_proposals(tmp_path: Path):
    page, text, _ = report(sample_run(tmp_path, tasks=2))
    assert "API sets that the Proposer was given" in text and page.count('class="stage"') >= 4


def test_many_rounds_are_thinned(tmp_path: Path):
    run(tmp_path, [row(r, task(r, "a", "b"), r / 40) for r in range(1, 31)])
    page, text, _ = report(tmp_path)
    assert page.count('class="stage"') == 12 and "18 rounds in between are not drawn" in text
    assert "Round 1 " in text and "Round 30 " in text


def test_hostile_graphs_and_apis_are_escaped(tmp_path: Path):
    pool = [row(r, Task(f"{EVIL}{r}", (EVIL, "a", *([EVIL + "b"] * (r - 1)))), 0.5, EVIL[:20]) for r in (1, 2)]
    for one in pool:
        one["graph"]["nodes"][0]["label"] = EVIL
    page, text, _ = report(run(tmp_path, pool))
    assert EVIL not in page and "<script" not in page and "alert" in text


@pytest.mark.parametrize("graph", [None, {"nodes": []}, {"nodes": [3]}, "x"])
def test_a_module_whose_graph_was_not_traced(tmp_path: Path, graph):
    pool = [{**row(r, task(r, "a", "b"), 0.5), "graph": graph} for r in (1, 2)]
    assert "torch.relu" in report(run(tmp_path, pool))[0]
