"""Pooling: maxima, means and power means of windows, each window a loop; whole planes are reductions.

Not covered: indices of maxima, unpooling, fractional windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import (
    Expr,
    as_float,
    bounded,
    compare,
    const,
    floordiv,
    fold,
    function,
    where,
)
from kernelzero.coldstart.rulebook.loops.rules import require, rule
from kernelzero.coldstart.rulebook.loops.rules_convolutions import all_inside, inside, read_where, spread
from kernelzero.coldstart.rulebook.loops.rules_products import plain
from kernelzero.coldstart.rulebook.loops.rules_reductions import folded
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Elements, Index, Value, size

_LONG_WINDOW = 64
"""Windows with more elements are worth a row of their own."""


@dataclass(frozen=True)
class Windows:
    """Windows along the spatial dimensions of a value."""

    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def overlap(self) -> bool:
        """Whether an element may be in several."""
        return any(k > t for k, t in zip(self.kernel, self.stride, strict=True))

    def starts(self, o: Index) -> list[Expr]:
        """Where the window of an output begins; negative in the padding."""
        return [a * t - p for a, t, p in zip(o, self.stride, self.padding, strict=True)]


def windows(
    x: Value, rank: int, kernel: Any, stride: Any, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Windows:
    """The windows of a pooling with these arguments."""
    kernels = spread(kernel, rank)
    steps = spread(kernel if stride is None or stride == [] or stride == () else stride, rank)
    pads, gaps = spread(padding, rank), spread(dilation, rank)
    require(len(x.shape) in (rank + 1, rank + 2) and x.kind == "f", f"pooling of {x.dtype} with shape {x.shape}")
    extents = x.shape[len(x.shape) - rank :]
    out = tuple(_count(*a, ceil_mode) for a in zip(extents, kernels, steps, pads, gaps, strict=True))
    require(min(out) > 0, "pooling to nothing")
    return Windows(extents, kernels, steps, pads, gaps, out)


def _count(extent: int, kernel: int, step: int, pad: int, gap: int, ceil_mode: bool) -> int:
    """How many windows; with `ceil_mode` the last may stick out, but has to begin before the right padding."""
    room = extent + 2 * pad - gap * (kernel - 1) - 1
    count = (room + (step - 1 if ceil_mode else 0)) // step + 1
    return count - 1 if ceil_mode and (count - 1) * step >= extent + pad else count


def pooled(
    s: Scheduler,
    name: str,
    input: Value,
    w: Windows,
    kind: str,
    change: Callable[[Expr], Expr],
    after: Callable[[Expr, Index], Expr],
) -> Value:
    """One fold over each window, of changed elements; `after` also gets the output's spatial index.

    Args:
        change: has to keep what stands for the padding, which is 0 for sums and −inf for maxima.
    """
    x = plain(s, input) if w.overlap else s.read(input)
    lead = input.shape[: len(input.shape) - len(w.out)]
    empty = 0.0 if kind == "sum" else float("-inf")

    def at(index: Index) -> Expr:
        o = index[len(lead) :]
        names = [s.name("k") for _ in w.kernel]
        k = [bounded(a, n) for a, n in zip(names, w.kernel, strict=True)]
        place = tuple(a + b * g for a, b, g in zip(w.starts(o), k, w.dilation, strict=True))
        element = as_float(read_where(x, (*index[: len(lead)], *place), all_inside(place, w.extents), empty))
        return after(fold(kind, list(zip(names, w.kernel, strict=True)), change(element)), o)

    return s.heavy(Elements(at), (*lead, *w.out), input.dtype, name)


def _same(x: Expr) -> Expr:
    return x


def max_pool(s: Scheduler, name: str, input: Value, w: Windows) -> Value:
    """The largest element of each window."""
    require(all(2 * p <= k for p, k in zip(w.padding, w.kernel, strict=True)), f"{name} with so much padding")
    return pooled(s, name, input, w, "max", _same, lambda e, _: e)


def avg_pool(s: Scheduler, name: str, input: Value, w: Windows, with_padding: bool, divisor: int | None) -> Value:
    """The mean of each window; what it is divided by may depend on the window."""

    def after(total: Expr, o: Index) -> Expr:
        return total / (float(divisor) if divisor else as_float(_members(w, o, with_padding)))

    return pooled(s, name, input, w, "sum", _same, after)


def _members(w: Windows, o: Index, with_padding: bool) -> Expr:
    """How many places a window has, those in the padding counted or not."""
    count = const(1)
    for d, start in enumerate(w.starts(o)):
        kernel, pad = w.kernel[d], w.padding[d]
        end = w.extents[d] + (pad if with_padding else 0)
        sticks_out = (w.out[d] - 1) * w.stride[d] - pad + kernel > end
        high = where(compare("gt", start + kernel, end), end, start + kernel) if sticks_out else start + kernel
        low = start if with_padding or not pad else where(start < 0, 0, start)
        count = count * (high - low)
    return count


def lp_pool(s: Scheduler, name: str, input: Value, w: Windows, order: float) -> Value:
    """(Σ x^p)^(1/p) of each window; a window that sticks out is weighted as if it were whole."""
    require(order in (1.0, 2.0, 3.0, 4.0), f"{name} of order {order}")

    def power(x: Expr) -> Expr:
        return {1.0: lambda: x, 2.0: lambda: x * x, 3.0: lambda: x * x * x, 4.0: lambda: (x * x) * (x * x)}[order]()

    def after(total: Expr, o: Index) -> Expr:
        members = _members(w, o, True)
        if members.constant is None:
            total = total / as_float(members) * float(size(w.kernel))
        if order == 1.0:
            return total
        return function("sqrt", total) if order == 2.0 else function("exp2", function("log2", total) / order)

    return pooled(s, name, input, w, "sum", power, after)


# --- adaptive --------------------------------------------------------------------------------------------------------


def _output(given: Any, extents: Sequence[int]) -> tuple[int, ...]:
    """The output's extents; None keeps one."""
    found = tuple(given) if isinstance(given, tuple | list) else (given,) * len(extents)
    require(len(found) == len(extents), f"output size {given}")
    return tuple(n if o is None else int(o) for o, n in zip(found, extents, strict=True))


def adaptive(s: Scheduler, name: str, input: Value, rank: int, output_size: Any, kind: str) -> Value:
    """Windows from ⌊i·n / out⌋ to ⌈(i + 1)·n / out⌉."""
    require(len(input.shape) in (rank + 1, rank + 2) and input.kind == "f", f"{name} of shape {input.shape}")
    first = len(input.shape) - rank
    extents = input.shape[first:]
    out = _output(output_size, extents)
    dims = tuple(range(first, first + rank))
    if all(n == 1 for n in out):
        mean = (lambda e: e / float(size(extents))) if kind == "sum" else None
        return folded(s, name, kind, input, dims, True, after=mean)
    if all(n % o == 0 for n, o in zip(extents, out, strict=True)):
        return _divided(s, name, input, out, kind)
    return _uneven(s, name, input, out, kind)


def _divided(s: Scheduler, name: str, input: Value, out: tuple[int, ...], kind: str) -> Value:
    """Equal windows side by side; long ones as rows of the space (…, out, window, out, window)."""
    first = len(input.shape) - len(out)
    kernel = tuple(n // o for n, o in zip(input.shape[first:], out, strict=True))
    if size(kernel) <= _LONG_WINDOW:
        w = windows(input, len(out), kernel, kernel)
        return max_pool(s, name, input, w) if kind == "max" else avg_pool(s, name, input, w, True, None)
    x = s.read(input)
    pairs = [n for o, k in zip(out, kernel, strict=True) for n in (o, k)]

    def at(i: Index) -> Expr:
        return x.at((*i[:first], *(i[first + 2 * d] * k + i[first + 2 * d + 1] for d, k in enumerate(kernel))))

    split = Value((*input.shape[:first], *pairs), input.dtype, at)
    dims = tuple(first + 2 * d + 1 for d in range(len(out)))
    mean = (lambda e: e / float(size(kernel))) if kind == "sum" else None
    return folded(s, name, kind, split, dims, False, after=mean)


def _uneven(s: Scheduler, name: str, input: Value, out: tuple[int, ...], kind: str) -> Value:
    """Windows of several sizes: loops as long as the largest, what is beyond the end left out."""
    first = len(input.shape) - len(out)
    extents = input.shape[first:]
    largest = [max(-(-(i + 1) * n // o) - i * n // o for i in range(o)) for n, o in zip(extents, out, strict=True)]
    x = plain(s, input)

    def at(index: Index) -> Expr:
        o = index[first:]
        starts = [floordiv(a * n, b) for a, n, b in zip(o, extents, out, strict=True)]
        ends = [floordiv(a * n + (n + b - 1), b) for a, n, b in zip(o, extents, out, strict=True)]
        names = [s.name("k") for _ in out]
        k = [bounded(a, n) for a, n in zip(names, largest, strict=True)]
        place = tuple(a + b for a, b in zip(starts, k, strict=True))
        valid = const(True)
        for p, end in zip(place, ends, strict=True):
            valid = valid & (inside(p, end.args[0]) if end.op == "const" else compare("lt", p, end))
        element = as_float(read_where(x, (*index[:first], *place), valid, 0.0 if kind == "sum" else float("-inf")))
        total = fold(kind, list(zip(names, largest, strict=True)), element)
        return total if kind == "max" else total / _product([b - a for a, b in zip(starts, ends, strict=True)])

    return s.heavy(Elements(at), (*input.shape[:first], *out), input.dtype, name)


def _product(counts: list[Expr]) -> Expr:
    found = const(1)
    for count in counts:
        found = found * count
    return as_float(found)


# --- names -----------------------------------------------------------------------------------------------------------


def _register_windows(rank: int) -> None:
    @rule(f"max_pool{rank}d")
    def max_rule(
        s: Scheduler,
        input: Value,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Value:
        require(not return_indices, f"max_pool{rank}d with indices")
        w = windows(input, rank, kernel_size, stride, padding, dilation, ceil_mode)
        return max_pool(s, f"max_pool{rank}d", input, w)

    @rule(f"avg_pool{rank}d")
    def avg_rule(
        s: Scheduler,
        input: Value,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        w = windows(input, rank, kernel_size, stride, padding, 1, ceil_mode)
        return avg_pool(s, f"avg_pool{rank}d", input, w, count_include_pad, divisor_override)

    @rule(f"lp_pool{rank}d")
    def lp_rule(
        s: Scheduler, input: Value, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Value:
        w = windows(input, rank, kernel_size, stride, 0, 1, ceil_mode)
        return lp_pool(s, f"lp_pool{rank}d", input, w, float(norm_type))


def _register_adaptive(rank: int) -> None:
    @rule(f"adaptive_max_pool{rank}d")
    def max_rule(s: Scheduler, input: Value, output_size: Any, return_indices: bool = False) -> Value:
        require(not return_indices, f"adaptive_max_pool{rank}d with indices")
        return adaptive(s, f"adaptive_max_pool{rank}d", input, rank, output_size, "max")

    @rule(f"adaptive_avg_pool{rank}d")
    def avg_rule(s: Scheduler, input: Value, output_size: Any) -> Value:
        return adaptive(s, f"adaptive_avg_pool{rank}d", input, rank, output_size, "sum")


for _rank in (1, 2, 3):
    _register_windows(_rank)
    _register_adaptive(_rank)
