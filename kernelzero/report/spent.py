"""Where the time of a run went, as plain numbers: the mean step of each role, hidden judging, idle GPUs, GPU-hours.

Rows of older runs lack some of the keys. What a row does not say is left out and counted as not said, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from kernelzero.report.reading import Row, RunFolder, number

PARTS = ("generate", "judge", "train")
"""Parts of a step in their order; "judge" is the wait for verdicts after the last token."""
_MOST_SECONDS, _MOST_GPUS = 1e9, 1e6


def time_facts(run: RunFolder) -> dict[str, Any]:
    """Mean seconds of a step by role, the run's training time, and its GPU-hours, as plain JSON."""
    roles = dict.fromkeys(("proposer", "coder"))
    by_role = {role: [row for row in run.steps if row.get("role") == role] for role in roles}
    lengths = _known(map(step_seconds, run.steps))
    return {
        "per_role": {role: found for role, rows in by_role.items() if (found := _role_facts(rows))},
        "steps": len(run.steps),
        "timed_steps": len(lengths),
        "total_s": sum(lengths) if lengths else None,
        "gpu_hours": gpu_hours(run),
    }


def step_seconds(row: Row) -> float | None:
    """Length of a step: what the row says, else the sum of its parts."""
    said = _bounded(row.get("step_s"), _MOST_SECONDS)
    if said is not None:
        return said
    parts = _parts(row)
    return sum(parts.values()) if parts else None


def gpu_hours(run: RunFolder) -> dict[str, Any]:
    """Step seconds × GPUs held / 3600, and the same for each benchmark pass of which the run says both.

    `training` is None where no step says how many GPUs it held; 0 or null GPUs are a CPU's. `bench` maps "before" and
    "after" to hours, None where the run does not say. `total` adds what is known.
    """
    known = _known(map(_row_hours, run.steps))
    passes = (("before", run.before), ("after", run.after))
    bench = {label: _pass_hours(one.spent or {}) for label, one in passes if one.n}
    training = sum(known) if known else None
    parts = _known([training, *bench.values()])
    return {
        "total": sum(parts) if parts else None,
        "training": training,
        "bench": bench,
        "steps_counted": len(known),
        "steps_not_said": len(run.steps) - len(known),
    }


def _pass_hours(spent: Row) -> float | None:
    gpus, seconds = (_bounded(spent.get(key), most) for key, most in (("gpus", _MOST_GPUS), ("seconds", _MOST_SECONDS)))
    return None if gpus is None or seconds is None else gpus * seconds / 3600


def _row_hours(row: Row) -> float | None:
    if "gpus" not in row:
        return None
    gpus = 0.0 if row["gpus"] is None else _bounded(row["gpus"], _MOST_GPUS)
    seconds = step_seconds(row)
    return None if gpus is None or seconds is None else gpus * seconds / 3600


def _role_facts(rows: Sequence[Row]) -> dict[str, Any] | None:
    timed = [row for row in rows if _parts(row)]
    if not timed:
        return None
    parts = [_parts(row) for row in timed]
    split = {name: _mean([p.get(name, 0.0) for p in parts]) for name in PARTS}
    lengths = [step_seconds(row) or 0.0 for row in timed]
    rest = _mean(lengths) - sum(split.values())
    busy = [(b, p["judge"]) for row, p in zip(timed, parts, strict=True) if (b := _busy(row)) is not None]
    idle = [(share, length) for row, length in zip(timed, lengths, strict=True) if (share := _idle(row)) is not None]
    return {
        "steps": len(rows),
        "timed_steps": len(timed),
        "step_s": _mean(lengths),
        # Rounded parts may add up to a little more than their whole.
        "split_s": {**split, "other": rest if rest > 0.005 * max(_mean(lengths), 1e-9) else 0.0},
        "judge_busy_s": _mean([b for b, _ in busy]) if busy else None,
        "judge_hidden_s": _mean([max(0.0, b - waited) for b, waited in busy]) if busy else None,
        "judge_steps": len(busy),
        "gpu_idle": _weighted(idle),
        "gpu_idle_steps": len(idle),
        "gpus": sorted(set(_known(_bounded(row.get("gpus"), _MOST_GPUS) for row in rows))),
    }


def _parts(row: Row) -> dict[str, float]:
    """The three parts and whatever else the row names, but for its own total; empty where no part is known."""
    said = row.get("seconds")
    pairs = said.items() if isinstance(said, dict) else ()
    return {
        str(name): known
        for name, value in pairs
        if name != "total" and (known := _bounded(value, _MOST_SECONDS)) is not None
    }


def _busy(row: Row) -> float | None:
    return _bounded(row.get("judge_busy_s"), _MOST_SECONDS) if "judge" in _parts(row) else None


def _idle(row: Row) -> float | None:
    return _bounded(row.get("gpu_idle"), 1.0)


def _weighted(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Mean share, weighted by the length of the steps: the share of all their time."""
    weight = sum(length for _, length in pairs)
    return sum(share * length for share, length in pairs) / weight if weight > 0 else None


def _bounded(value: Any, most: float) -> float | None:
    known = number(value)
    return known if known is not None and 0 <= known <= most else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
