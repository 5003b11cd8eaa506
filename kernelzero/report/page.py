"""The page: one self-contained HTML file, no script, nothing loaded. All text from the run is escaped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from kernelzero.report.charts import histogram, interval_plot, stacked_bars
from kernelzero.report.page_modules import evolution, gallery
from kernelzero.report.page_time import step_time
from kernelzero.report.page_tradeoff import tradeoff
from kernelzero.report.page_training import curves, speeds
from kernelzero.report.reading import RunFolder, number
from kernelzero.report.style import STYLE
from kernelzero.report.words import DASH, MINUS, TIMES, missing, times

KINDS = (
    "correct", "incorrect", "compile_error", "runtime_error", "rejected", "timeout", "no_code", "truncated", "missing",
    "unsupported", "infra_error",
)  # fmt: skip


def page(run: RunFolder, facts: Mapping[str, Any]) -> str:
    """The whole document."""
    sections = [
        _head(run, facts),
        _benchmark(facts["bench"]),
        curves(run, _basis(facts)),
        speeds(facts["speeds"]),
        step_time(facts["time"], facts["seconds"]),
        tradeoff(facts.get("tradeoff")),
        _frontier(run, facts["proposals"]),
        _failures(facts),
        evolution(run),
        gallery(run, _basis(facts)),
        _about(run, facts),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>KernelZero run {escape(run.folder.resolve().name)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _basis(facts: Mapping[str, Any]) -> str:
    """ "modelled" or "measured", "" where no time was taken: the word to put before "speedup"."""
    sides = [facts["bench"][side] for side in ("after", "before") if facts["bench"][side]]
    return next((s["basis"] for s in [*sides, facts["attempts"]] if s["basis"]), "")


def _head(run: RunFolder, facts: Mapping[str, Any]) -> str:
    bench = facts["bench"]["after"] or facts["bench"]["before"] or facts["attempts"]
    chips = [f"{facts['rounds']} rounds"]
    chips += [f"{count} {role} steps" for role, count in facts["steps"].items()]
    chips += [f"judged on: {bench['device']}"] if bench["device"] else []
    chips += [f"backend: {bench['backend']}"] if bench["backend"] else []
    chips += [f"speed: {_basis(facts)}"] if _basis(facts) else []
    headline = escape(facts["headline"]).replace(" %", "&nbsp;%")
    listed = "".join(f'<span class="chip">{escape(chip)}</span>' for chip in chips)
    return (
        f"<h1>KernelZero · {escape(run.folder.resolve().name)}</h1>"
        f'<p class="headline {facts["outcome"]}">{headline}</p><div class="chips">{listed}</div>'
        f"{_modelled_note(_basis(facts))}"
    )


def _modelled_note(basis: str) -> str:
    if basis != "modelled":
        return ""
    return (
        '<p class="note">Correctness was found by running every kernel. Speed is <b>modelled</b> from the bytes, '
        "operations and launches counted on a CPU; no GPU was timed.</p>"
    )


# Benchmark


def _benchmark(bench: Mapping[str, Any]) -> str:
    title = "<h2>Benchmark before and after</h2>"
    before, after = bench["before"], bench["after"]
    text = bench["problem"] or ""
    problem = f'<p class="note">{escape(text[:1].upper() + text[1:])}.</p>' if text else ""
    if not before and not after:
        return title + (problem or missing("benchmark"))
    some = after or before
    intro = (
        f"<p>{some['tasks']} tasks, {some['n']} samples each, one shot. Intervals are 95 %, "
        "by resampling the tasks; a difference is called a change only where its own interval, paired by task, "
        "leaves out no change.</p>"
    )
    rows = "".join(filter(None, (_metric_row(*spec, bench) for spec in _metrics(some))))
    keys = "".join(f'<span><i class="key {side}"></i>{side}</span>' for side in ("before", "after"))
    key = f'<div class="legend wide">{keys}</div>'
    head = (
        '<tr><th>metric</th><th class="n">before</th><th class="n">after</th><th class="wide"></th>'
        "<th>difference</th></tr>"
    )
    table = f'<div class="scroll"><table class="metrics">{head}{rows}</table></div>'
    return title + intro + problem + key + table + _task_table(bench)


Format = Callable[[float], str]


def _metrics(summary: Mapping[str, Any]) -> list[tuple[str, str, Callable[[Mapping], Any], str, bool]]:
    """Name, kind of number, how to find it in a summary, its name among the changes, whether more is better."""
    names = summary["pass_at_k"] or dict.fromkeys(("pass@1", f"pass@{summary['n']}"))
    rates = [(name, "rate", _rate(name), name, True) for name in names]
    basis = summary["basis"] or ""
    return [
        *rates,
        ("fast_1@1", "rate", lambda s: s["fast_1_at_1"], "fast_1@1", True),
        (f"{basis} speedup, geometric mean".strip(), "ratio", lambda s: s["speedup"], "speedup_ratio", True),
        ("output tokens, mean", "count", lambda s: s["tokens"], "tokens", False),
    ]


def _rate(name: str) -> Callable[[Mapping], Any]:
    return lambda summary: (summary["pass_at_k"] or {}).get(name)


_NOTES = {
    "pass@1": "correct at the first try",
    "fast_1@1": "correct and faster than eager",
    "tokens": "fewer is cheaper, not better or worse",
    "speedup_ratio": "over the tasks solved; difference on tasks solved both times",
}


def _metric_row(
    name: str, kind: str, find: Callable[[Mapping], Any], change: str, more_is_better: bool, bench: Mapping[str, Any]
) -> str:
    estimates = [find(bench[side]) if bench[side] else None for side in ("before", "after")]
    note = _NOTES.get(change, f"at least one of {change.split('@')[1]} correct" if change.startswith("pass@") else "")
    labelled = zip(("before", "after"), estimates, strict=True)
    cells = "".join(f'<td class="n" data-l="{side}">{_estimate(e, kind)}</td>' for side, e in labelled)
    known = [e for e in estimates if e]
    plot = _interval_cell(known, kind) if len(known) == 2 else ""
    difference = _difference(bench["changes"].get(change), change, kind, more_is_better)
    return (
        f'<tr><td><b>{escape(name)}</b><span class="range wide">{escape(note)}</span></td>{cells}'
        f'<td class="wide">{plot}</td><td data-l="difference:">{difference}</td></tr>'
    )


def _interval_cell(estimates: Sequence[Mapping[str, Any]], kind: str) -> str:
    ends = [end for e in estimates for end in (e["interval"] or [e["value"]])]
    low, high = (0.0, 1.0) if kind == "rate" else (min(ends), max(ends))
    (a, b) = ((e["value"], e["interval"]) for e in estimates)
    return interval_plot(a, b, low, high)


def _estimate(estimate: Mapping[str, Any] | None, kind: str) -> str:
    if estimate is None:
        return '<span class="soft">none</span>'
    show = _formats()[kind]
    ends = estimate["interval"]
    interval = f'<span class="range">{show(ends[0])} to {show(ends[1])}</span>' if ends else ""
    return f"<b>{show(estimate['value'])}</b>{interval}"


def _formats() -> dict[str, Format]:
    return {
        "rate": lambda v: f"{100 * v:.1f} %",
        "ratio": lambda v: f"{v:.2f}{TIMES}",
        "count": lambda v: f"{v:.0f}",
    }


def _difference(change: Mapping[str, Any] | None, name: str, kind: str, more_is_better: bool) -> str:
    if change is None:
        return '<span class="soft">not to be had</span>'
    show = _formats()[kind] if name == "speedup_ratio" else _signed(kind)
    ends = change["interval"]
    range_ = f'<span class="range">{show(ends[0])} to {show(ends[1])}</span>' if ends else ""
    if not change["beyond_noise"]:
        return f"within noise{range_}"
    is_ratio = name == "speedup_ratio"
    up = change["value"] > (1 if is_ratio else 0)
    tone = ("good" if up else "bad") if more_is_better else ""
    text = show(change["value"]) if is_ratio else show(abs(change["value"])).lstrip("+")
    return f'<span class="{tone}">{"rise" if up else "fall"} {"to" if is_ratio else "of"} {text}</span>{range_}'


def _signed(kind: str) -> Format:
    text: Format = (lambda v: f"{100 * v:+.1f} points") if kind == "rate" else (lambda v: f"{v:+.0f}")
    return lambda v: text(v).replace("-", MINUS)


def _task_table(bench: Mapping[str, Any]) -> str:
    sides = [{row["task_id"]: row for row in bench[s]["per_task"]} if bench[s] else {} for s in ("before", "after")]
    ids = list(dict.fromkeys([*sides[0], *sides[1]]))
    basis = (bench["after"] or bench["before"])["basis"] or ""
    head = (
        '<tr><th>task</th><th class="n">correct before</th><th class="n">correct after</th>'
        f'<th class="n">best {basis} speedup before</th><th class="n">after</th></tr>'
    )
    rows = []
    for task_id in ids:
        found = [side.get(task_id) for side in sides]
        name = next(row["name"] for row in found if row)
        solved = "".join(f'<td class="n">{_solved(row)}</td>' for row in found)
        best = "".join(f'<td class="n">{times(row["best_speedup"] if row else None)}</td>' for row in found)
        rows.append(f"<tr><td>{escape(str(name))}</td>{solved}{best}</tr>")
    table = f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'
    return f"<details><summary>Every task</summary>{table}</details>"


def _solved(row: Mapping[str, Any] | None) -> str:
    return f"{row['correct']} of {row['n']}" if row else DASH


# Proposals


def _frontier(run: RunFolder, proposals: Mapping[str, Any]) -> str:
    title = "<h2>Proposed modules around the frontier</h2>"
    if not proposals["proposed"]:
        return title + missing("proposals")
    intro = (
        f"<p>{proposals['proposed']} proposals, {proposals['valid']} valid, {proposals['rated']} tried by the frozen "
        "Coder. The Proposer is paid for modules that are solved half of the time (dashed).</p>"
    )
    cards = "".join(_round_card(run, counts) for counts in proposals["per_round"])
    gates = proposals["refused_by"]
    refused = ""
    if gates:
        most = max(gates.values())
        lines = "".join(_gate_line(gate, count, most) for gate, count in gates.items())
        bars = f'<h3>Refused by gate</h3><div class="bars">{lines}</div>'
        refused = f'<div class="card exhibit">{bars}</div>'
    return f'{title}{intro}<div class="grid3">{cards}</div>{refused}'


def _gate_line(gate: str, count: int, most: int) -> str:
    bar = f'<span class="stack"><span class="seg k-plain" style="width:{100 * count / most:.1f}%"></span></span>'
    label = f'<span class="barlabel">{escape(gate.replace("_", " "))}</span>'
    return f'<div class="barline">{label}{bar}<span class="barcount">{count}</span></div>'


def _round_card(run: RunFolder, counts: Mapping[str, Any]) -> str:
    rows = [row for row in run.proposals if run.round_of(row) == counts["round"]]
    rates = [rate for row in rows if (rate := number(row.get("solve_rate"))) is not None]
    heading = f"Round {counts['round']}"
    if not counts["rated"]:
        return f'<div class="card"><h3>{heading}</h3><p class="note">No module was tried.</p></div>'
    text = (
        f"{counts['valid']} of {counts['proposed']} valid; mean solve rate {counts['mean_solve_rate']:.2f}; "
        f"{100 * counts['near_frontier'] / counts['rated']:.0f} % within ¼ of ½"
    )
    return f'<div class="card">{histogram(rates, heading)}<div class="note">{text}</div></div>'


# Failures


def _failures(facts: Mapping[str, Any]) -> str:
    title = "<h2>What became of the Coder's answers</h2>"
    rows = [(f"bench {s}", _bench_outcomes(facts["bench"][s])) for s in ("before", "after") if facts["bench"][s]]
    rows += [(f"round {r['round']}", r["outcomes"]) for r in facts["attempts"]["per_round"]]
    rows = [(label, counts) for label, counts in rows if sum(counts.values())]
    if not rows:
        return title + missing("attempts")
    used = [kind for kind in KINDS if any(kind in counts for _, counts in rows)]
    legend = "".join(f'<span><i class="key k-{kind}"></i>{kind.replace("_", " ")}</span>' for kind in used)
    return f'{title}<div class="card"><div class="legend">{legend}</div>{stacked_bars(rows, used)}</div>'


def _bench_outcomes(summary: Mapping[str, Any]) -> dict[str, int]:
    return {"correct": summary["correct"], **summary["failures"]}


# About


def _about(run: RunFolder, facts: Mapping[str, Any]) -> str:
    parts = ["<h2>About this run</h2>"]
    if facts["unreadable_lines"]:
        parts.append(f'<p class="note">{facts["unreadable_lines"]} lines of the run folder could not be read.</p>')
    if run.config:
        text = escape(json.dumps(run.config, indent=2, ensure_ascii=False))
        parts.append(f"<details><summary>Resolved configuration</summary><pre>{text}</pre></details>")
    else:
        parts.append(missing("config.json"))
    parts.append(
        "<footer>Everything here is rebuilt from the run folder alone; the same numbers are in summary.json. Intervals "
        "cover the choice of tasks and samples, not another training run with another seed.</footer>"
    )
    return "".join(parts)
