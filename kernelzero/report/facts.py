"""What a run shows, as plain numbers: the content of `summary.json`, from which the page is written.

The headline claims a change only where the interval of the paired difference leaves out none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kernelzero.metrics import MixedError, check_comparable, compare, failure_kind, summarise
from kernelzero.records import Attempt
from kernelzero.report.reading import BenchPass, Row, RunFolder, number
from kernelzero.report.speeds import speed_facts
from kernelzero.report.spent import time_facts

NEAR_FRONTIER = 0.25
"""A solve rate within this distance of one half counts as near the frontier."""


def facts(run: RunFolder) -> dict[str, Any]:
    """The summary of a run as plain JSON."""
    bench = bench_facts(run.before, run.after)
    rounds = run.rounds()
    steps = Counter(str(row.get("role")) for row in run.steps)
    found: dict[str, Any] = {
        "rounds": len(rounds),
        "steps": dict(sorted(steps.items(), reverse=True)),
        "bench": bench,
        "proposals": proposal_facts(run),
        "attempts": attempt_facts(run),
        "seconds": seconds(run.steps),
        "time": time_facts(run),
        "speeds": speed_facts(run),
        "unreadable_lines": run.unreadable,
    }
    outcome, headline = headline_of(bench, len(rounds), steps)
    return {"headline": headline, "outcome": outcome, **found}


def bench_facts(before: BenchPass, after: BenchPass) -> dict[str, Any]:
    """Both passes summarised and compared; `problem` says why a part is missing.

    An unfinished pass is not compared: its missing samples are still to come and would look like failures.
    """
    try:
        sides = [pass_summary(one) for one in (before, after)]
        whole = [side for side in sides if side and not side["missing"]]
        changes = compare(*whole) if len(whole) == 2 else {}
    except (MixedError, ValueError) as error:
        return {"before": None, "after": None, "changes": {}, "problem": str(error)}
    return {"before": sides[0], "after": sides[1], "changes": changes, "problem": _problem(sides)}


def pass_summary(one: BenchPass) -> dict[str, Any] | None:
    """The summary of a pass, None where there is none.

    Rates of an unfinished one would count what is still to come as failures. Raises MixedError, ValueError as
    `summarise` does.
    """
    if not one.n:
        return None
    summary = summarise(one.attempts, n=one.n, names=one.names)
    if summary["missing"]:
        done = f"{summary['samples']} of {summary['samples'] + summary['missing']} samples are judged"
        summary |= {"unavailable": f"it is unfinished, {done}", "pass_at_k": None, "fast_1_at_1": None}
    return summary


def _problem(sides: Sequence[dict[str, Any] | None]) -> str | None:
    for name, side in zip(("before", "after"), sides, strict=True):
        if side is None:
            return f"there is no benchmark {name} training in this folder"
        if side["unavailable"]:
            return f"the benchmark {name} training gives no rates: {side['unavailable']}"
    return None


def headline_of(bench: dict[str, Any], rounds: int, steps: Counter[str]) -> tuple[str, str]:
    """The outcome ("better", "worse", "within_noise", "unavailable") and one sentence that says it."""
    spent = _spent(rounds, steps)
    change = bench["changes"].get("pass@1")
    if change is None:
        why = bench["problem"] or "the two passes share no metric"
        return "unavailable", f"What {spent} changed cannot be said: {why}."
    first, second = (100 * bench[side]["pass_at_k"]["pass@1"]["value"] for side in ("before", "after"))
    tasks = bench["after"]["tasks"]
    numbers = f"{first:.0f} % before, {second:.0f} % after"
    difference = f"{100 * change['value']:+.0f} points{_interval_text(change)}".replace("-", "\N{MINUS SIGN}")
    if not change["beyond_noise"]:
        sentence = f"After {spent}, no change in what the Coder solves can be told from noise"
        return "within_noise", f"{sentence}: pass@1 on {tasks} benchmark tasks is {numbers} ({difference})."
    verb, outcome = ("more", "better") if change["value"] > 0 else ("less", "worse")
    sentence = f"After {spent}, the Coder solves {verb} at the first try than before"
    return outcome, f"{sentence}: pass@1 on {tasks} benchmark tasks is {numbers} ({difference})."


def _interval_text(change: dict[str, Any]) -> str:
    if change["interval"] is None:
        return ""
    low, high = (100 * end for end in change["interval"])
    return f", 95 % interval {low:+.0f} to {high:+.0f}"


def _spent(rounds: int, steps: Counter[str]) -> str:
    if not rounds and not steps:
        return "no training"
    parts = [f"{steps[role]} {role.capitalize()}" for role in ("proposer", "coder") if steps[role]]
    text = f"{rounds} round{'s' if rounds != 1 else ''}"
    return f"{text} ({' and '.join(parts)} steps)" if parts else text


def proposal_facts(run: RunFolder) -> dict[str, Any]:
    """How many proposals were valid, what refused the others, and where solve rates lie, a row a round."""
    rows = [(run.round_of(row), row) for row in run.proposals]
    return {
        **_proposal_counts(run.proposals),
        "refused_by": dict(Counter(_gate(row) for row in run.proposals if valid(row) is False).most_common()),
        "per_round": [
            {"round": r, **_proposal_counts([row for number_, row in rows if number_ == r])}
            for r in sorted({r for r, _ in rows if r is not None})
        ],
    }


def valid(row: Row) -> bool | None:
    """Whether the gates accepted a proposal; None where they say nothing."""
    report = row.get("report")
    return report.get("valid") if isinstance(report, dict) else None


def _gate(row: Row) -> str:
    return str(row["report"].get("gate") or "unknown")


def _proposal_counts(rows: Sequence[Row]) -> dict[str, Any]:
    rates = [rate for row in rows if valid(row) and (rate := number(row.get("solve_rate"))) is not None]
    near = sum(abs(rate - 0.5) <= NEAR_FRONTIER for rate in rates)
    return {
        "proposed": len(rows),
        "valid": sum(valid(row) is True for row in rows),
        "rated": len(rates),
        "mean_solve_rate": sum(rates) / len(rates) if rates else None,
        "near_frontier": near,
    }


def attempt_facts(run: RunFolder) -> dict[str, Any]:
    """Outcomes of the training attempts: all together, and a row a round."""
    attempts = [attempt for _, attempt in run.attempts]
    try:
        setting = check_comparable(attempts)
    except MixedError as error:
        setting = {"device": None, "backend": None, "basis": None, "baseline": None, "problem": str(error)}
    by_round: dict[int, list[Attempt]] = {}
    for row, attempt in run.attempts:
        by_round.setdefault(run.round_of(row) or 0, []).append(attempt)
    per_round = [{"round": r, "outcomes": outcomes(group)} for r, group in sorted(by_round.items())]
    return {"total": len(attempts), **setting, "outcomes": outcomes(attempts), "per_round": per_round}


def outcomes(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Attempts by kind of outcome, "correct" among them."""
    return dict(Counter(failure_kind(attempt) or "correct" for attempt in attempts).most_common())


def seconds(steps: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Seconds by role and activity, summed over the steps; a row's own "total" is left out."""
    totals: dict[str, dict[str, float]] = {}
    for row in steps:
        spent = row.get("seconds")
        for activity, value in spent.items() if isinstance(spent, dict) else ():
            known = number(value)
            if known is not None and activity != "total":
                role = totals.setdefault(str(row.get("role")), {})
                role[str(activity)] = role.get(str(activity), 0.0) + known
    return totals
