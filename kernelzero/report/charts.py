"""Charts as hand-written SVG: crisp at any size, coloured by the page's style so that dark mode works."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 420, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 22, 34


def line_chart(
    values: Sequence[float | None],
    rounds: Sequence[int | None],
    *,
    unit: str,
    role: str,
    low: float | None = None,
    high: float | None = None,
    mark: float | None = None,
) -> str:
    """One value a step with the moving mean over it; rounds are bands; `mark` is a line to compare with.

    values: one a step, None where there is none. rounds: of the same length. low, high: ends of the axis if fixed.
    """
    known = [v for v in values if v is not None]
    ticks = _ticks(min([*known, low] if low is not None else known), max([*known, high] if high is not None else known))
    x = _scale(0.5, max(len(values), 1) + 0.5, _LEFT, _WIDTH - _RIGHT)
    y = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    points = [(x(i + 1), y(v), v, i + 1) for i, v in enumerate(values) if v is not None]
    parts = [_bands(rounds, x), _y_axis(ticks, y, unit), _x_axis(len(values), x, f"{role} step")]
    if mark is not None and ticks[0] <= mark <= ticks[-1]:
        parts.append(f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')
    window = max(1, len(points) // 8)
    mean = _moving_mean([v for _, _, v, _ in points], window)
    dots = [f'<circle class="dot {role}" cx="{px:.1f}" cy="{py:.1f}" r="{3.2 if len(points) < 60 else 2}">'
            f"<title>step {i}: {_number(v)}{unit}</title></circle>" for px, py, v, i in points]  # fmt: skip
    line = " ".join(f"{px:.1f},{y(m):.1f}" for (px, *_), m in zip(points, mean, strict=True))
    return _svg([*parts, f'<polyline class="line {role}" points="{line}"/>', *dots], f"{role} {unit}")


def _moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Centred mean over 2·(window // 2) + 1 values, fewer at the ends."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def histogram(rates: Sequence[float], title: str) -> str:
    """Solve rates in [0, 1] as bars of counts, one half marked; the bars follow the values where these are few."""
    distinct = sorted(set(rates))
    step = _common_step(distinct)
    bins = round(1 / step) + 1
    counts = [0] * bins
    for rate in rates:
        counts[min(bins - 1, int(rate / step + 0.5))] += 1
    height = 170
    x = _scale(-0.5, bins - 0.5, 34, 250)
    y = _scale(0, max(counts), height - _BOTTOM, 26)
    width = max(2.0, (250 - 34) / bins - 3)
    bars = [
        f'<rect class="bar" x="{x(i) - width / 2:.1f}" y="{y(c):.1f}" width="{width:.1f}" '
        f'height="{y(0) - y(c):.1f}" rx="2"><title>solve rate {i * step:.2f}: {c}</title></rect>'
        + (f'<text class="tick middle" x="{x(i):.1f}" y="{y(c) - 3:.1f}">{c}</text>' if bins <= 12 else "")
        for i, c in enumerate(counts)
        if c
    ]
    half = x((bins - 1) / 2)
    axis = [f'<line class="axis" x1="34" x2="250" y1="{y(0):.1f}" y2="{y(0):.1f}"/>']
    axis += [f'<line class="mark" x1="{half:.1f}" x2="{half:.1f}" y1="20" y2="{y(0):.1f}"/>']
    axis += [f'<text class="tick middle" x="{x(at * (bins - 1)):.1f}" y="{height - 18}">{text}</text>'
             for at, text in ((0, "0"), (0.5, "½"), (1, "1"))]  # fmt: skip
    heading = f'<text class="title" x="34" y="12">{html.escape(title)}</text>'
    label = f'<text class="tick middle" x="142" y="{height - 3}">solve rate</text>'
    return _svg([heading, *axis, *bars, label], title, 260, height, "chart histogram")


def _common_step(distinct: Sequence[float]) -> float:
    """The step 1/m, m ≤ 10, of which all values are multiples; 1/10 where there is none."""
    for m in range(2, 11):
        if all(abs(v * m - round(v * m)) < 1e-6 for v in distinct):
            return 1 / m
    return 0.1


def stacked_bars(rows: Sequence[tuple[str, Mapping[str, int]]], kinds: Sequence[str]) -> str:
    """Shares of outcomes, one bar a row, with its number of samples. HTML, so that text keeps its size on phones."""
    lines = []
    for label, counts in rows:
        total = sum(counts.values())
        parts = [
            f'<span class="seg k-{html.escape(kind)}" style="width:{100 * counts[kind] / total:.2f}%" '
            f'title="{html.escape(kind)}: {counts[kind]} of {total}"></span>'
            for kind in kinds
            if counts.get(kind)
        ]
        lines.append(
            f'<div class="barline"><span class="barlabel">{html.escape(label)}</span>'
            f'<span class="stack">{"".join(parts)}</span><span class="barcount">{total}</span></div>'
        )
    return f'<div class="bars">{"".join(lines)}</div>'


def interval_plot(before: tuple[float, Sequence[float] | None], after: tuple[float, Sequence[float] | None],
                  low: float, high: float) -> str:  # fmt: skip
    """Two estimates with their intervals on one scale, before above after."""
    x = _scale(low, high, 6, 134)
    parts = ['<line class="grid" x1="6" x2="134" y1="29.5" y2="29.5"/>']
    for name, (value, interval), y in (("before", before, 9), ("after", after, 20)):
        ends = interval or (value, value)
        parts.append(f'<line class="whisker {name}" x1="{x(ends[0]):.1f}" x2="{x(ends[1]):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="point {name}" cx="{x(value):.1f}" cy="{y}" r="4"/>')
    return f'<svg class="interval" viewBox="0 0 140 30" role="img" aria-label="intervals">{"".join(parts)}</svg>'


@dataclass(frozen=True)
class ParetoPoint:
    """A run in the plane of two shares, 0 to 1, each with its 95 % interval if there is one."""

    label: str
    x: float
    x_interval: Sequence[float] | None
    y: float
    y_interval: Sequence[float] | None
    on_front: bool


def pareto_plot(points: Sequence[ParetoPoint], x_label: str, y_label: str) -> str:
    """Points with their intervals as crosses, names beside them, the front's points filled and joined. Axes in %."""
    width, height, left, bottom = 460, 340, 52, 40
    across = [100 * end for p in points for end in (p.x, *(p.x_interval or ()))]
    up = [100 * end for p in points for end in (p.y, *(p.y_interval or ()))]
    x_ticks, y_ticks = _ticks(min(across), max(across)), _ticks(min(up), max(up))
    x = _scale(x_ticks[0] / 100, x_ticks[-1] / 100, left, width - 16)
    y = _scale(y_ticks[0] / 100, y_ticks[-1] / 100, height - bottom, 14)
    parts = [f'<line class="grid" x1="{left}" x2="{width - 16}" y1="{y(t / 100):.1f}" y2="{y(t / 100):.1f}"/>'
             f'<text class="tick end" x="{left - 6}" y="{y(t / 100) + 4:.1f}">{_number(t)}</text>'
             for t in y_ticks]  # fmt: skip
    parts += [f'<line class="grid" x1="{x(t / 100):.1f}" x2="{x(t / 100):.1f}" y1="14" y2="{height - bottom}"/>'
              f'<text class="tick middle" x="{x(t / 100):.1f}" y="{height - bottom + 16}">{_number(t)}</text>'
              for t in x_ticks]  # fmt: skip
    parts.append(f'<text class="tick middle" x="{(left + width) / 2}" y="{height - 4}">{html.escape(x_label)}</text>')
    parts.append(f'<text class="tick middle" transform="translate(13,{(height - bottom) / 2}) rotate(-90)">'
                 f"{html.escape(y_label)}</text>")  # fmt: skip
    front = sorted((p.x, -p.y) for p in points if p.on_front)
    if len(front) > 1:
        line = " ".join(f"{x(a):.1f},{y(-b):.1f}" for a, b in front)
        parts.append(f'<polyline class="front" points="{line}"/>')
    placed = [(x(p.x), y(p.y)) for p in points]
    parts += [_cross(p, x, y) for p in points]
    parts += _labels([p.label for p in points], placed, width - 8)
    return _svg(parts, f"{y_label} against {x_label}", width, height, "chart pareto")


def _cross(point: ParetoPoint, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    side = "front" if point.on_front else "behind"
    left, right = point.x_interval or (point.x, point.x)
    low, high = point.y_interval or (point.y, point.y)
    px, py = x(point.x), y(point.y)
    lines = (
        f'<line class="whisker {side}" x1="{x(left):.1f}" x2="{x(right):.1f}" y1="{py:.1f}" y2="{py:.1f}"/>'
        f'<line class="whisker {side}" x1="{px:.1f}" x2="{px:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
    )
    return (
        f'{lines}<circle class="point {side}" cx="{px:.1f}" cy="{py:.1f}" r="5.5">'
        f"<title>{html.escape(point.label)}: {100 * point.x:.1f} %, {100 * point.y:.1f} %</title></circle>"
    )


def _labels(labels: Sequence[str], at: Sequence[tuple[float, float]], right: float) -> list[str]:
    """Each label at the first of eight places beside its point where it covers neither a point nor another label."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in at]
    texts = []
    for label, (x, y) in zip(labels, at, strict=True):
        shown = label if len(label) <= 44 else label[:43] + "…"
        wide = 6.6 * len(shown)
        places = [(x + dx if dx > 0 else x + dx - wide, y + dy)
                  for dy in (-9, 17, -24, 32) for dx in (9, -9)]  # fmt: skip
        boxes = [(a, b - 11, a + wide, b + 3) for a, b in places]
        inside = [box for box in boxes if box[0] >= 4 and box[2] <= right and box[1] >= 2]
        free = [box for box in inside if not any(_overlap(box, other) for other in taken)]
        box = next(iter(free or inside or boxes))
        taken.append(box)
        texts.append(f'<text class="who" x="{box[0]:.1f}" y="{box[3] - 3:.1f}">{html.escape(shown)}</text>')
    return texts


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def quartile_chart(rows: Sequence[tuple[str, float, float, float]], unit: str, mark: float) -> str:
    """A bar from the first to the third quartile with the median across it, one a row; `mark` is a line."""
    values = [v for _, *three in rows for v in three] + [mark]
    ticks = _ticks(min(values), max(values))
    x = _scale(0.5, len(rows) + 0.5, _LEFT, _WIDTH - _RIGHT)
    y = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    half = min(20.0, (_WIDTH - _LEFT - _RIGHT) / len(rows) * 0.32)
    parts = [_y_axis(ticks, y, unit)]
    parts.append(f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')
    every = max(1, math.ceil(len(rows) / 12))
    for i, (label, low, median, high) in enumerate(rows):
        at = x(i + 1)
        said = f"{html.escape(label)}: median {_number(median)}{unit}, quartiles {_number(low)} and {_number(high)}"
        parts.append(f'<rect class="box" x="{at - half:.1f}" y="{y(high):.1f}" width="{2 * half:.1f}" '
                     f'height="{max(1.0, y(low) - y(high)):.1f}" rx="2"><title>{said}</title></rect>')  # fmt: skip
        parts.append(f'<line class="median" x1="{at - half:.1f}" x2="{at + half:.1f}" '
                     f'y1="{y(median):.1f}" y2="{y(median):.1f}"/>')  # fmt: skip
        if i % every == 0:
            text = html.escape(label)
            parts.append(f'<text class="tick middle" x="{at:.1f}" y="{_HEIGHT - 19}">{text}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="tick middle" x="{middle:.0f}" y="{_HEIGHT - 4}">round</text>')
    return _svg(parts, "speedups by round")


def _scale(a: float, b: float, start: float, end: float) -> Callable[[float], float]:
    span = (b - a) or 1.0
    return lambda value: start + (value - a) / span * (end - start)


def _ticks(low: float, high: float) -> list[float]:
    """Four to six round numbers that cover the range."""
    span = (high - low) or abs(high) or 1.0
    raw = span / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _bands(rounds: Sequence[int | None], x: Callable[[float], float]) -> str:
    """Every second round shaded, each with its name."""
    parts, start = [], 0
    for i in range(1, len(rounds) + 1):
        if i < len(rounds) and rounds[i] == rounds[start]:
            continue
        left, right = x(start + 0.5), x(i + 0.5)
        shade = "band odd" if (rounds[start] or 0) % 2 else "band"
        parts.append(f'<rect class="{shade}" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" '
                     f'height="{_HEIGHT - _TOP - _BOTTOM}"/>')  # fmt: skip
        name = f"round {rounds[start]}" if right - left > 52 else str(rounds[start])
        if rounds[start] is not None:
            parts.append(f'<text class="tick middle" x="{(left + right) / 2:.1f}" y="{_TOP - 7}">{name}</text>')
        start = i
    return "".join(parts)


def _y_axis(ticks: Sequence[float], y: Callable[[float], float], unit: str) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text class="tick end" x="{_LEFT - 6}" y="{y(t) + 4:.1f}">{_number(t)}{unit}</text>'
        for t in ticks
    )


def _x_axis(steps: int, x: Callable[[float], float], label: str) -> str:
    every = max(1, math.ceil(steps / 8))
    shown = [i for i in range(1, steps + 1) if i == 1 or i % every == 0]
    texts = [f'<text class="tick middle" x="{x(i):.1f}" y="{_HEIGHT - 19}">{i}</text>' for i in shown]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    name = f'<text class="tick middle" x="{middle:.0f}" y="{_HEIGHT - 4}">{html.escape(label)}</text>'
    return "".join([*texts, name])


def _number(value: float) -> str:
    # Small numbers would not fit beside the axis when written out.
    text = f"{value:.0e}".replace("e-0", "e-") if 0 < abs(value) < 0.001 else f"{value:.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _svg(parts: Sequence[str], label: str, width: int = _WIDTH, height: int = _HEIGHT, kind: str = "chart") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
