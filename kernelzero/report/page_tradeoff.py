"""The section of the page that draws several runs beside one another: pass@1 against fast_1@1."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kernelzero.report.charts import ParetoPoint, pareto_plot
from kernelzero.report.words import DASH, gpu_hours_text, note, percent, times


def tradeoff(found: Mapping[str, Any] | None) -> str:
    """The plot with its front, a table, and the runs that could not be drawn, each with the reason."""
    title = "<h2>Correct against fast</h2>"
    if found is None:
        return title + note(
            "No other runs were given: <code>kernelzero report RUN --with RUN2</code> draws pass@1 against fast_1@1."
        )
    drawn = [row for row in found["runs"] if row["reason"] is None]
    refused = [row for row in found["runs"] if row["reason"] is not None]
    left_out = "".join(
        f"<li><b>{escape(r['label'])}</b>{_folder(r)}: {escape(str(r['reason']))}.</li>" for r in refused
    )
    listed = f"<h3>Not drawn</h3><ul>{left_out}</ul>" if refused else ""
    if not drawn:
        return title + note("None of the runs can be drawn.") + listed
    front = sum(row["on_front"] for row in drawn)
    intro = (
        f"<p>{len(drawn)} runs after training, with 95 % intervals over the tasks. Filled points are the Pareto front "
        f"({front} of {len(drawn)}): no other run is at least as good in both and better in one. The front goes by the "
        "estimates; where intervals overlap, the order can be noise.</p>"
    )
    plot = pareto_plot([_point(row) for row in drawn], "pass@1, %", "fast_1@1, %")
    both = f'<div class="beside"><div class="card">{plot}</div><div class="card">{_table(found)}</div></div>'
    return f"{title}{intro}{both}{_differs(found)}{listed}"


def _point(row: Mapping[str, Any]) -> ParetoPoint:
    x, y = row["pass@1"], row["fast_1@1"]
    return ParetoPoint(row["label"], x["value"], x["interval"], y["value"], y["interval"], row["on_front"])


def _table(found: Mapping[str, Any]) -> str:
    names = ("alpha", "pass@1", "fast_1@1", "speedup", "GPU-hours")
    head = "".join(f'<th class="n">{name}</th>' for name in names)
    rows = "".join(map(_row, (row for row in found["runs"] if row["reason"] is None)))
    small = note("Speedup: geometric mean over the tasks solved. GPU-hours as under the time of a step.")
    return f'<div class="scroll"><table><tr><th>run</th>{head}</tr>{rows}</table></div>{small}'


def _row(row: Mapping[str, Any]) -> str:
    alpha = DASH if row["alpha"] is None else f"{row['alpha']:g}"
    front = '<span class="range">on the front</span>' if row["on_front"] else ""
    speedup = times(row["speedup"]["value"]) + _range(row["speedup"], times) if row["speedup"] else DASH
    cells = [alpha, *(_share(row[key]) for key in ("pass@1", "fast_1@1")), speedup, gpu_hours_text(row["gpu_hours"])]
    numbers = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f"<tr><td><b>{escape(row['label'])}</b>{_folder(row)}{front}</td>{numbers}</tr>"


def _share(estimate: Mapping[str, Any]) -> str:
    return percent(estimate["value"], 1) + _range(estimate, lambda end: percent(end, 1))


def _range(estimate: Mapping[str, Any], show: Any) -> str:
    ends = estimate["interval"]
    return f'<span class="range">{show(ends[0])} to {show(ends[1])}</span>' if ends else ""


def _folder(row: Mapping[str, Any]) -> str:
    return "" if row["run"] in row["label"] else f' <span class="soft">{escape(row["run"])}</span>'


def _differs(found: Mapping[str, Any]) -> str:
    if not found["differs"]:
        return note("The runs' configurations do not differ.")
    shown = ", ".join(f"<code>{escape(key)}</code>" for key in found["differs"][:12])
    more = f" and {len(found['differs']) - 12} more" if len(found["differs"]) > 12 else ""
    return note(f"The configurations differ in {shown}{more}.")
