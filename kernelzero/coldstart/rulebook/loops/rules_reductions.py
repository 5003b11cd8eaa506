"""Reductions over any dimensions, and running folds."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernelzero.coldstart.rulebook.loops.expr import (
    FLOAT,
    INT,
    Expr,
    as_bool,
    as_float,
    as_int,
    compare,
    flat,
    function,
    where,
)
from kernelzero.coldstart.rulebook.loops.rules import dims_of, require, rows, rule, stage
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import At, Index, Scan, Value, size

MAX_SCAN = 16384
_LONG_ROW, _ENOUGH_ROWS, _MOST_PARTS = 65536, 256, 512
"""Rows of at least so many elements are cut into at most so many parts where there are fewer rows than this."""


class Extremes(NamedTuple):
    """What torch.max gives along a dimension."""

    values: Value
    indices: Value


def _float_input(x: Value, name: str) -> None:
    require(x.kind == FLOAT, f"{name} of {x.dtype}")


def _count(x: Value, dims: tuple[int, ...]) -> int:
    return size([x.shape[d] for d in dims])


def folded(
    s: Scheduler, name: str, kind: str, x: Value, dim: Any, keepdim: bool, change: Any = None, after: Any = None
) -> Value:
    """One fold over dimensions, of changed elements, and what is made of the outcome."""
    dims = dims_of(dim, len(x.shape))
    change, after = change or (lambda e: e), after or (lambda e: e)
    parts = _parts(size(x.shape), _count(x, dims))
    if parts > 1:
        return _in_two_steps(s, name, kind, x, dims, keepdim, change, after, parts)
    return rows(
        s, name, x, dims,
        lambda at: [stage(s, kind, lambda i: change(as_float(at(i))))],
        lambda at, found: lambda i: after(found[0]),
        per_row=True, keepdim=keepdim,
    )  # fmt: skip


def _parts(elements: int, length: int) -> int:
    """Into how many pieces few but long rows are cut, so that the whole GPU has work; 1: into none."""
    if length < _LONG_ROW or elements // length >= _ENOUGH_ROWS:
        return 1
    return max((p for p in range(1, _MOST_PARTS + 1) if length % p == 0), default=1)


def _in_two_steps(
    s: Scheduler,
    name: str,
    kind: str,
    x: Value,
    dims: tuple[int, ...],
    keepdim: bool,
    change: Any,
    after: Any,
    parts: int,
) -> Value:
    """Pieces of each row first, then what they give."""
    from kernelzero.coldstart.rulebook.loops.rules_layout import permute, reshape

    outside = [d for d in range(len(x.shape)) if d not in dims]
    outer = [x.shape[d] for d in outside]
    ordered = permute(s, x, *outside, *dims)
    pieces = reshape(s, ordered, *outer, parts, _count(x, dims) // parts)
    partial = rows(
        s, name, pieces, (len(outer) + 1,), lambda at: [stage(s, kind, lambda i: change(as_float(at(i))))],
        lambda at, found: lambda i: found[0], per_row=True,
    )  # fmt: skip
    whole = rows(
        s, name, partial, (len(outer),), lambda at: [stage(s, kind, lambda i: as_float(at(i)))],
        lambda at, found: lambda i: after(found[0]), per_row=True,
    )  # fmt: skip
    if not keepdim:
        return whole
    return reshape(s, whole, *(1 if d in dims else n for d, n in enumerate(x.shape)))  # type: ignore[no-any-return]


@rule("sum")
def sum_(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Sum."""
    _float_input(input, "sum")
    return folded(s, "sum", "sum", input, dim, keepdim)


@rule("nansum")
def nansum(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Sum of what is a number."""
    _float_input(input, "nansum")
    return folded(s, "nansum", "sum", input, dim, keepdim, change=lambda e: where(compare("eq", e, e), e, 0.0))


@rule("mean")
def mean(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Mean."""
    _float_input(input, "mean")
    count = _count(input, dims_of(dim, len(input.shape)))
    return folded(s, "mean", "sum", input, dim, keepdim, after=lambda e: e / float(count))


@rule("prod")
def prod(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Product."""
    _float_input(input, "prod")
    return folded(s, "prod", "prod", input, dim, keepdim)


@rule("amax")
def amax(s: Scheduler, input: Value, dim: Any = (), keepdim: bool = False) -> Value:
    """Largest element."""
    _float_input(input, "amax")
    return folded(s, "amax", "max", input, dim, keepdim)


@rule("amin")
def amin(s: Scheduler, input: Value, dim: Any = (), keepdim: bool = False) -> Value:
    """Smallest element."""
    _float_input(input, "amin")
    return folded(s, "amin", "min", input, dim, keepdim)


def _extreme(s: Scheduler, name: str, kind: str, input: Value, dim: Any, keepdim: bool) -> Any:
    if isinstance(dim, Value):
        from kernelzero.coldstart.rulebook.loops.rules_pointwise import maximum, minimum

        return (maximum if kind == "max" else minimum)(s, input, dim)
    _float_input(input, name)
    if dim is None:
        return folded(s, name, kind, input, None, False)
    values = folded(s, name, kind, input, dim, keepdim)
    return Extremes(values, place_of(s, f"arg{name}", kind, input, dim, keepdim))


@rule("max")
def max_(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False) -> Any:
    """Largest element, with its place where a dimension is given."""
    return _extreme(s, "max", "max", input, dim, keepdim)


@rule("min")
def min_(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False) -> Any:
    """Smallest element, with its place where a dimension is given."""
    return _extreme(s, "min", "min", input, dim, keepdim)


def place_of(s: Scheduler, name: str, kind: str, x: Value, dim: Any, keepdim: bool) -> Value:
    """Place of the first extreme element."""
    dims = dims_of(dim, len(x.shape))
    shape = [x.shape[d] for d in dims]

    def stages(at: At) -> list[Any]:
        extreme = stage(s, kind, lambda i: as_float(at(i)))

        def place(i: Index) -> Expr:
            here = compare("eq", as_float(at(i)), extreme.value)
            return where(here, flat([i[d] for d in dims], shape), 2147483647)

        return [extreme, stage(s, "min", place, INT)]

    return rows(
        s, name, x, dims, stages, lambda at, found: lambda i: found[1], per_row=True, keepdim=keepdim, dtype="int64"
    )


@rule("argmax")
def argmax(s: Scheduler, input: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Place of the largest element."""
    _float_input(input, "argmax")
    return place_of(s, "argmax", "max", input, dim, keepdim)


@rule("argmin")
def argmin(s: Scheduler, input: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Place of the smallest element."""
    _float_input(input, "argmin")
    return place_of(s, "argmin", "min", input, dim, keepdim)


def moments(s: Scheduler, at: At, count: int) -> list[Any]:
    """Stages of mean and of the mean square around it (not divided)."""
    total = stage(s, "sum", lambda i: as_float(at(i)))
    return [total, stage(s, "sum", lambda i: _squared(as_float(at(i)) - total.value / float(count)))]


def _squared(x: Expr) -> Expr:
    return x * x


def _correction(unbiased: Any, correction: Any) -> float:
    if isinstance(unbiased, bool):
        return 1.0 if unbiased else 0.0
    return 1.0 if correction is None else float(correction)


def _spread(
    s: Scheduler, name: str, x: Value, dim: Any, unbiased: Any, correction: Any, keepdim: bool, root: bool
) -> Value:
    _float_input(x, name)
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = dims_of(dim, len(x.shape))
    count = _count(x, dims)
    divisor = max(0.0, count - _correction(unbiased, correction))
    require(divisor > 0, f"{name} of one element")

    def final(at: At, found: Any) -> At:
        variance = found[1] / divisor
        return lambda i: function("sqrt", variance) if root else variance

    return rows(s, name, x, dims, lambda at: moments(s, at, count), final, per_row=True, keepdim=keepdim)


@rule("var")
def var(
    s: Scheduler, input: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Value:
    """Variance, in two passes."""
    return _spread(s, "var", input, dim, unbiased, correction, keepdim, root=False)


@rule("std")
def std(
    s: Scheduler, input: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Value:
    """Standard deviation, in two passes."""
    return _spread(s, "std", input, dim, unbiased, correction, keepdim, root=True)


@rule("var_mean")
def var_mean(
    s: Scheduler, input: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Variance and mean."""
    return var(s, input, dim, unbiased, keepdim, correction=correction), mean(s, input, dim, keepdim)


@rule("std_mean")
def std_mean(
    s: Scheduler, input: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Standard deviation and mean."""
    return std(s, input, dim, unbiased, keepdim, correction=correction), mean(s, input, dim, keepdim)


@rule("logsumexp")
def logsumexp(s: Scheduler, input: Value, dim: Any, keepdim: bool = False) -> Value:
    """log Σ e^x, the largest element taken out first."""

    def stages(at: At) -> list[Any]:
        largest = stage(s, "max", lambda i: as_float(at(i)))
        return [largest, stage(s, "sum", lambda i: function("exp", as_float(at(i)) - largest.value))]

    return rows(
        s, "logsumexp", input, dims_of(dim, len(input.shape)), stages,
        lambda at, found: lambda i: found[0] + function("log", found[1]), per_row=True, keepdim=keepdim,
    )  # fmt: skip


def _truth(s: Scheduler, name: str, kind: str, x: Value, dim: Any, keepdim: bool) -> Value:
    dims = dims_of(dim, len(x.shape))
    return rows(
        s, name, x, dims, lambda at: [stage(s, kind, lambda i: as_float(as_int(as_bool(at(i)))))],
        lambda at, found: lambda i: as_bool(found[0]), per_row=True, keepdim=keepdim, dtype="bool",
    )  # fmt: skip


@rule("any")
def any_(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    """Whether some element is not zero."""
    return _truth(s, "any", "max", input, dim, keepdim)


@rule("all")
def all_(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    """Whether no element is zero."""
    return _truth(s, "all", "min", input, dim, keepdim)


@rule("count_nonzero")
def count_nonzero(s: Scheduler, input: Value, dim: Any = None) -> Value:
    """Number of elements that are not zero."""
    dims = dims_of(dim, len(input.shape))
    return rows(
        s, "count_nonzero", input, dims, lambda at: [stage(s, "sum", lambda i: as_float(as_int(as_bool(at(i)))))],
        lambda at, found: lambda i: as_int(found[0]), per_row=True, dtype="int64",
    )  # fmt: skip


# --- running folds ---------------------------------------------------------------------------------------------------


def _scan(s: Scheduler, name: str, kind: str, x: Value, dim: int, change: Any = None) -> Value:
    _float_input(x, name)
    axis = dim % max(1, len(x.shape))
    require(bool(x.shape) and x.shape[axis] <= MAX_SCAN, f"{name} over more than {MAX_SCAN} elements")
    source = s.read(x)
    at: At = (lambda i: change(as_float(source.at(i)))) if change else (lambda i: as_float(source.at(i)))
    return s.heavy(Scan(source.shape, axis, kind, at), source.shape, x.dtype, name)


@rule("cumsum")
def cumsum(s: Scheduler, input: Value, dim: int, *, dtype: Any = None) -> Value:
    """Running sum."""
    return _scan(s, "cumsum", "sum", input, dim)


@rule("cumprod")
def cumprod(s: Scheduler, input: Value, dim: int, *, dtype: Any = None) -> Value:
    """Running product."""
    return _scan(s, "cumprod", "prod", input, dim)


@rule("aminmax")
def aminmax(s: Scheduler, input: Value, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """Smallest and largest element."""
    return MinMax(folded(s, "amin", "min", input, dim, keepdim), folded(s, "amax", "max", input, dim, keepdim))


class MinMax(NamedTuple):
    """What torch.aminmax gives."""

    min: Value
    max: Value


@rule("nanmean")
def nanmean(s: Scheduler, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    """Mean of what is a number."""
    dims = dims_of(dim, len(input.shape))

    def number(x: Expr) -> Expr:
        return compare("eq", x, x)

    def stages(at: At) -> list[Any]:
        total = stage(s, "sum", lambda i: where(number(as_float(at(i))), at(i), 0.0))
        return [total, stage(s, "sum", lambda i: where(number(as_float(at(i))), 1.0, 0.0))]

    return rows(
        s,
        "nanmean",
        input,
        dims,
        stages,
        lambda at, found: lambda i: found[0] / found[1],
        per_row=True,
        keepdim=keepdim,
    )


@rule("trace")
def trace(s: Scheduler, input: Value) -> Value:
    """Sum of the diagonal."""
    from kernelzero.coldstart.rulebook.loops.rules_layout import diagonal

    return sum_(s, diagonal(s, input))  # type: ignore[no-any-return]
