"""The page: one self-contained HTML file, no script, nothing loaded. All text from the run is escaped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from kernelzero.report.charts import histogram, interval_plot, line_chart, stacked_bars
from kernelzero.report.gallery import Exhibit, exhibits
from kernelzero.report.graph import draw_graph
from kernelzero.report.highlight import highlight
from kernelzero.report.reading import Row, RunFolder, number
from kernelzero.report.style import STYLE

KINDS = (
    "correct", "incorrect", "compile_error", "runtime_error", "rejected", "timeout", "no_code", "truncated", "missing",
    "unsupported", "infra_error",
)  # fmt: skip
MINUS, TIMES, DASH = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"
_MISSING = "This run folder has no {} yet."


def page(run: RunFolder, facts: Mapping[str, Any]) -> str:
    """The whole document."""
    sections = [
        _head(run, facts),
        _benchmark(facts["bench"]),
        _curves(run, _basis(facts)),
        _frontier(run, facts["proposals"]),
        _failures(facts),
        _gallery(run, _basis(facts)),
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
        return title + (problem or f'<p class="note">{_MISSING.format("benchmark")}</p>')
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
        best = "".join(f'<td class="n">{_times(row["best_speedup"] if row else None)}</td>' for row in found)
        rows.append(f"<tr><td>{escape(str(name))}</td>{solved}{best}</tr>")
    table = f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'
    return f"<details><summary>Every task</summary>{table}</details>"


def _solved(row: Mapping[str, Any] | None) -> str:
    return f"{row['correct']} of {row['n']}" if row else DASH


def _times(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}{TIMES}"


# Curves


_FRONTIER_NOTE = "1 at a solve rate of one half, 0 at none or all."
_RATE_NOTE = "What the frozen Coder solves of the valid ones; the aim is ½."
_ACCURACY_NOTE = "Share of samples that are correct; the modules change too."
_SPEEDUP_NOTE = "Of the correct samples, against PyTorch eager."


def _curves(run: RunFolder, basis: str) -> str:
    title = "<h2>Training</h2>"
    if not run.steps:
        return title + f'<p class="note">{_MISSING.format("training steps")}</p>'
    speedup = f"{basis} speedup".strip().capitalize()
    specs: list[tuple[str, str, str, str, dict[str, Any]]] = [
        ("Validity", "proposer", "validity", "Share of proposals that pass every gate.", {"low": 0, "high": 1}),
        ("Frontier reward", "proposer", "frontier", _FRONTIER_NOTE, {"low": 0, "high": 1}),
        ("Solve rate of proposals", "proposer", "solve_rate", _RATE_NOTE, {"low": 0, "high": 1, "mark": 0.5}),
        ("Accuracy", "coder", "accuracy", _ACCURACY_NOTE, {"low": 0, "high": 1}),
        (speedup, "coder", "speedup", _SPEEDUP_NOTE, {"low": 1, "high": 1, "mark": 1.0, "unit": TIMES}),
        ("KL to the start model", "coder", "kl", "Of the Coder.", {"low": 0}),
    ]
    cards = "".join(_curve(run, *spec) for spec in specs)
    legend = "<p>Dots are steps, the line is their moving mean, shaded bands are rounds.</p>"
    return f'{title}{legend}<div class="grid2">{cards}</div>'


def _curve(run: RunFolder, title: str, role: str, field: str, note: str, axis: dict[str, Any]) -> str:
    rows: list[Row] = [row for row in run.steps if row.get("role") == role]
    values = [number(row.get(field)) for row in rows]
    if not any(v is not None for v in values):
        body = f'<p class="note">No step of the {role.capitalize()} says it.</p>'
    else:
        rounds = [run.round_of(row) for row in rows]
        body = line_chart(values, rounds, **{"unit": "", "role": role.capitalize(), **axis})
    return f'<div class="card"><h3>{title}</h3><div class="note">{escape(note)}</div>{body}</div>'


# Proposals


def _frontier(run: RunFolder, proposals: Mapping[str, Any]) -> str:
    title = "<h2>Proposed modules around the frontier</h2>"
    if not proposals["proposed"]:
        return title + f'<p class="note">{_MISSING.format("proposals")}</p>'
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
        return title + f'<p class="note">{_MISSING.format("attempts")}</p>'
    used = [kind for kind in KINDS if any(kind in counts for _, counts in rows)]
    legend = "".join(f'<span><i class="key k-{kind}"></i>{kind.replace("_", " ")}</span>' for kind in used)
    return f'{title}<div class="card"><div class="legend">{legend}</div>{stacked_bars(rows, used)}</div>'


def _bench_outcomes(summary: Mapping[str, Any]) -> dict[str, int]:
    return {"correct": summary["correct"], **summary["failures"]}


# Gallery


def _gallery(run: RunFolder, basis: str) -> str:
    title = "<h2>Gallery</h2>"
    shown = exhibits(run)
    if not shown:
        return title + f'<p class="note">{_MISSING.format("rated modules to show")}</p>'
    intro = (
        f"<p>{len(shown)} of the proposed modules, near the frontier and unlike one another, each with the fastest "
        "correct kernel that the Coder wrote for it.</p>"
    )
    return title + intro + "".join(_card(exhibit, basis) for exhibit in shown)


def _card(exhibit: Exhibit, basis: str) -> str:
    chips = "".join(f'<span class="chip">{escape(api)}</span>' for api in exhibit.task.apis)
    where = f"round {exhibit.round}, " if exhibit.round is not None else ""
    graph = draw_graph(exhibit.graph) if exhibit.graph else '<p class="note">Its graph cannot be read.</p>'
    module = f"<h3>Module</h3><pre>{highlight(exhibit.task.source.strip())}</pre>"
    return (
        f'<div class="card exhibit"><div class="chips">{chips}</div>'
        f'<div class="note">{where}solved {100 * exhibit.solve_rate:.0f} % of the time</div>'
        f'<div class="parts"><div>{graph}</div><div>{module}</div>'
        f"<div>{_kernel(exhibit, basis)}</div></div></div>"
    )


def _kernel(exhibit: Exhibit, basis: str) -> str:
    if exhibit.best is None or exhibit.best.candidate is None:
        tried = f"in {exhibit.tried} attempts" if exhibit.tried else "(no attempts are recorded)"
        return f'<h3>Kernel</h3><p class="note">None was correct {tried}.</p>'
    timing = exhibit.best.verdict.timing
    speed = f", {timing.basis.value} {timing.speedup:.2f}{TIMES} against {escape(timing.baseline)}" if timing else ""
    backend = exhibit.best.candidate.backend.value.capitalize().replace("Cuda", "CUDA")
    return f"<h3>{backend} kernel{speed}</h3><pre>{highlight(exhibit.best.candidate.source.strip())}</pre>"


# About


def _about(run: RunFolder, facts: Mapping[str, Any]) -> str:
    parts = ["<h2>About this run</h2>", _time_table(facts["seconds"])]
    if facts["unreadable_lines"]:
        parts.append(f'<p class="note">{facts["unreadable_lines"]} lines of the run folder could not be read.</p>')
    if run.config:
        text = escape(json.dumps(run.config, indent=2, ensure_ascii=False))
        parts.append(f"<details><summary>Resolved configuration</summary><pre>{text}</pre></details>")
    else:
        parts.append(f'<p class="note">{_MISSING.format("config.json")}</p>')
    parts.append(
        "<footer>Everything here is rebuilt from the run folder alone; the same numbers are in summary.json. Intervals "
        "cover the choice of tasks and samples, not another training run with another seed.</footer>"
    )
    return "".join(parts)


def _time_table(seconds: Mapping[str, Mapping[str, float]]) -> str:
    if not seconds:
        return ""
    activities = list(dict.fromkeys(activity for spent in seconds.values() for activity in spent))
    head = "".join(f'<th class="n">{escape(activity)}</th>' for activity in activities)
    rows = "".join(
        f"<tr><td>{escape(role.capitalize())}</td>"
        + "".join(f'<td class="n">{_duration(spent.get(activity))}</td>' for activity in activities)
        + f'<td class="n">{_duration(sum(spent.values()))}</td></tr>'
        for role, spent in seconds.items()
    )
    table = f'<table><tr><th></th>{head}<th class="n">all</th></tr>{rows}</table>'
    return f'<h3>Where the time went</h3><div class="scroll">{table}</div>'


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"
