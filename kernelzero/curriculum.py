"""Which modules the Coder trains on, and how well each API set went. Pure functions on rows of `pool.jsonl`.

Not covered: which API sets the Proposer is given, which `kernelzero.apis` draws from the rates found here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from kernelzero.credit import frontier_reward
from kernelzero.records import ApiSet, Task

Row = Mapping[str, Any]


def pool_row(task: Task, outcomes: Sequence[bool | None]) -> dict[str, Any]:
    """A row of the pool: a validated module and what the Coder made of it."""
    return {
        "task_id": task.id,
        "task": task.to_json(),
        "outcomes": list(outcomes),
        "solve_rate": solve_rate(outcomes),
        "frontier_reward": frontier_reward(outcomes, True),
    }


def solve_rate(outcomes: Iterable[bool | None]) -> float | None:
    """Mean correctness over samples with an outcome, None where there is none."""
    known = [bool(outcome) for outcome in outcomes if outcome is not None]
    return sum(known) / len(known) if known else None


def select_modules(rows: Sequence[Row], n: int, selection: Literal["frontier", "blind"], seed: int) -> list[Task]:
    """n modules to train on, in training order.

    "frontier": those with the highest frontier reward, newer ones first where it is equal, and none that the Coder
    always or never solved, unless there are no others: equal rewards teach nothing. "blind": drawn evenly.
    A module proposed twice counts once, with its newest solve rate. A pool smaller than n is gone through again,
    so that a module comes a second time only after every other one came once.

    Args:
        rows: The pool, oldest first.
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
    """Mean solve rate of the modules of each API set, by the set's id."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        apis = row["task"]["apis"]
        if apis and row["solve_rate"] is not None:
            rates.setdefault(ApiSet(tuple(apis)).id, []).append(row["solve_rate"])
    return {set_id: sum(values) / len(values) for set_id, values in rates.items()}


def _frontier(row: Row) -> float:
    rate = row["solve_rate"]
    return -1.0 if rate is None else 1.0 - 2.0 * abs(rate - 0.5)
