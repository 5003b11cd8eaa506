"""The sections of the page about training: curves over the steps, and speedups by round."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kernelzero.report.charts import line_chart, quartile_chart
from kernelzero.report.reading import Row, RunFolder, number
from kernelzero.report.words import TIMES, missing, note, percent, times

_FRONTIER_NOTE = "1 at a solve rate of one half, 0 at none or all."
_RATE_NOTE = "What the frozen Coder solves of the valid ones; the aim is ½."
_ACCURACY_NOTE = "Share of samples that are correct; the modules change too."
_SPEEDUP_NOTE = "Of the correct samples, against PyTorch eager."
_DISTINCT_NOTE = "Share of a step's valid modules that differ by normalised AST."
_ENTROPY_NOTE = "Of the APIs used: 1 is an even spread, 0 one API alone."
_SKELETON_NOTE = "Share of the valid modules with the commonest structure; a rise is a collapse."
_GAP_NOTE = "KL of the sampler's log-probabilities against the trainer's, nats a token; 0 is on-policy."
_Spec = tuple[str, str, str, str, dict[str, Any]]
_NEWER: list[_Spec] = [
    ("Distinct modules", "proposer", "distinct", _DISTINCT_NOTE, {"low": 0, "high": 1}),
    ("Entropy of the APIs", "proposer", "api_entropy", _ENTROPY_NOTE, {"low": 0, "high": 1}),
    ("Commonest skeleton", "proposer", "top_skeleton", _SKELETON_NOTE, {"low": 0, "high": 1}),
    ("Rollout gap, Proposer", "proposer", "rollout_gap", _GAP_NOTE, {"low": 0}),
    ("Rollout gap, Coder", "coder", "rollout_gap", _GAP_NOTE, {"low": 0}),
]


def curves(run: RunFolder, basis: str) -> str:
    """What each step says, a chart a number; those that only newer runs know come where a step says them."""
    title = "<h2>Training</h2>"
    if not run.steps:
        return title + missing("training steps")
    speedup = f"{basis} speedup".strip().capitalize()
    specs: list[_Spec] = [
        ("Validity", "proposer", "validity", "Share of proposals that pass every gate.", {"low": 0, "high": 1}),
        ("Frontier reward", "proposer", "frontier", _FRONTIER_NOTE, {"low": 0, "high": 1}),
        ("Solve rate of proposals", "proposer", "solve_rate", _RATE_NOTE, {"low": 0, "high": 1, "mark": 0.5}),
        ("Accuracy", "coder", "accuracy", _ACCURACY_NOTE, {"low": 0, "high": 1}),
        (speedup, "coder", "speedup", _SPEEDUP_NOTE, {"low": 1, "high": 1, "mark": 1.0, "unit": TIMES}),
        ("KL to the start model", "coder", "kl", "Of the Coder.", {"low": 0}),
    ]
    known = [spec for spec in _NEWER if _is_said(run, spec[1], spec[2])]
    unknown = list(dict.fromkeys(spec[0] for spec in _NEWER if spec not in known))
    cards = "".join(_curve(run, *spec) for spec in [*specs, *known])
    unsaid = (
        note(f"Not drawn, for no step says it: {'; '.join(name[0].lower() + name[1:] for name in unknown)}.")
        if unknown
        else ""
    )
    legend = "<p>Dots are steps, the line is their moving mean, shaded bands are rounds.</p>"
    return f'{title}{legend}<div class="grid2">{cards}</div>{unsaid}'


def _is_said(run: RunFolder, role: str, field: str) -> bool:
    return any(number(row.get(field)) is not None for row in run.steps if row.get("role") == role)


def _curve(run: RunFolder, title: str, role: str, field: str, note: str, axis: dict[str, Any]) -> str:
    rows: list[Row] = [row for row in run.steps if row.get("role") == role]
    values = [number(row.get(field)) for row in rows]
    if not any(v is not None for v in values):
        body = f'<p class="note">No step of the {role.capitalize()} says it.</p>'
    else:
        rounds = [run.round_of(row) for row in rows]
        body = line_chart(values, rounds, **{"unit": "", "role": role.capitalize(), **axis})
    return f'<div class="card"><h3>{title}</h3><div class="note">{escape(note)}</div>{body}</div>'


def speeds(found: Mapping[str, Any]) -> str:
    """Quartiles of the speedup of correct kernels, a bar a round, and the same as a table."""
    rows, basis = found["per_round"], str(found["basis"] or "")
    title = f"<h2>{f'{basis} speedups'.strip().capitalize()} by round</h2>"
    if found["problem"]:
        return title + note(f"Not drawn: {escape(found['problem'])}.")
    if not rows:
        return title + missing("correct kernels with a time")
    where = "timed on" if basis == "measured" else "modelled, not timed, on"
    intro = (
        f"<p>Correct kernels of the training, {where} {escape(str(found['device']))}, against "
        f"{escape(str(found['baseline']))}. Bars reach from the first to the third quartile, the line across is the "
        "median.</p>"
    )
    chart = quartile_chart([(str(r["round"]), r["q1"], r["median"], r["q3"]) for r in rows], TIMES, 1.0)
    head = "".join(f'<th class="n">{name}</th>' for name in ("kernels", "quartile", "median", "quartile", "faster"))
    lines = "".join(
        f'<tr><td>{r["round"]}</td><td class="n">{r["kernels"]}</td>'
        + "".join(f'<td class="n">{times(r[key])}</td>' for key in ("q1", "median", "q3"))
        + f'<td class="n">{percent(r["faster"])}</td></tr>'
        for r in rows
    )
    why = note(f"Faster: the {basis} speedup is above 1 with its whole interval.")
    table = f'<div class="scroll"><table><tr><th>round</th>{head}</tr>{lines}</table></div>{why}'
    return f'{title}{intro}<div class="grid2"><div class="card">{chart}</div><div class="card">{table}</div></div>'
