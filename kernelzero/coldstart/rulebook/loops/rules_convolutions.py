"""Convolutions, transposed ones, and what moves pixels: padding, unfolding, pixel shuffles, interpolation.

A convolution is a product whose first operand is read through index arithmetic, or a loop for each element where the
product would be tiny (depthwise ones always are). Not covered: padding modes other than zeros inside of a convolution,
bicubic and area interpolation, fold, Tensor.unfold.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import (
    INT,
    Expr,
    as_float,
    as_int,
    as_kind,
    both,
    bounded,
    compare,
    const,
    floordiv,
    fold,
    function,
    load,
    modulo,
    unflat,
    upper,
    walk,
    where,
)
from kernelzero.coldstart.rulebook.loops.rules import pointwise, require, rule
from kernelzero.coldstart.rulebook.loops.rules_products import contracted, plain
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Elements, Index, Product, Value, size

_SHORT = 16
"""Sums of so few products are done by one thread each."""
_FEW = 8
"""Sides of a product below this leave most of a tile empty."""

Place = tuple[Index, Expr]
"""Where the input is read, along its spatial dimensions, and whether that is inside of it."""


def spread(given: Any, rank: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    found = tuple(given) if isinstance(given, tuple | list) else (given,)
    require(len(found) in (1, rank) and all(isinstance(n, int) for n in found), f"sizes {given}")
    return found * rank if len(found) == 1 else found


def inside(place: Expr, extent: int) -> Expr:
    """Whether a place is one of 0 … extent − 1."""
    if place.op == "const":
        return const(0 <= place.args[0] < extent)
    low = place >= 0
    return both(low, const(True) if upper(place) < extent else compare("lt", place, extent))


def all_inside(places: Index, extents: Sequence[int]) -> Expr:
    """Whether each place is inside of its dimension."""
    found = const(True)
    for place, extent in zip(places, extents, strict=True):
        found = both(found, inside(place, extent))
    return found


def read_where(x: Value, place: Index, valid: Expr, other: float = 0.0) -> Expr:
    """x at a place where `valid` holds, else a number: nothing outside of x is read, nor divided while negative."""
    if valid.constant is True:
        return x.at(place)
    if valid.constant is False:
        return as_kind(other, x.kind)
    found = x.at(place)
    if found.op == "load" and found.args[2] is None and _is_plain(x):
        filler = 0.0 if math.isinf(other) or math.isnan(other) else other
        found = load(found.args[0], found.args[1], valid, filler)
        return found if filler == other else where(valid, found, as_kind(other, x.kind))
    return where(valid, x.at(tuple(where(valid, p, 0) for p in place)), as_kind(other, x.kind))


def _is_plain(x: Value) -> bool:
    """Whether an index reaches memory by sums alone, which may be negative where nothing is read.

    Not where it goes through another tensor, as an embedding's does: that one would be read at the wrong place.
    """
    marks = tuple(Expr("var", (f"?{d}",), INT) for d in range(len(x.shape)))
    nodes = list(walk(x.at(marks)))
    return all(n.op in ("load", "var", "const", "sum") for n in nodes) and sum(n.op == "load" for n in nodes) == 1


# --- convolutions ----------------------------------------------------------------------------------------------------


def _paddings(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Before and after each spatial dimension."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    require(not isinstance(padding, str), f"padding {padding}")
    return [(p, p) for p in spread(padding, len(kernel))]


def convolution(
    s: Scheduler,
    name: str,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Value:
    """Σ over channels and kernel of x[…, o·stride + k·dilation − padding] · w."""
    rank = len(weight.shape) - 2
    kernel = weight.shape[2:]
    steps, gaps = spread(stride, rank), spread(dilation, rank)
    pads = _paddings(padding, kernel, gaps)
    extents = input.shape[len(input.shape) - rank :]
    out = tuple(
        (n + sum(p) - g * (k - 1) - 1) // t + 1
        for n, p, g, k, t in zip(extents, pads, gaps, kernel, steps, strict=True)
    )

    def place(o: Index, k: Index) -> Place:
        at = tuple(a * t + b * g - p[0] for a, b, t, g, p in zip(o, k, steps, gaps, pads, strict=True))
        return at, all_inside(at, extents)

    each = weight.shape[0] // groups

    def coefficient(w: Value, group: Expr, c: Expr, n: Expr, k: Index) -> Expr:
        return w.at((group * each + n, c, *k))

    found = _summed(s, name, input, weight, out, groups, (each, weight.shape[1]), place, coefficient)
    return _with_bias(s, found, bias, rank)


def transposed(
    s: Scheduler,
    name: str,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Value:
    """Σ over channels and kernel of x[…, (o + padding − k·dilation) / stride] · w, where that divides."""
    rank = len(weight.shape) - 2
    kernel = weight.shape[2:]
    steps, gaps, pads, more = (spread(n, rank) for n in (stride, dilation, padding, output_padding))
    extents = input.shape[len(input.shape) - rank :]
    out = tuple(
        (n - 1) * t - 2 * p + g * (k - 1) + e + 1
        for n, t, p, g, k, e in zip(extents, steps, pads, gaps, kernel, more, strict=True)
    )

    def place(o: Index, k: Index) -> Place:
        parts = [
            _divided(a + p, b * g, t, g * (n - 1))
            for a, b, p, t, g, n in zip(o, k, pads, steps, gaps, kernel, strict=True)
        ]
        at = tuple(p for p, _ in parts)
        valid = all_inside(at, extents)
        for _, divides in parts:
            valid = both(valid, divides)
        return at, valid

    each, depth = weight.shape[1], weight.shape[0] // groups

    def coefficient(w: Value, group: Expr, c: Expr, n: Expr, k: Index) -> Expr:
        return w.at((group * depth + c, n, *k))

    found = _summed(s, name, input, weight, out, groups, (each, depth), place, coefficient)
    return _with_bias(s, found, bias, rank)


def _divided(a: Expr, b: Expr, step: int, most: int) -> tuple[Expr, Expr]:
    """(a − b) / step, which may be negative, and whether it divides; b is at most `most`, a not negative."""
    if step == 1:
        return a - b, const(True)
    turns = -(-most // step)
    raised = a - b + turns * step
    return floordiv(raised, step) - turns, compare("eq", modulo(raised, step), 0)


def _summed(
    s: Scheduler,
    name: str,
    input: Value,
    weight: Value,
    out: tuple[int, ...],
    groups: int,
    channels: tuple[int, int],
    place: Callable[[Index, Index], Place],
    coefficient: Callable[[Value, Expr, Expr, Expr, Index], Expr],
) -> Value:
    """The product over (channel, kernel); `channels` are those of one group: of the output and of the input."""
    rank, (each, depth) = len(out), channels
    require(input.kind == weight.kind == "f", f"{name} of integers")
    require(len(input.shape) in (rank + 1, rank + 2) and min(out, default=1) > 0, f"{name} of shape {input.shape}")
    lead = input.shape[: len(input.shape) - rank - 1]
    x, w = plain(s, input), plain(s, weight)
    shape = (*lead, groups * each, *out)

    def a(z: Index, m: Index, k: Index) -> Expr:
        at, valid = place(m[len(lead) :], k[1:])
        channel = k[0] + (z[0] * depth if z else 0)
        return as_float(read_where(x, (*m[: len(lead)], channel, *at), valid))

    def b(z: Index, k: Index, n: Index) -> Expr:
        return as_float(coefficient(w, z[0] if z else const(0), k[0], n[0], k[1:]))

    def to(z: Index, m: Index, n: Index) -> Index:
        channel = n[0] + (z[0] * each if z else 0)
        return (*m[: len(lead)], channel, *m[len(lead) :])

    batch = (groups,) if groups > 1 else ()
    core = Product(batch, (*lead, *out), (each,), (depth, *weight.shape[2:]), a, b, to)
    if groups == 1:
        return contracted(s, name, core, shape, input.dtype)
    if size(core.k) <= _SHORT or min(each, size(core.m)) < _FEW:
        return s.heavy(Elements(_grouped_loop(s, core, len(lead), each)), shape, input.dtype, name)
    return s.heavy(core, shape, input.dtype, name)


def _grouped_loop(s: Scheduler, core: Product, leading: int, each: int) -> Callable[[Index], Expr]:
    """One element by a loop: its channel says which group it belongs to."""

    def at(index: Index) -> Expr:
        channel, m = index[leading], (*index[:leading], *index[leading + 1 :])
        names = [s.name("k") for _ in core.k]
        k = tuple(bounded(a, extent) for a, extent in zip(names, core.k, strict=True))
        z, n = (channel // each,), (channel % each,)
        return fold("sum", list(zip(names, core.k, strict=True)), core.a(z, m, k) * core.b(z, k, n))

    return at


def _with_bias(s: Scheduler, found: Value, bias: Value | None, rank: int) -> Value:
    if bias is None:
        return found
    given = bias
    column = Value((given.shape[0], *(1 for _ in range(rank))), given.dtype, lambda i: given.at((i[0],)))
    return pointwise(s, "bias", lambda a, b: as_float(a) + b, found, column)


def _register_convolution(rank: int) -> None:
    name, back = f"conv{rank}d", f"conv_transpose{rank}d"

    @rule(name)
    def conv(
        s: Scheduler,
        input: Value,
        weight: Value,
        bias: Value | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Value:
        return convolution(s, name, input, weight, bias, stride, padding, dilation, groups)

    @rule(back)
    def conv_transpose(
        s: Scheduler,
        input: Value,
        weight: Value,
        bias: Value | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Value:
        return transposed(s, back, input, weight, bias, stride, padding, output_padding, groups, dilation)


for _rank in (1, 2, 3):
    _register_convolution(_rank)


# --- padding ---------------------------------------------------------------------------------------------------------


def _reflected(p: Expr, n: int) -> Expr:
    return where(p < 0, 0 - p, where(p >= n, (2 * n - 2) - p, p))


def _nearest_inside(p: Expr, n: int) -> Expr:
    return where(p < 0, 0, where(p >= n, n - 1, p))


_MODES: dict[str, Callable[[Expr, int], Expr]] = {
    "reflect": _reflected,
    "replicate": _nearest_inside,
    "circular": lambda p, n: modulo(p + n, n),
}


@rule("pad")
def pad(s: Scheduler, input: Value, pad: Any, mode: str = "constant", value: float | None = None) -> Value:
    """More elements, or with negative numbers fewer, at both ends of the last dimensions."""
    require(mode == "constant" or mode in _MODES, f"pad with mode {mode}")
    sides = [(int(a), int(b)) for a, b in zip(pad[::2], pad[1::2], strict=True)][::-1]
    x = s.read(input)
    first = len(x.shape) - len(sides)
    padded = dict(enumerate(sides, first))
    shape = tuple(n + sum(padded.get(d, (0, 0))) for d, n in enumerate(x.shape))
    require(mode == "constant" or min(map(min, sides), default=0) >= 0, f"pad with mode {mode} and negative sizes")
    require(min(shape, default=1) > 0, "pad to nothing")

    def at(i: Index) -> Expr:
        moved = tuple(e - padded.get(d, (0, 0))[0] for d, e in enumerate(i))
        if mode == "constant":
            valid = all_inside(tuple(moved[d] for d in padded), [x.shape[d] for d in padded])
            return read_where(x, moved, valid, float(value or 0.0))
        chosen = [d for d, ends in padded.items() if any(ends)]
        return x.at(tuple(_MODES[mode](p, x.shape[d]) if d in chosen else p for d, p in enumerate(moved)))

    return s.cheap(shape, x.dtype, at, "pad", [x])


# --- pixels moved ----------------------------------------------------------------------------------------------------


@rule("unfold")
def unfold(s: Scheduler, input: Value, *sizes: Any, **named: Any) -> Value:
    """Patches as columns. Three whole numbers may be meant for Tensor.unfold, which has the same name."""
    given = dict(zip(("kernel_size", "dilation", "padding", "stride"), sizes, strict=False)) | named
    require(len(sizes) != 3 or bool(named) or not all(isinstance(n, int) for n in sizes), "unfold by three numbers")
    require(set(given) <= {"kernel_size", "dilation", "padding", "stride"}, "Tensor.unfold")
    return unfolded(s, input, **given)


def unfolded(
    s: Scheduler, input: Value, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Value:
    """(…, C, H, W) to (…, C·kernel, places)."""
    x = s.read(input)
    kernel, gaps, pads, steps = (spread(n, 2) for n in (kernel_size, dilation, padding, stride))
    channels, extents = x.shape[-3], x.shape[-2:]
    out = tuple(
        (n + 2 * p - g * (k - 1) - 1) // t + 1 for n, p, g, k, t in zip(extents, pads, gaps, kernel, steps, strict=True)
    )

    def at(i: Index) -> Expr:
        channel, *k = unflat(i[-2], (channels, *kernel))
        o = unflat(i[-1], out)
        place = tuple(a * t + b * g - p for a, b, t, g, p in zip(o, k, steps, gaps, pads, strict=True))
        return read_where(x, (*i[:-2], channel, *place), all_inside(place, extents))

    return s.cheap((*x.shape[:-3], channels * size(kernel), size(out)), x.dtype, at, "unfold", [x])


@rule("pixel_shuffle")
def pixel_shuffle(s: Scheduler, input: Value, upscale_factor: int) -> Value:
    """Channels to pixels."""
    r, (channels, height, width) = upscale_factor, input.shape[-3:]

    def at(i: Index) -> Expr:
        channel = i[-3] * (r * r) + (i[-2] % r) * r + i[-1] % r
        return input.at((*i[:-3], channel, i[-2] // r, i[-1] // r))

    shape = (*input.shape[:-3], channels // (r * r), height * r, width * r)
    return s.cheap(shape, input.dtype, at, "pixel_shuffle", [input])


@rule("pixel_unshuffle")
def pixel_unshuffle(s: Scheduler, input: Value, downscale_factor: int) -> Value:
    """Pixels to channels."""
    r, (channels, height, width) = downscale_factor, input.shape[-3:]

    def at(i: Index) -> Expr:
        return input.at((*i[:-3], i[-3] // (r * r), i[-2] * r + i[-3] // r % r, i[-1] * r + i[-3] % r))

    shape = (*input.shape[:-3], channels * r * r, height // r, width // r)
    return s.cheap(shape, input.dtype, at, "pixel_unshuffle", [input])


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(s: Scheduler, input: Value, groups: int) -> Value:
    """Channels of all groups in turn."""
    each = input.shape[1] // groups
    return s.cheap(
        input.shape, input.dtype, lambda i: input.at((i[0], (i[1] % groups) * each + i[1] // groups, *i[2:])),
        "channel_shuffle", [input],
    )  # fmt: skip


# --- interpolation ---------------------------------------------------------------------------------------------------

_LINEAR = {"linear": 3, "bilinear": 4, "trilinear": 5}
"""Mode → rank of its input."""


@rule("interpolate", "upsample")
def interpolate(
    s: Scheduler,
    input: Value,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value:
    """To another size, by the nearest pixel or between neighbours."""
    rank = len(input.shape) - 2
    linear = mode != "nearest"
    require(not antialias and (not linear or _LINEAR.get(mode) == rank + 2), f"interpolate with mode {mode}")
    x = s.read(input)
    extents = x.shape[2:]
    out, scales = _sizes(extents, size, scale_factor, bool(recompute_scale_factor))
    shape = (*x.shape[:2], *out)
    if not linear:
        return s.cheap(
            shape, x.dtype,
            lambda i: x.at((*i[:2], *(_nearest(*a) for a in zip(i[2:], extents, out, scales, strict=True)))),
            "interpolate", [x],
        )  # fmt: skip

    def at(i: Index) -> Expr:
        parts = [_neighbours(*a, bool(align_corners)) for a in zip(i[2:], extents, out, scales, strict=True)]
        return _between(x, i[:2], (), parts)

    return s.cheap(shape, x.dtype, at, "interpolate", [x])


def _sizes(
    extents: tuple[int, ...], size: Any, factor: Any, recompute: bool
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The new extents, and how many old pixels a new one takes."""
    count = len(extents)
    if size is not None:
        out = spread(size, count)
        return out, tuple(n / o for n, o in zip(extents, out, strict=True))
    require(factor is not None, "interpolate without a size")
    factors = tuple(factor) if isinstance(factor, tuple | list) else (factor,) * count
    out = tuple(math.floor(n * f) for n, f in zip(extents, factors, strict=True))
    if recompute:
        return out, tuple(n / o for n, o in zip(extents, out, strict=True))
    return out, tuple(1.0 / f for f in factors)


def _single(x: float) -> float:
    """As a float of 32 bits."""
    return float(struct.unpack("f", struct.pack("f", x))[0])


def _nearest(i: Expr, extent: int, out: int, scale: float) -> Expr:
    """⌊i · scale⌋ as 32 bits give it: by whole numbers where they give the same."""
    step = _single(scale)
    places = [min(int(_single(p * step)), extent - 1) for p in range(out)]
    if places == [p * extent // out for p in range(out)]:
        shared = math.gcd(extent, out)
        return (i * (extent // shared)) // (out // shared)
    place = as_int(function("floor", as_float(i) * step))
    return where(place > extent - 1, extent - 1, place)


def _neighbours(i: Expr, extent: int, out: int, scale: float, corners: bool) -> list[tuple[Expr, Expr | None]]:
    """Two places and their weights; one place without a weight where nothing lies between."""
    if extent == out:
        return [(i, None)]
    if extent == 1:
        return [(const(0), None)]
    if corners:
        source = as_float(i) * ((extent - 1) / (out - 1) if out > 1 else 0.0)
    else:
        source = function("max", (as_float(i) + 0.5) * scale - 0.5, 0.0)
    low = as_int(source)
    low = where(low > extent - 1, extent - 1, low)
    high = where(low < extent - 1, low + 1, extent - 1)
    part = source - as_float(low)
    return [(low, 1.0 - part), (high, part)]


def _between(x: Value, lead: Index, done: Index, parts: list[list[tuple[Expr, Expr | None]]]) -> Expr:
    if not parts:
        return as_float(x.at((*lead, *done)))
    first, *rest = parts
    terms = [(_between(x, lead, (*done, place), rest), weight) for place, weight in first]
    found = [value if weight is None else value * weight for value, weight in terms]
    return found[0] if len(found) == 1 else found[0] + found[1]


@rule("upsample_nearest")
def upsample_nearest(s: Scheduler, input: Value, size: Any = None, scale_factor: Any = None) -> Value:
    """By the nearest pixel."""
    return interpolate(s, input, size, scale_factor)  # type: ignore[no-any-return]


@rule("upsample_bilinear")
def upsample_bilinear(s: Scheduler, input: Value, size: Any = None, scale_factor: Any = None) -> Value:
    """Between neighbours, corners on corners."""
    return interpolate(s, input, size, scale_factor, "bilinear", True)  # type: ignore[no-any-return]
