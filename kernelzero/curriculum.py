"""Which modules the Coder trains on, and how well each API set went. Pure functions on rows of `pool.jsonl`.

A module's solve rate is first known from the Proposer's phase, and known anew each time that the Coder trains on it:
`with_training_outcomes` puts the newest into the rows, for `select_modules` and `set_solve_rates` to go by.

Not covered: which API sets the Proposer is given, which `kernelzero.apis` draws from the rates found here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from kernelzero.credit import frontier_reward
from kernelzero.records import ApiSet, Role, Status, Task

Row = Mapping[str, Any]
Outcomes = list[bool | None]
_When = tuple[int, int, int, int]
"""Round, phase, step and number of a group of outcomes: tuples in order of time."""


def pool_row(task: Task, outcomes: Sequence[bool | None]) -> dict[str, Any]:
    """A row of the pool: a validated module and what the Coder made of it."""
    return {"task_id": task.id, "task": task.to_json(), **_with_rates(outcomes)}


def solve_rate(outcomes: Iterable[bool | None]) -> float | None:
    """Mean correctness over samples with an outcome, None where there is none."""
    known = [bool(outcome) for outcome in outcomes if outcome is not None]
    return sum(known) / len(known) if known else None


def with_training_outcomes(pool_rows: Sequence[Row], attempt_rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The modules of the pool with the newest that is known of them, one row for each module and API set.

    All samples that the Coder drew for a module in one step are a group of outcomes, and so is what a row of the pool
    says. Within a round the Proposer's phase comes first. A group without any outcome (the judge was not to be had) is
    passed over. Takes time linear in the rows.

    Args:
        pool_rows: Rows of `pool.jsonl`, oldest first.
        attempt_rows: Rows of `attempts.jsonl` in any order; those of the Proposer's phases are left aside, for the
            pool has their outcomes.

    Returns:
        The newest pool row of each module, where `outcomes`, `solve_rate` and `frontier_reward` are those of the
        newest group, `earlier` has the groups before it, oldest first, and `seen` counts the groups with an outcome.
    """
    groups: dict[str, dict[_When, Outcomes]] = {}
    for number, row in enumerate(pool_rows):
        groups.setdefault(row["task_id"], {})[_when(row, 0, number)] = list(row["outcomes"])
    for row in attempt_rows:
        if row["role"] == Role.CODER.value and row["task_id"] in groups:
            groups[row["task_id"]].setdefault(_when(row, 1), []).append(_outcome(row))
    newest = {(row["task_id"], *row["task"]["apis"]): row for row in pool_rows}
    return [_with_newest(row, groups[row["task_id"]]) for row in newest.values()]


def select_modules(rows: Sequence[Row], n: int, selection: Literal["frontier", "blind"], seed: int) -> list[Task]:
    """n modules to train on, in training order.

    "frontier": those with the highest frontier reward, newer ones first where it is equal, and none that the Coder
    always or never solved, unless there are no others: equal rewards teach nothing. "blind": drawn evenly.
    A module proposed twice counts once, with its newest solve rate. A pool smaller than n is gone through again,
    so that a module comes a second time only after every other one came once.

    Args:
        rows: The pool, oldest first, best with the outcomes of training.
        n: Number of modules.
        selection: The rule.
        seed: Of the order and of ties.
    """
    newest = {row["task_id"]: (number, row) for number, row in enumerate(rows)}
    numbered = list(newest.values())
    rng = random.Random(f"modules {seed}")
    rng.shuffle(numbered)
    if selection == "frontier":
        numbered.sort(key=lambda item: (-_frontier(item[1]), -item[1].get("round", 0)))
        numbered = [item for item in numbered if _frontier(item[1]) > 0] or numbered
    chosen: list[Row] = []
    while numbered and len(chosen) < n:
        part = [row for _, row in numbered[: n - len(chosen)]]
        rng.shuffle(part)  # the best ones are spread over all steps
        chosen += part
    return [Task.from_json(dict(row["task"])) for row in chosen]


def set_solve_rates(rows: Iterable[Row]) -> dict[str, float]:
    """Mean solve rate of the modules of each API set, by the set's id; a module counts once, with its newest rate.

    Args:
        rows: The pool, oldest first.
    """
    newest = {(row["task_id"], *row["task"]["apis"]): row for row in rows if row["solve_rate"] is not None}
    rates: dict[str, list[float]] = {}
    for (_, *apis), row in newest.items():
        if apis:
            rates.setdefault(ApiSet(tuple(apis)).id, []).append(row["solve_rate"])
    return {set_id: sum(values) / len(values) for set_id, values in rates.items()}


def _with_rates(outcomes: Sequence[bool | None]) -> dict[str, Any]:
    return {
        "outcomes": list(outcomes),
        "solve_rate": solve_rate(outcomes),
        "frontier_reward": frontier_reward(outcomes, True),
    }


def _with_newest(row: Row, groups: Mapping[_When, Outcomes]) -> dict[str, Any]:
    told = [outcomes for _, outcomes in sorted(groups.items()) if solve_rate(outcomes) is not None]
    return {**row, **_with_rates(told[-1] if told else row["outcomes"]), "earlier": told[:-1], "seen": len(told)}


def _when(row: Row, phase: int, number: int = 0) -> _When:
    # Steps are counted by role, so they compare within a phase only; modules given beforehand have none.
    return row.get("round", 0), phase, row.get("step", 0), number


def _outcome(attempt: Row) -> bool | None:
    status = Status(attempt["verdict"]["status"])
    return status is Status.CORRECT if status.is_outcome else None


def _frontier(row: Row) -> float:
    rate = row["solve_rate"]
    return -1.0 if rate is None else 1.0 - 2.0 * abs(rate - 0.5)
