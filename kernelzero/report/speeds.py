"""Speedups of correct kernels round by round, as plain numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from kernelzero.metrics import MixedError, check_comparable
from kernelzero.records import Attempt, Status, Timing
from kernelzero.report.reading import RunFolder


def speed_facts(run: RunFolder) -> dict[str, Any]:
    """Quartiles of the speedup of a round's correct, timed attempts, with the basis of the times.

    `faster` is the share whose interval lies above 1, as in fast_1. Devices and bases are never mixed: where the
    attempts differ in one, `problem` says so and there are no rows.
    """
    timed: dict[int, list[Attempt]] = {}
    for row, attempt in run.attempts:
        round_ = run.round_of(row)
        if round_ is not None and attempt.verdict.status is Status.CORRECT and attempt.verdict.timing:
            timed.setdefault(round_, []).append(attempt)
    try:
        setting = check_comparable([attempt for group in timed.values() for attempt in group])
    except MixedError as error:
        return {"basis": None, "baseline": None, "device": None, "problem": str(error), "per_round": []}
    rows = [_round(number, [a.verdict.timing for a in timed[number] if a.verdict.timing]) for number in sorted(timed)]
    return {**{key: setting[key] for key in ("basis", "baseline", "device")}, "problem": None, "per_round": rows}


def _round(number: int, timings: Sequence[Timing]) -> dict[str, Any]:
    speedups = sorted(t.speedup for t in timings)
    # The quartiles of a single value are that value.
    low, median, high = statistics.quantiles(speedups * (2 if len(speedups) == 1 else 1), n=4, method="inclusive")
    faster = sum(t.is_faster for t in timings) / len(timings)
    return {"round": number, "kernels": len(timings), "q1": low, "median": median, "q3": high, "faster": faster}
