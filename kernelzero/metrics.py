"""The field's metrics over attempts: unbiased pass@k, fast_p@k, speedup, tokens, with 95 % intervals. Pure.

A sample that is missing is a failure. A sample without a verdict (infrastructure error, unsupported) is not: it makes
the number unavailable until it is judged, because neither counting it as wrong nor leaving it out would be honest.
Devices, backends, baselines and bases of time are never mixed. What the intervals do not cover: the choice of the
tasks' inputs, and another training run with another seed.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelzero.records import Attempt, Finish, Status

_Z95 = 1.959963984540054
_RESAMPLES = 2000


class MixedError(ValueError):
    """Attempts that no one number may summarise: several devices, backends, baselines or bases of time."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate that at least one of k samples is correct, from c correct ones of n.

    1 - C(n-c, k) / C(n, k) (Chen et al., 2021). Raises ValueError unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def fast_p_at_k(n: int, speedups: Sequence[float], k: int, p: float = 1.0) -> float:
    """As pass@k, where a sample counts if it is correct and more than p times as fast as the baseline.

    `speedups` holds those of the correct samples, n counts all samples. Raises ValueError for a speedup that is no
    finite positive number: a correct sample without a time has no place here, and is never a speedup of 0.
    """
    if any(s is None or not math.isfinite(s) or s <= 0 for s in speedups):
        raise ValueError("fast_p needs a finite, positive speedup for every correct sample")
    return pass_at_k(n, sum(s > p for s in speedups), k)


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a plain rate, sensible at 0 and at 1 too (Wilson, 1927). Raises ValueError for n < 1."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"a rate needs 0 <= successes <= n and n >= 1, got {successes} of {n}")
    rate, z2 = successes / n, _Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile interval of the mean over resampled tasks; None for fewer than two values.

    The same values and seed give the same interval.
    """
    if len(values) < 2:
        return None
    source, size = random.Random(seed), len(values)
    drawn = sorted(sum(source.choices(values, k=size)) / size for _ in range(_RESAMPLES))
    return drawn[round(0.025 * (_RESAMPLES - 1))], drawn[round(0.975 * (_RESAMPLES - 1))]


def rate_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the mean of rates, one a task.

    Bootstrap over tasks; where every task has the value 0, or every one 1, a bootstrap has no width and would promise
    certainty, so Wilson's interval over the tasks takes its place. None for no task.
    """
    if values and all(v in (0.0, 1.0) for v in values) and len(set(values)) == 1:
        return wilson_interval(round(sum(values)), len(values))
    return bootstrap_interval(values, seed=seed)


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers. Raises ValueError for none."""
    if not values:
        raise ValueError("no values to take the mean of")
    return math.exp(sum(math.log(v) for v in values) / len(values))


def failure_kind(attempt: Attempt) -> str | None:
    """None for a correct attempt; else its status, "no_code", or "truncated" where the answer was cut off by length."""
    if attempt.verdict.status is Status.CORRECT:
        return None
    if attempt.candidate is None and attempt.verdict.status.is_outcome:
        return "truncated" if attempt.completion.finish is Finish.LENGTH else "no_code"
    return attempt.verdict.status.value


def summarise(
    attempts: Sequence[Attempt], *, n: int, names: Mapping[str, str] | None = None, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, Any]:
    """All metrics of one benchmark pass as plain JSON.

    n: samples asked of each task; a task with fewer has that many failures more. names: task id → name of every task
    asked for, so that one without a single sample counts too. ks: those k ≤ n are reported, and n itself.
    `pass_at_k` and what follows from it is None, with `unavailable` saying why, where samples carry no verdict.
    Raises MixedError where devices, backends, baselines or bases differ, ValueError for more than n samples of a task.
    """
    named = dict(names or {a.task_id: a.task_id for a in attempts})
    setting = check_comparable(attempts)
    by_task = _grouped(attempts, named, n)
    table = [_task_row(task_id, named[task_id], by_task[task_id], n) for task_id in named]
    ks = sorted({k for k in ks if k <= n} | {n})
    summary = {**setting, "tasks": len(named), "n": n, **_counts(attempts, len(named) * n), "per_task": table}
    no_verdict = summary["infra_errors"] + summary["unsupported"]
    if no_verdict or not named:
        summary["unavailable"] = _why_unavailable(summary) if named else "no tasks"
        return {**summary, "pass_at_k": None, "fast_1_at_1": None, **_costs(attempts, table)}
    rates = {f"pass@{k}": _estimate([pass_at_k(n, row["correct"], k) for row in table]) for k in ks}
    return {**summary, "unavailable": None, "pass_at_k": rates, "fast_1_at_1": _fast(table), **_costs(attempts, table)}


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Differences between two summaries, paired by task, each with a 95 % bootstrap interval over tasks.

    A metric that one side lacks is left out. `beyond_noise` is True where the interval leaves out no change. Raises
    MixedError where device, backend, baseline or basis differ, and where the tasks do.
    """
    for key in ("device", "backend", "basis", "baseline"):
        if before[key] and after[key] and before[key] != after[key]:
            raise MixedError(f"before and after differ in {key}: {before[key]} and {after[key]}")
    first, second = ({row["task_id"]: row for row in side["per_task"]} for side in (before, after))
    if set(first) != set(second):
        raise MixedError("before and after were sampled on different tasks")
    pairs = [(first[task_id], second[task_id]) for task_id in first]
    changes = {}
    if before["pass_at_k"] and after["pass_at_k"]:
        changes.update(_rate_changes(before, after, pairs))
    speedups = [(a["speedup"], b["speedup"]) for a, b in pairs if a["speedup"] and b["speedup"]]
    if speedups:
        changes["speedup_ratio"] = _change([math.log(b / a) for a, b in speedups], math.exp, no_change=1.0)
    tokens = [(a["tokens"], b["tokens"]) for a, b in pairs if a["tokens"] is not None and b["tokens"] is not None]
    if tokens:
        changes["tokens"] = _change([b - a for a, b in tokens])
    return changes


def check_comparable(attempts: Sequence[Attempt]) -> dict[str, str | None]:
    """The one device, backend, basis and baseline of the attempts, None where nothing says. Raises MixedError.

    Answers without code, and those that an infrastructure error kept from being judged, were judged on no device.
    """
    judged = [a.verdict for a in attempts if a.candidate is not None and a.verdict.status is not Status.INFRA_ERROR]
    timings = [v.timing for v in judged if v.timing]
    return {
        "device": _only("devices", [v.device for v in judged]),
        "backend": _only("backends", [v.backend.value for v in judged]),
        "basis": _only("bases of time", [t.basis.value for t in timings]),
        "baseline": _only("baselines", [t.baseline for t in timings]),
    }


def _only(what: str, values: Sequence[str]) -> str | None:
    distinct = sorted(set(values))
    if len(distinct) > 1:
        raise MixedError(f"one number cannot summarise several {what}: {', '.join(distinct)}")
    return distinct[0] if distinct else None


def _grouped(attempts: Sequence[Attempt], named: Mapping[str, str], n: int) -> dict[str, list[Attempt]]:
    groups: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.task_id not in named:
            raise ValueError(f"an attempt at task {attempt.task_id}, which is not one of the tasks")
        groups[attempt.task_id].append(attempt)
    if any(len(group) > n for group in groups.values()):
        raise ValueError(f"a task has more than n = {n} samples")
    return groups


def _task_row(task_id: str, name: str, group: Sequence[Attempt], n: int) -> dict[str, Any]:
    correct = [a.verdict for a in group if a.verdict.status is Status.CORRECT]
    timings = [v.timing for v in correct if v.timing]
    speedups = [t.speedup for t in timings]
    return {
        "task_id": task_id,
        "name": name,
        "n": n,
        "samples": len(group),
        "correct": len(correct),
        "timed": len(timings),
        "faster": sum(t.is_faster for t in timings),
        "speedup": geometric_mean(speedups) if speedups else None,
        "best_speedup": max(speedups, default=None),
        "tokens": _mean([a.completion.tokens for a in group]) if group else None,
        "failures": _failures(group, n),
    }


def _failures(group: Sequence[Attempt], asked: int) -> dict[str, int]:
    kinds = Counter(kind for kind in map(failure_kind, group) if kind)
    if asked > len(group):
        kinds["missing"] = asked - len(group)
    return dict(sorted(kinds.items()))


def _counts(attempts: Sequence[Attempt], asked: int) -> dict[str, Any]:
    statuses = Counter(a.verdict.status for a in attempts)
    correct = [a for a in attempts if a.verdict.status is Status.CORRECT]
    return {
        "samples": len(attempts),
        "missing": max(asked - len(attempts), 0),
        "correct": len(correct),
        "untimed_correct": sum(a.verdict.timing is None for a in correct),
        "infra_errors": statuses[Status.INFRA_ERROR],
        "unsupported": statuses[Status.UNSUPPORTED],
        "failures": _failures(attempts, asked),
    }


def _why_unavailable(summary: Mapping[str, Any]) -> str:
    parts = [(summary["infra_errors"], "infrastructure errors"), (summary["unsupported"], "unsupported on this device")]
    listed = ", ".join(f"{count} {what}" for count, what in parts if count)
    return f"{sum(c for c, _ in parts)} of {summary['samples']} samples carry no verdict ({listed})"


def _estimate(values: Sequence[float]) -> dict[str, Any]:
    return {"value": _mean(values), "interval": _listed(rate_interval(values))}


def _fast(table: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """fast_1@1; samples that are correct but untimed are left out (their count is `untimed_correct`).

    A sample counts as faster where the interval of its speedup lies above 1, not only the point estimate.
    """
    values = []
    for row in table:
        known = row["n"] - (row["correct"] - row["timed"])
        if known:
            values.append(pass_at_k(known, row["faster"], 1))
    return {**_estimate(values), "tasks": len(values)} if values else None


def _costs(attempts: Sequence[Attempt], table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric mean speedup over solved tasks, and mean output tokens; both need no complete set of verdicts."""
    speedups = [row["speedup"] for row in table if row["speedup"]]
    tokens = [row["tokens"] for row in table if row["tokens"] is not None]
    speedup = None
    if speedups:
        ends = bootstrap_interval([math.log(s) for s in speedups])
        interval = None if ends is None else [math.exp(end) for end in ends]
        speedup = {"value": geometric_mean(speedups), "interval": interval, "tasks": len(speedups)}
    return {
        "speedup": speedup,
        "tokens": {"value": _mean(tokens), "interval": _listed(bootstrap_interval(tokens))} if tokens else None,
        "truncated": sum(a.completion.finish is Finish.LENGTH for a in attempts),
    }


def _rate_changes(before: Mapping[str, Any], after: Mapping[str, Any], pairs: Sequence[tuple]) -> dict[str, Any]:
    changes = {}
    for name in (key for key in before["pass_at_k"] if key in after["pass_at_k"]):
        k = int(name.split("@")[1])
        rates = [[pass_at_k(row["n"], row["correct"], k) for row in pair] for pair in pairs]
        changes[name] = _change([b - a for a, b in rates])
    if before["fast_1_at_1"] and after["fast_1_at_1"]:
        known = [pair for pair in pairs if all(row["timed"] == row["correct"] for row in pair)]
        if known:
            changes["fast_1@1"] = _change([b["faster"] / b["n"] - a["faster"] / a["n"] for a, b in known])
    return changes


def _change(
    differences: Sequence[float], back: Callable[[float], float] = float, no_change: float = 0.0
) -> dict[str, Any]:
    """Mean difference with its interval, and whether it is more than noise.

    Fewer than six tasks prove nothing: even if all of them agree, a sign test gives p > 0.05.
    """
    interval = bootstrap_interval(differences)
    ends = None if interval is None else [back(interval[0]), back(interval[1])]
    beyond = ends is not None and len(differences) >= 6 and not ends[0] <= no_change <= ends[1]
    return {
        "value": back(_mean(differences)),
        "interval": ends,
        "beyond_noise": beyond,
        "tasks": len(differences),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)
