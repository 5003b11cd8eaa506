"""What PyTorch's calls compute, element by element: one rule a call, by the name of the function that is called.

A rule takes the scheduler and the call's own arguments, tensors as values, and is registered under names of functions
and methods ("softmax": torch.softmax, F.softmax, Tensor.softmax). Layers need none: their `forward` calls functions.
What a rule cannot do it refuses by name. To teach the rulebook a call, add a rule to one of the FAMILIES' files.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import FLOAT, Expr, bounded, const, fold, rewritten
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import At, Elements, Index, Rows, Stage, Value, size
from kernelzero.coldstart.rulebook.operators import CannotWrite

FAMILIES = (
    "pointwise", "special", "reductions", "lengths", "norms", "products", "layout", "convolutions", "pooling",
    "gathers", "losses",
)  # fmt: skip
"""Modules with rules."""
_SHORT_ROW, _TINY_ROW = 32, 4
"""Reductions over so few elements are done by one thread each."""

_rules: dict[str, Callable[..., Any]] = {}
Rule = Callable[..., Any]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of a function or method."""

    def register(function: Rule) -> Rule:
        for name in names:
            _rules[name] = function
        return function

    return register


def also(name: str, *others: str) -> None:
    """Further names of a rule that is registered."""
    for other in others:
        _rules[other] = _rules[name]


@functools.cache
def table() -> dict[str, Rule]:
    """Rules by name."""
    for family in FAMILIES:
        importlib.import_module(f"kernelzero.coldstart.rulebook.loops.rules_{family}")
    return _rules


def known_names() -> list[str]:
    """Every function and method that has a rule."""
    return sorted(table())


# --- what rules are made of ------------------------------------------------------------------------------------------


def broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape that PyTorch gives to operands of these shapes."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(max(column) if 0 not in column else 0 for column in zip(*padded, strict=True))


def aligned(value: Value, index: Index) -> Expr:
    """The element of a value that stands at an index of a larger shape."""
    own = index[len(index) - len(value.shape) :]
    return value.at(tuple(const(0) if extent == 1 else i for i, extent in zip(own, value.shape, strict=True)))


def pointwise(s: Scheduler, name: str, compute: Callable[..., Expr], *operands: Any, dtype: str | None = None) -> Value:
    """Element by element, operands broadcast; numbers may stand for tensors."""
    values = [o for o in operands if isinstance(o, Value)]
    shape = broadcast([v.shape for v in values])

    def at(index: Index) -> Expr:
        return compute(*(aligned(o, index) if isinstance(o, Value) else const(o) for o in operands))

    return s.cheap(shape, dtype or promoted(values), at, name, values)


def promoted(values: Sequence[Value]) -> str:
    """The dtype of a result: that of the widest floating-point operand, else of the widest."""
    order = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
    found = [v for v in values if len(v.shape)] or list(values)
    return min((v.dtype for v in found), key=order.index) if found else "float32"


def dims_of(dim: Any, rank: int) -> tuple[int, ...]:
    """Dimensions, counted from the front, in order; None is all."""
    if dim is None or dim == () or dim == []:
        return tuple(range(rank))
    given = dim if isinstance(dim, tuple | list) else (dim,)
    return tuple(sorted({d % rank for d in given}))


def require(condition: bool, what: str) -> None:
    """Refuse by name."""
    if not condition:
        raise CannotWrite(f"{what} is not in the rulebook")


def rows(
    s: Scheduler,
    name: str,
    x: Value,
    dims: Sequence[int],
    stages: Callable[[At], Sequence[Stage]],
    final: Callable[[At, Sequence[Expr]], At],
    *,
    per_row: bool,
    keepdim: bool = False,
    dtype: str | None = None,
) -> Value:
    """A value that looks along some dimensions of `x`.

    Args:
        stages: from x's elements, what is folded over a row.
        final: from x's elements and the folded numbers, the output's element (per row: of any element of the row).
        per_row: whether the output has one element a row.
    """
    source = s.read(x)
    made = tuple(stages(source.at))
    core = Rows(source.shape, tuple(dims), made, final(source.at, [st.value for st in made]), per_row, keepdim)
    shape = core.shape
    if size([core.space[d] for d in core.inner]) <= (_SHORT_ROW if per_row else _TINY_ROW):
        return s.heavy(Elements(as_elements(core, s)), shape, dtype or x.dtype, name)
    return s.heavy(core, shape, dtype or x.dtype, name)


def as_elements(core: Rows, s: Scheduler) -> At:
    """The same with loops inside of one element."""

    def at(index: Index) -> Expr:
        whole = _whole(core, index)
        values: dict[str, Expr] = {}
        for stage in core.stages:
            names = [s.name("r") for _ in core.inner]
            loops = [bounded(n, core.space[d]) for n, d in zip(names, core.inner, strict=True)]
            place = list(whole)
            for d, loop in zip(core.inner, loops, strict=True):
                place[d] = loop
            body = _with_stages(stage.at(tuple(place)), values)
            extents = [(n, core.space[d]) for n, d in zip(names, core.inner, strict=True)]
            values[stage.name] = fold(stage.fold, extents, body)
        return _with_stages(core.final(whole), values)

    return at


def _whole(core: Rows, index: Index) -> Index:
    if not core.per_row:
        return index
    if core.keepdim:
        return index
    outside = iter(index)
    return tuple(const(0) if d in core.inner else next(outside) for d in range(len(core.space)))


def _with_stages(value: Expr, known: dict[str, Expr]) -> Expr:
    return rewritten(value, lambda n: known.get(n.args[0]) if n.op == "stage" else None)


def stage(s: Scheduler, kind: str, at: At, dtype_kind: str = FLOAT) -> Stage:
    """A stage with a name of its own."""
    return Stage(
        s.name({"sum": "total", "max": "largest", "min": "smallest", "prod": "product"}[kind]), kind, at, dtype_kind
    )
