"""Plots of a comparison as hand-written SVG files that stand alone: no libraries, crisp at any size."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f4f24", "#444444"),
    *("#6a3d9a", "#8fa800", "#b2182b", "#9ab0c4"),
)
"""The first eight are told apart with any colour vision (Okabe and Ito)."""
_PANEL_W, _PANEL_H = 420, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 34, 42
_ROW = 17
_STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px;fill:#1d2129}"
    ".soft{fill:#5c6470;font-size:11px}.title{font-weight:600;font-size:13px}.grid{stroke:#e3e6ea}"
    ".axis{stroke:#5c6470}.line{fill:none;stroke-width:2.2;stroke-linejoin:round}"
)


@dataclass(frozen=True)
class Series:
    """One line of a panel, or single points."""

    name: str
    points: Sequence[tuple[float, float]]
    """x and a share between 0 and 1."""
    published: bool = False
    """Drawn as open points with a dashed line: few are known, and another harness found them."""


def line_panels(panels: Mapping[str, Sequence[Series]], x_label: str, y_label: str) -> str:
    """One panel a title, two side by side, and one legend below; the same name has the same colour everywhere."""
    names = list(dict.fromkeys(series.name for group in panels.values() for series in group))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    across = min(2, max(1, len(panels)))
    parts = []
    for i, (title, group) in enumerate(panels.items()):
        x, y = i % across * _PANEL_W, i // across * _PANEL_H
        panel = _panel(title, group, colour, x_label, y_label)
        parts.append(f'<g transform="translate({x},{y})">{panel}</g>')
    width, top = across * _PANEL_W, math.ceil(len(panels) / across) * _PANEL_H
    open_names = {series.name for group in panels.values() for series in group if series.published}
    legend, height = _legend(names, colour, width, open_names)
    return _svg([*parts, f'<g transform="translate(0,{top})">{legend}</g>'], width, top + height)


def bars(groups: Mapping[str, Sequence[tuple[str, float]]], counts: Mapping[str, int], title: str) -> str:
    """Horizontal bars: one group a category, one bar a run. counts: tasks of the category."""
    names = list(dict.fromkeys(name for group in groups.values() for name, _ in group))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    left, right, y = 150, 560, 34.0
    parts = [f'<text class="title" x="{left}" y="18">{html.escape(title)}</text>']
    for category, group in groups.items():
        middle = y + len(group) * 7 + 4
        label = f"{category} ({counts[category]})"
        parts.append(f'<text x="{left - 8}" y="{middle:.1f}" text-anchor="end">{html.escape(label)}</text>')
        for name, value in group:
            width = (right - left) * value
            parts.append(f'<rect x="{left}" y="{y:.1f}" width="{max(width, 1):.1f}" height="11" rx="2" '
                         f'fill="{colour[name]}"><title>{html.escape(name)}: {value:.1%}</title></rect>')  # fmt: skip
            parts.append(f'<text class="soft" x="{left + width + 5:.1f}" y="{y + 9.5:.1f}">{100 * value:.0f}</text>')
            y += 14
        y += 9
    parts.append(f'<line class="axis" x1="{left}" x2="{left}" y1="28" y2="{y:.1f}"/>')
    legend, height = _legend(names, colour, 600, set())
    return _svg([*parts, f'<g transform="translate(0,{y:.0f})">{legend}</g>'], 600, y + height)


def _panel(title: str, group: Sequence[Series], colour: Mapping[str, str], x_label: str, y_label: str) -> str:
    xs = sorted({x for series in group for x, _ in series.points})
    low, high = (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] - 0.5, xs[0] + 0.5) if xs else (0.0, 1.0)
    bottom, right = _PANEL_H - _BOTTOM, _PANEL_W - _RIGHT

    def across(x: float) -> float:
        return _LEFT + (x - low) / (high - low) * (right - _LEFT)

    def up(y: float) -> float:
        return bottom - y * (bottom - _TOP)

    parts = [f'<text class="title" x="{_LEFT}" y="20">{html.escape(title)}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{up(share):.1f}" y2="{up(share):.1f}"/>')
        parts.append(
            f'<text class="soft" x="{_LEFT - 6}" y="{up(share) + 4:.1f}" text-anchor="end">{100 * share:g}</text>'
        )
    for x in _ticks(xs):
        parts.append(f'<text class="soft" x="{across(x):.1f}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text class="soft" x="{middle}" y="{bottom + 33}" text-anchor="middle">{html.escape(x_label)}</text>'
    )
    parts.append(f'<text class="soft" transform="translate(13,{(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
                 f"{html.escape(y_label)}</text>")  # fmt: skip
    parts += [_line(series, [(across(x), up(y)) for x, y in series.points], colour[series.name]) for series in group]
    return "".join(parts)


def _line(series: Series, placed: Sequence[tuple[float, float]], colour: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    dash = ' stroke-dasharray="3 4" stroke-opacity="0.6"' if series.published else ""
    line = f'<polyline class="line" stroke="{colour}"{dash} points="{points}"/>'
    if len(placed) > 12:
        return line
    fill = "#fff" if series.published else colour
    dots = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{fill}" stroke="{colour}" stroke-width="1.8">'
        f"<title>{html.escape(series.name)}: {100 * value:.1f} %</title></circle>"
        for (x, y), (_, value) in zip(placed, series.points, strict=True)
    ]
    return line + "".join(dots)


def _ticks(xs: Sequence[float]) -> list[float]:
    if len(xs) <= 6 or not xs:
        return list(xs)
    step = next(s for s in (0.25, 0.5, 1, 2, 5, 10, 1e9) if (xs[-1] - xs[0]) / s <= 6)
    return [i * step for i in range(math.ceil(xs[0] / step), math.floor(xs[-1] / step) + 1)]


def _legend(names: Sequence[str], colour: Mapping[str, str], width: float, open_names: set[str]) -> tuple[str, int]:
    """The legend in columns, and its height."""
    across = max(1, int(width // 300))
    parts = []
    for i, name in enumerate(names):
        x, y = 16 + i % across * (width / across), 14 + i // across * _ROW
        fill = "#fff" if name in open_names else colour[name]
        parts.append(f'<circle cx="{x:.0f}" cy="{y}" r="4.5" fill="{fill}" stroke="{colour[name]}" stroke-width="2"/>')
        note = " (published)" if name in open_names else ""
        parts.append(f'<text x="{x + 11:.0f}" y="{y + 4}">{html.escape(name + note)}</text>')
    return "".join(parts), 14 + math.ceil(len(names) / across) * _ROW


def _svg(parts: Sequence[str], width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}"><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )
