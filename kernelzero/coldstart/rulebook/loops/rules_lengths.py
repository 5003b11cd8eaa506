"""Norms of vectors and of matrices, and distances made of them.

Not covered: norms by singular values, and vectors' norms of negative order.
"""

from __future__ import annotations

import math
from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import FLOAT, Expr, compare, function, where
from kernelzero.coldstart.rulebook.loops.rules import dims_of, require, rule
from kernelzero.coldstart.rulebook.loops.rules_layout import reshape
from kernelzero.coldstart.rulebook.loops.rules_reductions import folded
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Value


def size_of(x: Expr) -> Expr:
    """|x|."""
    return function("abs", x)


def vector_length(s: Scheduler, x: Value, order: float, dim: Any, keepdim: bool) -> Value:
    """(Σ |x|^p)^(1/p); the largest or smallest |x| for ±∞, the number of elements that are not 0 for 0."""
    require(x.kind == FLOAT, f"norm of {x.dtype}")
    if math.isinf(order):
        return folded(s, "norm", "max" if order > 0 else "min", x, dim, keepdim, change=size_of)
    if order == 0.0:
        return folded(s, "norm", "sum", x, dim, keepdim, change=lambda e: where(compare("ne", e, 0.0), 1.0, 0.0))
    if order == 1.0:
        return folded(s, "norm", "sum", x, dim, keepdim, change=size_of)
    if order == 2.0:
        return folded(
            s, "norm", "sum", x, dim, keepdim, change=lambda e: e * e, after=lambda e: function("sqrt", e)
        )  # fmt: skip
    require(order > 0, f"norm of order {order}")
    return folded(
        s, "norm", "sum", x, dim, keepdim, change=lambda e: _power(size_of(e), order),
        after=lambda e: _power(e, 1.0 / order),
    )  # fmt: skip


def _power(x: Expr, order: float) -> Expr:
    return where(compare("eq", x, 0.0), 0.0, function("exp2", order * function("log2", x)))


@rule("norm")
def norm(
    s: Scheduler, input: Value, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None,
    dtype: Any = None,
) -> Value:  # fmt: skip
    """torch.norm: of vectors, over any dimensions."""
    require(p != "nuc", "norm by singular values")
    return vector_length(s, input, 2.0 if p in ("fro", None) else float(p), dim, keepdim)


@rule("linalg_vector_norm", "vector_norm")
def vector_norm(
    s: Scheduler, x: Value, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """Of vectors, over any dimensions."""
    return vector_length(s, x, float(ord), dim, keepdim)


@rule("linalg_matrix_norm", "matrix_norm")
def matrix_norm(
    s: Scheduler, A: Value, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """Frobenius norm, or the largest or smallest sum of a column (±1) or of a row (±∞)."""
    if ord == "fro":
        return vector_length(s, A, 2.0, dim, keepdim)
    require(isinstance(ord, int | float) and abs(ord) in (1, math.inf), f"matrix_norm of order {ord}")
    along, across = (d % len(A.shape) for d in (dim if abs(ord) == 1 else dim[::-1]))
    sums = vector_length(s, A, 1.0, along, True)
    found = folded(s, "norm", "max" if ord > 0 else "min", sums, across, True)
    if keepdim:
        return found
    return reshape(s, found, *(n for d, n in enumerate(A.shape) if d not in (along, across)))  # type: ignore[no-any-return]


@rule("linalg_norm")
def linalg_norm(
    s: Scheduler, A: Value, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """Of matrices where an order and two dimensions are given, else of vectors."""
    dims = dims_of(dim, len(A.shape))
    if ord is None:
        return vector_length(s, A, 2.0, dim, keepdim)
    if len(dims) == 2:
        return matrix_norm(s, A, ord, dims if dim is None else tuple(dim), keepdim)  # type: ignore[no-any-return]
    return vector_length(s, A, float(ord), dim, keepdim)


@rule("dist")
def dist(s: Scheduler, input: Value, other: Value, p: float = 2) -> Value:
    """Norm of a difference."""
    from kernelzero.coldstart.rulebook.loops.rules_pointwise import sub

    return vector_length(s, sub(s, input, other), float(p), None, False)
