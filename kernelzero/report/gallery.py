"""Which proposed modules are shown: near the frontier, unlike one another, each with its fastest correct kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelzero.normalise import normalised
from kernelzero.records import Attempt, Status, Task
from kernelzero.report.facts import valid
from kernelzero.report.graph import GraphNode, module_graph
from kernelzero.report.reading import Row, RunFolder, number


@dataclass(frozen=True)
class Exhibit:
    """One module of the gallery."""

    task: Task
    round: int | None
    solve_rate: float
    graph: list[GraphNode] | None
    best: Attempt | None
    """The fastest correct attempt at it in this run."""
    tried: int
    """Attempts at it in this run."""


def exhibits(run: RunFolder, count: int = 10) -> list[Exhibit]:
    """At most `count` rated modules; ties and order are those of the run's files."""
    graphs = dict(filter(None, map(_recorded_graph, run.pool)))
    attempts: dict[str, list[Attempt]] = {}
    for _, attempt in run.attempts:
        attempts.setdefault(attempt.task_id, []).append(attempt)
    shown = []
    for row, task, rate in _diverse(_rated(run), count):
        tried = attempts.get(task.id, [])
        graph = module_graph(task.source, graphs.get(task.id))
        shown.append(Exhibit(task, run.round_of(row), rate, graph, best_of(tried), len(tried)))
    return shown


def best_of(attempts: Iterable[Attempt]) -> Attempt | None:
    """The correct attempt with the highest speedup; an untimed one only where no other is correct."""
    correct = [a for a in attempts if a.verdict.status is Status.CORRECT and a.candidate]
    return max(correct, key=lambda a: a.verdict.speedup or 0.0, default=None)


def _rated(run: RunFolder) -> list[tuple[Row, Task, float]]:
    found: dict[str, tuple[Row, Task, float]] = {}
    for row in run.proposals:
        rate, task = number(row.get("solve_rate")), task_of(row)
        if valid(row) and rate is not None and task is not None:
            found.setdefault(task.id, (row, task, rate))
    return list(found.values())


def task_of(row: Mapping[str, Any]) -> Task | None:
    """The task of a row of `proposals.jsonl` or `pool.jsonl`, None where it holds none."""
    held = row.get("task", row)
    if not isinstance(held, dict) or not isinstance(held.get("source"), str):
        return None
    apis = held.get("apis") or ()
    return Task(held["source"], tuple(map(str, apis)), str(held.get("name") or ""))


def _diverse(rated: list[tuple[Row, Task, float]], count: int) -> list[tuple[Row, Task, float]]:
    """Greedy: the one nearest to one half, where every API and round that is shown already costs a little."""
    left = _one_of_each_form(rated)
    chosen: list[tuple[Row, Task, float]] = []
    apis: Counter[str] = Counter()
    rounds: Counter[Any] = Counter()

    def cost(item: tuple[Row, Task, float]) -> float:
        row, task, rate = item
        return abs(rate - 0.5) + 0.12 * sum(apis[api] for api in task.apis) + 0.04 * rounds[row.get("round")]

    while left and len(chosen) < count:
        best = min(left, key=cost)
        left.remove(best)
        chosen.append(best)
        apis.update(best[1].apis)
        rounds[best[0].get("round")] += 1
    return chosen


def _one_of_each_form(rated: list[tuple[Row, Task, float]]) -> list[tuple[Row, Task, float]]:
    forms: dict[str, tuple[Row, Task, float]] = {}
    for item in sorted(rated, key=lambda item: abs(item[2] - 0.5)):
        forms.setdefault(_form(item[1]), item)
    return list(forms.values())


def _form(task: Task) -> str:
    try:
        return normalised(task.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return task.id


def _recorded_graph(row: Row) -> tuple[str, Any] | None:
    if "graph" not in row:
        return None
    task = task_of(row)
    task_id = str(row["task_id"]) if "task_id" in row else task.id if task else ""
    return task_id, row["graph"]
