"""Charts as hand-written SVG: crisp at any size, coloured by the page's style so that dark mode works."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

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
