"""The numbers of a benchmark pass, rebuilt from its files: by level, with the second verdicts, and without weak tasks.

Two scores a group: over all tasks, where one that cannot be judged here counts as n failures, as the field counts; and
over the sound ones only, without those that Keck refuses as tasks (an answer that knows nothing passes, the output does
not depend on an input, no finite output, …). A sample counts as p times faster where the interval of its speedup lies
above p, not only the point estimate. Intervals: 95 %, bootstrap over tasks.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelzero.bench.again import KERNELBENCH, TORCH_COMPILE, Key, latest
from kernelzero.bench.categories import group
from kernelzero.bench.files import UNJUDGEABLE, read_settings
from kernelzero.bench.rows import read_rows
from kernelzero.errors import UsageError
from kernelzero.metrics import pass_at_k, rate_interval, summarise
from kernelzero.records import Attempt, Status, Timing, Verdict

KS = (1, 5, 10)
PS = (0.5, 1.0, 1.5, 2.0)
REFUSED = "task_refused"
"""Kind of failure: the task cannot be judged on this device."""


@dataclasses.dataclass(frozen=True)
class PassData:
    """What the files of one pass hold."""

    settings: dict[str, Any]
    names: dict[str, str]
    """Task id → name, of all tasks that were asked for."""
    n: int
    attempts: dict[Key, Attempt]
    kernelbench: dict[Key, Verdict]
    compiled: dict[Key, Verdict]
    reports: dict[str, dict[str, Any]]
    """Task id → what Keck says of the task."""
    usage: list[dict[str, Any]]

    @property
    def refused(self) -> set[str]:
        """Tasks that cannot be judged here: their reference fails, and no sample got a verdict."""
        outcomes = {key[0] for key, a in self.attempts.items() if a.verdict.status is not Status.INFRA_ERROR}
        answered = {key[0] for key, a in self.attempts.items() if a.candidate is not None} & outcomes
        return {t for t, r in self.reports.items() if r["gate"] in UNJUDGEABLE and t not in answered}

    @property
    def unsound(self) -> set[str]:
        """Tasks that Keck would not take for training."""
        return {task_id for task_id, report in self.reports.items() if not report["valid"]}


def read_pass(folder: Path, label: str, n: int | None = None, names: Mapping[str, str] | None = None) -> PassData:
    """Read a pass. n, names: those asked for now, if not all that the pass ever had.

    Raises:
        UsageError: there is no such pass, or a line is no JSON.
    """
    settings = read_settings(folder / f"{label}.json")
    if settings is None:
        raise UsageError(f"{folder} holds no benchmark {label!r}")
    chosen, n = dict(names or settings["tasks"]), n or int(settings["n"])

    def rows(suffix: str) -> list[dict[str, Any]]:
        return read_rows(folder / f"{label}{suffix}.jsonl")

    def mine(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in found if row["task_id"] in chosen and row["sample"] < n]

    return PassData(
        settings,
        chosen,
        n,
        {(row["task_id"], row["sample"]): Attempt.from_json(row) for row in mine(rows(""))},
        latest(mine(rows(f".{KERNELBENCH.name}"))),
        latest(mine(rows(f".{TORCH_COMPILE.name}"))),
        {row["key"]: row for row in rows(".tasks") if row["key"] in chosen},
        rows(".usage"),
    )


def full_summary(data: PassData) -> dict[str, Any]:
    """All that the pass says, as plain JSON: `summarise`'s keys over all tasks, and what this module adds.

    Raises:
        MixedError: samples were judged on several devices.
    """
    judged = [a for (task_id, _), a in data.attempts.items() if task_id not in data.refused]
    groups = sorted({group(name) for name in data.names.values()})
    everything = _score(data, data.names)
    plain = summarise(judged, n=data.n, names=data.names)
    if not _counted(judged):
        plain["per_task"] = [{**row, "tokens": None} for row in plain["per_task"]]
    return {
        **plain,
        "failures": everything["failures"],
        "tokens": everything["tokens"],
        "all": everything,
        "groups": {g: _score(data, {t: name for t, name in data.names.items() if group(name) == g}) for g in groups},
        "weak_tasks": [data.reports[t] for t in data.names if t in data.unsound],
        "refused_tasks": [data.names[t] for t in data.names if t in data.refused],
        "examined": len(data.reports),
        "scale_aware": _scale_aware(data),
        "usage": _usage(data.usage),
    }


def _score(data: PassData, names: Mapping[str, str]) -> dict[str, Any]:
    score = _numbers(data, names)
    sound = {task_id: name for task_id, name in names.items() if task_id not in data.unsound | data.refused}
    if len(sound) < len(names) and sound:
        score["sound"] = {k: v for k, v in _numbers(data, sound).items() if k not in ("failures", "failures_by_task")}
    return score


def _numbers(data: PassData, names: Mapping[str, str]) -> dict[str, Any]:
    refused = data.refused & set(names)
    chosen = {key: a for key, a in data.attempts.items() if key[0] in names and key[0] not in refused}
    base = summarise(list(chosen.values()), n=data.n, names=names)
    failures = _failures(base, refused, data.n)
    tokens = base["tokens"] if _counted(chosen.values()) else None
    score = {
        "tasks": len(names),
        "n": data.n,
        "solved": sum(row["correct"] > 0 for row in base["per_task"]),
        "unavailable": base["unavailable"],
        "pass": base["pass_at_k"],
        "pass_kernelbench": _second_pass(data, names, chosen),
        "fast": None,
        "speedup": base["speedup"],
        "tokens": tokens,
        "failures": failures,
        "failures_by_task": {
            row["name"]: _of_task(row, refused, data.n) for row in base["per_task"] if row["failures"]
        },
    }
    if base["unavailable"] is None:
        score["fast"] = {"eager": fast_table(names, data.n, timed(chosen))}
        if data.compiled:
            score["fast"]["torch.compile"] = fast_table(names, data.n, _timed_again(data, chosen))
    return score


def _counted(attempts: Iterable[Attempt]) -> bool:
    """Whether somebody counted the tokens of every answer; samples made elsewhere need not say them."""
    return all(a.completion.tokens or not a.completion.text for a in attempts)


def _failures(base: Mapping[str, Any], refused: set[str], n: int) -> dict[str, int]:
    counts = Counter(base["failures"])
    if refused:
        counts[REFUSED] = len(refused) * n
        counts["missing"] -= len(refused) * n
    return {kind: count for kind, count in sorted(counts.items()) if count > 0}


def _of_task(row: Mapping[str, Any], refused: set[str], n: int) -> dict[str, int]:
    return {REFUSED: n} if row["task_id"] in refused else dict(row["failures"])


Times = Mapping[str, tuple[int, Sequence[Timing]]]
"""Task id → correct samples, and the timings of those that have one."""


def timed(attempts: Mapping[Key, Attempt]) -> Times:
    """Correct samples and their timings against eager, by task."""
    found: dict[str, tuple[int, list[Timing]]] = {}
    for (task_id, _), attempt in attempts.items():
        if attempt.verdict.status is Status.CORRECT:
            correct, timings = found.get(task_id, (0, []))
            found[task_id] = (correct + 1, timings + ([attempt.verdict.timing] if attempt.verdict.timing else []))
    return found


def _timed_again(data: PassData, attempts: Mapping[Key, Attempt]) -> Times:
    """Timings against torch.compile; a sample that has none is correct and untimed."""
    correct = {key: a for key, a in attempts.items() if a.verdict.status is Status.CORRECT}
    second = {key: data.compiled.get(key) for key in correct}
    found: dict[str, tuple[int, list[Timing]]] = {}
    for key, verdict in second.items():
        count, timings = found.get(key[0], (0, []))
        found[key[0]] = (count + 1, timings + ([verdict.timing] if verdict and verdict.timing else []))
    return found


def fast_table(
    names: Iterable[str], n: int, times: Times, ps: Sequence[float] = PS, ks: Sequence[int] = KS
) -> dict[str, Any]:
    """fast_p@k as {"1": {"fast@1": {"value", "interval", "tasks"}}}, p as text.

    Correct samples without a time are left out of n; a task with fewer than k others is left out of @k.
    """
    table: dict[str, Any] = {}
    for p in ps:
        row = {}
        for k in sorted({k for k in ks if k <= n} | {n}):
            values = []
            for task_id in names:
                correct, timings = times.get(task_id, (0, ()))
                known = n - (correct - len(timings))
                if known >= k:
                    values.append(pass_at_k(known, sum(t.speedup_low > p for t in timings), k))
            row[f"fast@{k}"] = _estimate(values) if values else None
        table[f"{p:g}"] = row
    return table


def _second_pass(data: PassData, names: Mapping[str, str], chosen: Mapping[Key, Attempt]) -> dict[str, Any] | None:
    """pass@k by KernelBench's tolerances; None where they were not asked for."""
    if not data.kernelbench:
        return None
    correct: Counter[str] = Counter()
    unknown = 0
    for key, attempt in chosen.items():
        second = data.kernelbench.get(key)
        verdict = (second or None) if KERNELBENCH.asks(attempt) else attempt.verdict
        unknown += verdict is None or not verdict.status.is_outcome
        correct[key[0]] += verdict is not None and verdict.status is Status.CORRECT
    if unknown:
        return {"unavailable": f"{unknown} samples carry no verdict by KernelBench's tolerances"}
    ks = sorted({k for k in KS if k <= data.n} | {data.n})
    return {f"pass@{k}": _estimate([pass_at_k(data.n, correct[t], k) for t in names]) for k in ks}


def _estimate(values: Sequence[float]) -> dict[str, Any]:
    interval = rate_interval(values)
    return {
        "value": sum(values) / len(values),
        "interval": None if interval is None else list(interval),
        "tasks": len(values),
    }


def _scale_aware(data: PassData) -> list[str]:
    """Tasks where an answer that computes nothing passes atol = rtol = 1e-2, so that Keck compared by scale."""
    found = {key[0] for key, a in data.attempts.items() if a.verdict.criterion == "scale-aware"}
    return [name for task_id, name in data.names.items() if task_id in found]


def _usage(rows: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """Tokens of all requests to an endpoint, those of samples that were lost included."""
    if not rows:
        return None
    parts = ("prompt_tokens", "completion_tokens")
    return {"requests": len(rows), **{part: sum(int(row[part]) for row in rows) for part in parts}}
