"""Expressions: what one element of a tensor is, written once, printed in Triton and in CUDA C++.

An expression is an immutable tree with structural equality, so that equal parts are computed once. Integers are
indices; they are simplified while they are built, because shapes are known. Floating point is computed in 32 bits.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

INT, FLOAT, BOOL = "i", "f", "b"


@dataclass(frozen=True)
class Buffer:
    """Memory that a kernel reads or writes: dense, in row-major order."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Of the elements, e.g. "float32", "int64", "bool"."""

    @property
    def kind(self) -> str:
        """What an element is in an expression."""
        return kind_of(self.dtype)


def kind_of(dtype: str) -> str:
    """INT, FLOAT or BOOL for a dtype's name."""
    return BOOL if dtype == "bool" else FLOAT if dtype.startswith(("float", "bfloat")) else INT


@dataclass(frozen=True)
class Expr:
    """A node. `op` says what it is; `args` are expressions, or plain values where the operation says so.

    const (value) · var (name) · load (Buffer, index, mask or None, other) · fold (kind, ((var, extent), …), body) ·
    result (name): what the core of the kernel at hand computes for the element · cast · where (cond, a, b) ·
    everything else by name: add sub mul div mod … lt le eq … and or not … exp tanh …
    """

    op: str
    args: tuple[Any, ...]
    kind: str

    def __post_init__(self) -> None:
        # Trees are shared and looked up all the time; hashing one anew would walk all of it.
        object.__setattr__(self, "_hash", hash((self.op, self.args, self.kind)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def __add__(self, other: Operand) -> Expr:
        return add(self, other)

    def __radd__(self, other: Operand) -> Expr:
        return add(other, self)

    def __sub__(self, other: Operand) -> Expr:
        return sub(self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return sub(other, self)

    def __mul__(self, other: Operand) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return mul(other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", as_float(self), as_float(other))

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", as_float(other), as_float(self))

    def __floordiv__(self, other: int) -> Expr:
        return floordiv(self, other)

    def __mod__(self, other: int) -> Expr:
        return modulo(self, other)

    def __neg__(self) -> Expr:
        return sub(0, self) if self.kind == INT else Expr("neg", (self,), FLOAT)

    def __lt__(self, other: Operand) -> Expr:
        return compare("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return compare("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return compare("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return compare("ge", self, other)

    def __and__(self, other: Expr) -> Expr:
        return both(self, other)

    @property
    def constant(self) -> Any:
        """The value of a constant, None for everything else."""
        return self.args[0] if self.op == "const" else None


Operand = Expr | int | float | bool


def const(value: Operand) -> Expr:
    """A constant; an expression stays what it is."""
    if isinstance(value, Expr):
        return value
    kind = BOOL if isinstance(value, bool) else INT if isinstance(value, int) else FLOAT
    return Expr("const", (value,), kind)


def var(name: str) -> Expr:
    """An index."""
    return Expr("var", (name,), INT)


def as_float(value: Operand) -> Expr:
    """The value in floating point."""
    value = const(value)
    if value.kind == FLOAT:
        return value
    if value.op == "const":
        return const(float(value.args[0]))
    return Expr("cast", (value,), FLOAT)


def as_int(value: Operand) -> Expr:
    """The value as an integer, cut off towards zero."""
    value = const(value)
    if value.kind == INT:
        return value
    if value.op == "const":
        return const(int(value.args[0]))
    return Expr("cast", (value,), INT)


def as_bool(value: Operand) -> Expr:
    """Whether the value is not zero."""
    value = const(value)
    return value if value.kind == BOOL else compare("ne", value, 0 if value.kind == INT else 0.0)


def as_kind(value: Operand, kind: str) -> Expr:
    """The value as INT, FLOAT or BOOL."""
    return {INT: as_int, FLOAT: as_float, BOOL: as_bool}[kind](value)


# --- arithmetic ------------------------------------------------------------------------------------------------------


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """A binary operation on values of one kind: FLOAT if one of them is."""
    a, b = const(a), const(b)
    if FLOAT in (a.kind, b.kind):
        a, b = as_float(a), as_float(b)
        if b.constant == {"mul": 1.0, "div": 1.0, "add": 0.0, "sub": 0.0}.get(op):
            return a
        if a.constant == {"mul": 1.0, "add": 0.0}.get(op, float("nan")):
            return b
        return Expr(op, (a, b), FLOAT)
    return Expr(op, (as_int(a), as_int(b)), INT)


def add(a: Operand, b: Operand) -> Expr:
    """a + b."""
    a, b = const(a), const(b)
    if FLOAT in (a.kind, b.kind):
        return binary("add", a, b)
    terms = _terms(a, 1) + _terms(b, 1)
    return _sum(terms)


def sub(a: Operand, b: Operand) -> Expr:
    """a − b."""
    a, b = const(a), const(b)
    if FLOAT in (a.kind, b.kind):
        return binary("sub", a, b)
    return _sum(_terms(a, 1) + _terms(b, -1))


def mul(a: Operand, b: Operand) -> Expr:
    """a · b."""
    a, b = const(a), const(b)
    if FLOAT in (a.kind, b.kind):
        return binary("mul", a, b)
    if a.op == "const":
        a, b = b, a
    if b.op == "const":
        return _sum([(e, c * b.args[0]) for e, c in _terms(a, 1)])
    return Expr("mul", (as_int(a), as_int(b)), INT)


def _terms(value: Expr, factor: int) -> list[tuple[Expr | None, int]]:
    """An integer as a sum of (expression, coefficient); None is one."""
    if value.kind == BOOL:
        value = as_int(value)
    if value.op == "const":
        return [(None, value.args[0] * factor)]
    if value.op == "sum":
        return [(e, c * factor) for e, c in value.args]
    return [(value, factor)]


def _sum(terms: Sequence[tuple[Expr | None, int]]) -> Expr:
    total: dict[Expr | None, int] = {}
    for expression, factor in terms:
        total[expression] = total.get(expression, 0) + factor
    kept = [(e, c) for e, c in total.items() if c and e is not None]
    offset = total.get(None, 0)
    joined = _joined(kept)
    if joined is not None:
        return _sum([*joined, (None, offset)])
    if not kept:
        return const(offset)
    if not offset and len(kept) == 1 and kept[0][1] == 1:
        return kept[0][0]
    return Expr("sum", (*kept, *([(None, offset)] if offset else [])), INT)


def _joined(terms: list[tuple[Expr, int]]) -> list[tuple[Expr | None, int]] | None:
    """(x / d·m) · k·m + ((x / d) mod m) · k is (x / d) · k: an index taken apart and put together again.

    None where there is no such pair.
    """
    for quotient, factor in terms:
        if quotient.op != "floordiv":
            continue
        x, divisor = quotient.args
        for part, share in terms:
            if part.op != "mod" or share * part.args[1] != factor or divisor % part.args[1]:
                continue
            inner = floordiv(x, divisor // part.args[1])
            if inner == part.args[0]:
                others = [t for t in terms if t not in ((quotient, factor), (part, share))]
                return [*others, *_terms(inner, share)]
    return None


def floordiv(a: Operand, b: int) -> Expr:
    """a / b rounded down, for a ≥ 0 and b > 0."""
    a = as_int(a)
    if b == 1:
        return a
    if a.op == "const":
        return const(a.args[0] // b)
    if a.op == "floordiv":
        return floordiv(a.args[0], a.args[1] * b)
    even = [(e, c // b) for e, c in _terms(a, 1) if c % b == 0]
    odd = [(e, c) for e, c in _terms(a, 1) if c % b]
    if even and all(c > 0 for _, c in odd):
        rest = _sum(odd)
        if upper(rest) < b:
            return _sum(even)
        return _sum([*even, (Expr("floordiv", (rest, b), INT), 1)])
    return const(0) if upper(a) < b else Expr("floordiv", (a, b), INT)


def modulo(a: Operand, b: int) -> Expr:
    """a mod b, for a ≥ 0 and b > 0."""
    a = as_int(a)
    if b == 1:
        return const(0)
    if a.op == "const":
        return const(a.args[0] % b)
    odd = [(e, c) for e, c in _terms(a, 1) if c % b]
    if len(odd) < len(_terms(a, 1)) and all(c > 0 for _, c in odd):
        a = _sum(odd)
    return a if upper(a) < b else Expr("mod", (a, b), INT)


_BOUNDS: dict[str, int] = {}
"""Variable → how many values it takes. Names are unique in one kernel's making."""


def bounded(name: str, extent: int) -> Expr:
    """An index that runs from 0 to `extent` − 1; one that takes a single value is 0."""
    _BOUNDS[name] = extent
    return const(0) if extent == 1 else var(name)


def upper(value: Expr) -> float:
    """The largest value of an index, as far as is known."""
    if value.op == "const":
        return float(value.args[0])
    if value.op == "var":
        return float(_BOUNDS.get(value.args[0], 0) - 1 if value.args[0] in _BOUNDS else float("inf"))
    if value.op == "sum":
        return sum(c * upper(e) if e is not None and c > 0 else (c if e is None else 0.0) for e, c in value.args)
    if value.op == "mod":
        return min(value.args[1] - 1, upper(value.args[0]))
    if value.op == "floordiv":
        return upper(value.args[0]) // value.args[1]
    return float("inf")


# --- comparisons and choices -----------------------------------------------------------------------------------------


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def compare(op: str, a: Operand, b: Operand) -> Expr:
    """lt, le, gt, ge, eq or ne."""
    a, b = const(a), const(b)
    if FLOAT in (a.kind, b.kind):
        a, b = as_float(a), as_float(b)
    elif a.kind != b.kind:
        a, b = as_int(a), as_int(b)
    if a.kind == INT and b.op == "const":
        if a.op == "const":
            return const(_COMPARISONS[op](a.args[0], b.args[0]))
        if op == "lt" and upper(a) < b.args[0]:
            return const(True)
        if op == "ge" and b.args[0] <= 0 and not _may_be_negative(a):
            return const(True)
    return Expr(op, (a, b), BOOL)


def _may_be_negative(value: Expr) -> bool:
    return value.op not in ("var", "mod", "floordiv") and not (
        value.op == "sum" and all(c >= 0 and (e is None or not _may_be_negative(e)) for e, c in value.args)
    )


def both(a: Operand | None, b: Operand | None) -> Expr:
    """a and b; None is true."""
    left, right = (const(True) if x is None else as_bool(x) for x in (a, b))
    if left.constant is True or right.constant is False:
        return right
    if right.constant is True or left.constant is False:
        return left
    return left if left == right else Expr("and", (left, right), BOOL)


def conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that all have to hold."""
    return [part for a in condition.args for part in conjuncts(a)] if condition.op == "and" else [condition]


def where(condition: Operand, a: Operand, b: Operand) -> Expr:
    """a where the condition holds, else b."""
    condition, a, b = as_bool(condition), const(a), const(b)
    if condition.op == "const":
        return a if condition.args[0] else b
    kind = FLOAT if FLOAT in (a.kind, b.kind) else INT if INT in (a.kind, b.kind) else BOOL
    return Expr("where", (condition, as_kind(a, kind), as_kind(b, kind)), kind)


def function(name: str, *values: Operand) -> Expr:
    """A function of floating-point values: exp, log, tanh, erf, sqrt, rsqrt, floor, max, min, pow, abs, …"""
    return Expr(name, tuple(as_float(v) for v in values), FLOAT)


# --- memory and loops ------------------------------------------------------------------------------------------------


def load(buffer: Buffer, index: Operand, mask: Expr | None = None, other: float = 0.0) -> Expr:
    """An element of a buffer by its place in memory; `other` where the mask does not hold: nothing is read there."""
    if mask is not None and mask.constant is True:
        mask = None
    if mask is not None and mask.constant is False:
        return as_kind(other, buffer.kind)
    return Expr("load", (buffer, as_int(index), mask, other), buffer.kind)


NEUTRAL = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}
"""Folds and their neutral elements."""


def fold(kind: str, extents: Sequence[tuple[str, int]], body: Expr) -> Expr:
    """The body over all values of some indices, added up or whatever `kind` says (see NEUTRAL), one after another."""
    loops = tuple((name, extent) for name, extent in extents if extent != 1)
    return Expr("fold", (kind, loops, as_float(body)), FLOAT) if loops else as_float(body)


def result(name: str, index: Sequence[Expr], kind: str = FLOAT) -> Expr:
    """What the core of a kernel gives for the element with this index."""
    return Expr("result", (name, tuple(index)), kind)


# --- walking ---------------------------------------------------------------------------------------------------------


def children(value: Expr) -> Iterator[Expr]:
    """Sub-expressions of a node."""
    if value.op in ("const", "var"):
        return
    if value.op == "load":
        yield value.args[1]
        if value.args[2] is not None:
            yield value.args[2]
    elif value.op == "fold":
        yield value.args[2]
    elif value.op == "sum":
        yield from (e for e, _ in value.args if e is not None)
    elif value.op == "result":
        yield from value.args[1]
    else:
        yield from (a for a in value.args if isinstance(a, Expr))


def walk(value: Expr) -> Iterator[Expr]:
    """A node and all below it, each distinct one once."""
    seen: set[Expr] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting.extend(children(node))


def rewritten(value: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The tree with nodes replaced where `change` gives something, from the root; simplified again."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in done:
            new = change(node)
            done[node] = new if new is not None else _rebuilt(node, visit)
        return done[node]

    return visit(value)


def _rebuilt(node: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    if node.op in ("const", "var"):
        return node
    if node.op == "load":
        buffer, index, mask, other = node.args
        return load(buffer, visit(index), None if mask is None else visit(mask), other)
    if node.op == "fold":
        return fold(node.args[0], node.args[1], visit(node.args[2]))
    if node.op == "sum":
        return _sum([t for e, c in node.args for t in ([(None, c)] if e is None else _terms(visit(e), c))])
    if node.op == "result":
        return result(node.args[0], [visit(i) for i in node.args[1]], node.kind)
    if node.op == "floordiv":
        return floordiv(visit(node.args[0]), node.args[1])
    if node.op == "mod":
        return modulo(visit(node.args[0]), node.args[1])
    if node.op in _SIMPLIFIED:
        return _SIMPLIFIED[node.op](*(visit(a) for a in node.args))
    return Expr(node.op, tuple(visit(a) if isinstance(a, Expr) else a for a in node.args), node.kind)


_SIMPLIFIED: dict[str, Callable[..., Expr]] = {
    "and": both, "where": where, **{op: functools.partial(compare, op) for op in _COMPARISONS},
}  # fmt: skip


def substituted(value: Expr, names: dict[str, Expr]) -> Expr:
    """The tree with variables replaced by expressions."""
    return rewritten(value, lambda n: names.get(n.args[0]) if n.op == "var" else None)


# --- index helpers ---------------------------------------------------------------------------------------------------


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, size = [], 1
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))


def flat(index: Sequence[Operand], shape: Sequence[int]) -> Expr:
    """Place in memory of an index."""
    place = const(0)
    for i, stride in zip(index, strides_of(shape), strict=True):
        place = add(place, mul(i, stride))
    return place


def unflat(place: Operand, shape: Sequence[int]) -> tuple[Expr, ...]:
    """Index of a place in memory."""
    place = as_int(place)
    found = []
    for number, (extent, stride) in enumerate(zip(shape, strides_of(shape), strict=True)):
        part = floordiv(place, stride)
        found.append(const(0) if extent == 1 else part if number == 0 else modulo(part, extent))
    return tuple(found)
