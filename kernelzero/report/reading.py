"""Reads a run folder, whole or not: what is missing is empty, what cannot be read is counted, nothing is run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.errors import UsageError
from kernelzero.records import Attempt

Row = dict[str, Any]


@dataclass(frozen=True)
class BenchPass:
    """The attempts of one benchmark pass, the last one of each sample, and what had been asked for."""

    attempts: tuple[Attempt, ...]
    names: dict[str, str]
    """Task id → name of every task asked for."""
    n: int
    """Samples asked of each task; 0 where there is no such pass."""
    sampling: dict[str, Any] | None = None
    spent: Row | None = None
    """What the run says of the pass: `seconds` it took and `gpus` it held."""


@dataclass(frozen=True)
class RunFolder:
    """Everything the report shows. Rows keep the order of the files; the first row of a key counts."""

    folder: Path
    config: dict[str, Any]
    steps: list[Row]
    proposals: list[Row]
    attempts: list[tuple[Row, Attempt]]
    pool: list[Row]
    before: BenchPass
    after: BenchPass
    unreadable: int
    """Lines that are no JSON object or no such record."""
    first_round: int
    """The number that the run gives its first round, 0 or 1."""

    def round_of(self, row: Row) -> int | None:
        """The round for people, the first is 1."""
        number = row.get("round")
        return number - self.first_round + 1 if isinstance(number, int) else None

    def rounds(self) -> list[int]:
        """All rounds that left a row, in order."""
        rows = [*self.steps, *self.proposals, *(row for row, _ in self.attempts)]
        return sorted({r for r in map(self.round_of, rows) if r is not None})


def read_run(folder: Path | str) -> RunFolder:
    """Read what there is. Raises UsageError where there is no such folder, or nothing of a run in it."""
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"no such run folder: {root}")
    expected = ("config.json", "steps.jsonl", "proposals.jsonl", "attempts.jsonl", "pool.jsonl", "bench")
    if not any((root / name).exists() for name in expected):
        raise UsageError(f"{root} is no run folder: it has none of {', '.join(expected)}")
    lost = [0]
    names = ("steps", "proposals", "attempts", "pool")
    steps, proposals, attempts, pool = (_rows(root / f"{name}.jsonl", lost) for name in names)
    judged = list(_attempts(attempts, lost))
    before, after = (_bench_pass(root / "bench", label, lost) for label in ("before", "after"))
    numbers = [r["round"] for r in (*steps, *proposals, *attempts) if isinstance(r.get("round"), int)]
    first_round = min(numbers, default=1)
    config = _json_object(root / "config.json", lost)
    steps, proposals = [_step(row) for row in steps], _with_rates(proposals, pool)
    return RunFolder(root, config, steps, proposals, judged, pool, before, after, lost[0], min(first_round, 1))


def _step(row: Row) -> Row:
    """A step under the names of the report: a Coder's solve rate is its accuracy."""
    named = dict(row)
    named.setdefault("frontier", row.get("frontier_reward"))
    if row.get("role") == "coder":
        named.setdefault("accuracy", row.get("solve_rate"))
    return named


def _with_rates(proposals: list[Row], pool: list[Row]) -> list[Row]:
    """Proposals with their solve rates, which the pool knows where they do not say it themselves."""
    rates = {_place(row): row.get("solve_rate") for row in pool}
    return [{"solve_rate": rates.get(_place(row)), **row} for row in proposals]


def _place(row: Row) -> tuple[str, str, str]:
    return str(row.get("round")), str(row.get("step")), str(row.get("task_id"))


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _rows(path: Path, lost: list[int]) -> list[Row]:
    """Rows by first key; a torn last line is what a kill leaves and is not counted as lost."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    found: dict[str, Row] = {}
    lines = text.split("\n")
    for index, line in enumerate(lines):
        row = _parsed(line)
        if row is not None:
            found.setdefault(str(row.get("key", row.get("id", f"line {index}"))), row)
        elif line.strip() and index < len(lines) - 1:
            lost[0] += 1
    return list(found.values())


def _parsed(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _json_object(path: Path, lost: list[int]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = _parsed(path.read_text(encoding="utf-8", errors="replace"))
    lost[0] += value is None
    return value or {}


def _attempts(rows: Iterable[Row], lost: list[int]) -> Iterable[tuple[Row, Attempt]]:
    for row in rows:
        try:
            yield row, Attempt.from_json(row)
        except (KeyError, TypeError, ValueError, AttributeError):
            lost[0] += 1


def _bench_pass(folder: Path, label: str, lost: list[int]) -> BenchPass:
    pairs = list(_attempts(_rows(folder / f"{label}.jsonl", lost), lost))
    settings = _json_object(folder / f"{label}.json", lost)
    last = {(a.task_id, row.get("sample")): a for row, a in pairs}
    names = dict(settings.get("tasks") or {a.task_id: row.get("task") or a.task_id for row, a in pairs})
    per_task: dict[str, int] = {}
    for task_id, _ in last:
        per_task[task_id] = per_task.get(task_id, 0) + 1
    n = max([int(settings.get("n") or 0), *per_task.values()])
    known = tuple(a for a in last.values() if a.task_id in names)
    spent = _json_object(folder.parent / f"benchmark-{label}.json", lost)
    return BenchPass(known, names, n if known else 0, settings.get("sampling"), spent)
