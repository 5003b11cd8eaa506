"""Which proposed modules are shown: those near the frontier, unlike one another, each with its fastest correct kernel;
and those made of the same API sets round after round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
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


@dataclass(frozen=True)
class Stage:
    """What one round made of an API set: the module nearest to the round's mean solve rate."""

    round: int
    task: Task
    solve_rate: float | None
    """Of the module shown."""
    mean_solve_rate: float | None
    """Of all modules that the round made of these APIs."""
    modules: int
    graph: list[GraphNode] | None
    kernels: int
    """Kernels written for the module shown in this round, by the frozen Coder or the learning one."""
    correct: int


@dataclass(frozen=True)
class Evolution:
    """The modules made of the same APIs, one a round, in order."""

    apis: tuple[str, ...]
    stages: tuple[Stage, ...]

    @property
    def change(self) -> float:
        """How far the rounds' mean solve rates lie apart, 0 to 1."""
        rates = [stage.mean_solve_rate for stage in self.stages if stage.mean_solve_rate is not None]
        return max(rates) - min(rates) if rates else 0.0


@dataclass(frozen=True)
class Evolutions:
    """What there is to show of the modules' evolution."""

    shown: tuple[Evolution, ...]
    same_set: bool
    """False: no API set occurs in two rounds, and these share a pair of APIs only."""


def evolutions(run: RunFolder, count: int = 4) -> Evolutions:
    """At most `count` API sets that occur in the most rounds, of these the ones whose solve rates change most.

    Where no set occurs in two rounds, pairs of APIs take their place. Modules made beforehand (round 0) are no
    Proposer's and are left out.
    """
    for same_set, keys in ((True, _whole_set), (False, _pairs)):
        found = _recurring(run, keys)
        if found:
            graphs = dict(filter(None, map(_recorded_graph, run.pool)))
            return Evolutions(tuple(_with_graphs(one, graphs) for one in _unlike(found, count)), same_set)
    return Evolutions((), True)


def _with_graphs(one: Evolution, graphs: Mapping[str, Any]) -> Evolution:
    drawn = (replace(s, graph=module_graph(s.task.source, graphs.get(s.task.id))) for s in one.stages)
    return replace(one, stages=tuple(drawn))


def _whole_set(apis: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(sorted(set(apis)))] if apis else []


def _pairs(apis: Sequence[str]) -> list[tuple[str, ...]]:
    return list(combinations(sorted(set(apis)), 2))


def _recurring(run: RunFolder, keys: Callable[[Sequence[str]], list[tuple[str, ...]]]) -> list[Evolution]:
    """Every group of APIs that occurs in two rounds or more, the best to show first; ties keep the files' order."""
    groups: dict[tuple[str, ...], dict[int, list[tuple[Row, Task]]]] = {}
    for row, task, round_ in _by_round(run):
        for key in keys(task.apis):
            groups.setdefault(key, {}).setdefault(round_, []).append((row, task))
    kernels = _kernels(run)
    found = [
        Evolution(apis, tuple(_stage(r, rounds[r], kernels) for r in sorted(rounds)))
        for apis, rounds in groups.items()
        if len(rounds) > 1
    ]
    return sorted(found, key=lambda one: (-len(one.stages), -one.change))


def _by_round(run: RunFolder) -> list[tuple[Row, Task, int]]:
    """Valid modules with their rounds: the pool's, or the proposals' where a run kept no pool. One a round and task."""
    rows = run.pool or [row for row in run.proposals if valid(row)]
    found: dict[tuple[int, str], tuple[Row, Task, int]] = {}
    for row in rows:
        task, round_ = task_of(row), run.round_of(row)
        if task is not None and round_ is not None and round_ >= 1:
            found.setdefault((round_, task.id), (row, task, round_))
    return list(found.values())


def _kernels(run: RunFolder) -> dict[tuple[int | None, str], tuple[int, int]]:
    """Round and task id → kernels written, and how many of them are correct. An answer without code is no kernel."""
    written: Counter[tuple[int | None, str]] = Counter()
    correct: Counter[tuple[int | None, str]] = Counter()
    for row, attempt in run.attempts:
        place = (run.round_of(row), attempt.task_id)
        written[place] += attempt.candidate is not None
        correct[place] += attempt.candidate is not None and attempt.verdict.status is Status.CORRECT
    return {place: (count, correct[place]) for place, count in written.items()}


def _stage(
    round_: int, made: Sequence[tuple[Row, Task]], kernels: Mapping[tuple[int | None, str], tuple[int, int]]
) -> Stage:
    rates = [rate for row, _ in made if (rate := number(row.get("solve_rate"))) is not None]
    mean = sum(rates) / len(rates) if rates else None

    def distance(item: tuple[Row, Task]) -> float:
        rate = number(item[0].get("solve_rate"))
        return 2.0 if rate is None or mean is None else abs(rate - mean)

    row, task = min(made, key=distance)
    written, correct = kernels.get((round_, task.id), (0, 0))
    return Stage(round_, task, number(row.get("solve_rate")), mean, len(made), None, written, correct)


def _unlike(found: Sequence[Evolution], count: int) -> list[Evolution]:
    """The first ones that do not show the same modules again."""
    chosen: list[Evolution] = []
    seen: set[tuple[str, ...]] = set()
    for one in found:
        tasks = tuple(stage.task.id for stage in one.stages)
        if tasks not in seen and len(chosen) < count:
            seen.add(tasks)
            chosen.append(one)
    return chosen


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
