"""A summary as tables for people, in Markdown that reads well in a terminal too. Shares are per cent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SHOWN_TASKS = 12


def markdown(summary: Mapping[str, Any], again: str = "") -> str:
    """The tables of one pass. again: the command that judges once more what has no verdict."""
    parts = [_metrics(summary), _unavailable(summary, again), _failures(summary), _by_task(summary), _tasks(summary)]
    return "\n\n".join(part for part in [*parts, _usage(summary)] if part) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are padded."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def per_cent(estimate: Mapping[str, Any] | None) -> str:
    """ "77.2 (70.1–83.0)", or "–" where there is no number."""
    if estimate is None:
        return "–"
    ends = estimate["interval"]
    value = f"{100 * estimate['value']:.1f}"
    return value if ends is None else f"{value} ({100 * ends[0]:.1f}–{100 * ends[1]:.1f})"


def plain(estimate: Mapping[str, Any] | None, form: str, unit: str = "") -> str:
    """A mean with its interval in a given form."""
    if estimate is None:
        return "–"
    ends = estimate["interval"]
    value = f"{estimate['value']:{form}}{unit}"
    return value if ends is None else f"{value} ({ends[0]:{form}}–{ends[1]:{form}})"


def columns(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Column heading → score: each group, all of them, and the sound tasks where some are not."""
    groups = dict(summary["groups"])
    found = groups if len(groups) < 2 else {**groups, "all": summary["all"]}
    if "sound" in summary["all"]:
        found["sound tasks"] = summary["all"]["sound"]
    return found


def _metrics(summary: Mapping[str, Any]) -> str:
    scores = columns(summary)
    rows = [["tasks solved / asked", *(f"{s['solved']} / {s['tasks']}" for s in scores.values())]]
    for k in _keys(scores, "pass"):
        rows.append([k, *(per_cent((s["pass"] or {}).get(k)) for s in scores.values())])
    for k in _keys(scores, "pass_kernelbench"):
        second = [(s["pass_kernelbench"] or {}).get(k) for s in scores.values()]
        rows.append([f"{k}, KernelBench's tolerances", *map(per_cent, second)])
    for baseline in ("eager", "torch.compile"):
        for p in ("0.5", "1", "1.5", "2"):
            found = [((s["fast"] or {}).get(baseline) or {}).get(p) or {} for s in scores.values()]
            for k in sorted({k for one in found for k in one}, key=lambda k: int(k.split("@")[1])):
                against = "" if baseline == "eager" else f", against {baseline}"
                name = f"fast_{p}@{k.split('@')[1]}{against}"
                rows.append([name, *(per_cent(one.get(k)) for one in found)])
    rows.append(["speedup of solved tasks", *(plain(s["speedup"], ".2f", "×") for s in scores.values())])
    rows.append(["output tokens", *(plain(s["tokens"], ".0f") for s in scores.values())])
    about = f"{summary['backend'] or 'no'} kernels, {summary['device'] or 'nothing judged'}, n = {summary['n']}"
    basis = f", times {summary['basis']}" if summary["basis"] else ""
    return f"{about}{basis}; 95 % intervals over tasks\n\n" + table(["", *scores], rows)


def _keys(scores: Mapping[str, Mapping[str, Any]], part: str) -> list[str]:
    keys = {k for s in scores.values() for k in (s[part] or {}) if k.startswith("pass@")}
    return sorted(keys, key=lambda k: int(k.split("@")[1]))


def _unavailable(summary: Mapping[str, Any], again: str) -> str:
    lines = []
    for name, score in columns(summary).items():
        reasons = [score["unavailable"], (score["pass_kernelbench"] or {}).get("unavailable")]
        lines += [f"No pass@k for {name}: {reason}." for reason in reasons if reason]
    if lines and "unsupported" in " ".join(lines):
        lines.append(
            "What is unsupported on this device has to be judged on another: the kernels are in the run folder."
        )
    if again and any(what in line for line in lines for what in ("infrastructure", "by KernelBench's")):
        lines.append(f"To judge again what an infrastructure error left open: {again}")
    return "\n".join(lines)


def _failures(summary: Mapping[str, Any]) -> str:
    scores = {name: s for name, s in columns(summary).items() if "failures" in s}
    kinds = sorted({kind for s in scores.values() for kind in s["failures"]})
    if not kinds:
        return ""
    rows = [
        [kind, *(_share(s["failures"].get(kind, 0), s["tasks"] * s["n"]) for s in scores.values())] for kind in kinds
    ]
    return "Failures, samples and per cent of all\n\n" + table(["", *scores], rows)


def _share(count: int, asked: int) -> str:
    return f"{count} ({100 * count / asked:.1f})" if count else "0"


def _by_task(summary: Mapping[str, Any]) -> str:
    failed = summary["all"]["failures_by_task"]
    worst = sorted(failed, key=lambda name: -sum(failed[name].values()))[:_SHOWN_TASKS]
    if not worst:
        return ""
    rows = [[name, ", ".join(f"{kind} {count}" for kind, count in failed[name].items())] for name in worst]
    more = f" (the worst {len(worst)} of {len(failed)})" if len(failed) > len(worst) else ""
    return f"Tasks with failures{more}\n\n" + table(["task", "failures"], rows)


def _tasks(summary: Mapping[str, Any]) -> str:
    weak = summary["weak_tasks"]
    lines = [f"{len(weak)} of {summary['examined']} tasks would not be taken for training:"] if weak else []
    lines += [f"- {row['task']}: {row['gate']}: {row['reason']}" for row in weak]
    if summary["refused_tasks"]:
        lines.append(f"Of these {len(summary['refused_tasks'])} cannot be judged here; each counts as n failures.")
    if summary["scale_aware"]:
        named = ", ".join(summary["scale_aware"][:_SHOWN_TASKS])
        more = len(summary["scale_aware"]) - _SHOWN_TASKS
        lines.append(
            f"Zeros, the mean or another answer without computing passes 1e-2 for {len(summary['scale_aware'])} tasks, "
            f"so outputs were compared by scale: {named}{f' and {more} more' if more > 0 else ''}"
        )
    if summary["examined"] and not lines:
        lines.append(
            f"All {summary['examined']} tasks are sound: no answer without computing passes, every input counts."
        )
    return "\n".join(lines)


def _usage(summary: Mapping[str, Any]) -> str:
    usage = summary.get("usage")
    if not usage:
        return ""
    cost = f", cost {usage['cost']:.2f}" if "cost" in usage else ""
    counts = f"{usage['prompt_tokens']} prompt tokens and {usage['completion_tokens']} output tokens"
    return f"{usage['requests']} requests: {counts}{cost}"
