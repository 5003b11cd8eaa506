"""Values of a module's graph, and the cores of the kernels that compute them.

A value knows its shape and what each of its elements is, as an expression of its index. Cheap ones (pointwise, views,
gathers) stay expressions and disappear into the kernels that use them. Expensive ones have a core, the part of a kernel
that is more than one expression an element; what follows it element by element becomes its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernelzero.coldstart.rulebook.loops.expr import (
    FLOAT,
    Buffer,
    Expr,
    const,
    flat,
    kind_of,
    load,
    rewritten,
    unflat,
)

Index = tuple[Expr, ...]
At = Callable[[Index], Expr]


@dataclass(eq=False)
class Value:
    """A tensor by its elements."""

    shape: tuple[int, ...]
    dtype: str
    at: At
    """The element with an index."""

    @property
    def kind(self) -> str:
        """What an element is in an expression."""
        return kind_of(self.dtype)


def stored(buffer: Buffer) -> Value:
    """A value that lies in memory."""
    return Value(buffer.shape, buffer.dtype, lambda index: load(buffer, flat(index, buffer.shape)))


# --- cores -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Elements:
    """Each element on its own; loops inside of it are folds of the expression."""

    at: At


@dataclass(frozen=True)
class Stage:
    """A number for each row, from all of its elements and from the stages before."""

    name: str
    fold: str
    """A key of expr.NEUTRAL."""
    at: At
    """What is folded, by the index in the whole space."""
    kind: str = FLOAT

    @property
    def value(self) -> Expr:
        """The number, for what comes after."""
        return Expr("stage", (self.name,), self.kind)


@dataclass(frozen=True)
class Rows:
    """Rows along some dimensions of a space: stages, then an element or one number a row."""

    space: tuple[int, ...]
    inner: tuple[int, ...]
    """Dimensions that a row runs along."""
    stages: tuple[Stage, ...]
    final: At
    """By the index in the space (per row: that of any element of the row)."""
    per_row: bool
    keepdim: bool = False
    """Per row: whether the inner dimensions stay, with one element each."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output."""
        if not self.per_row:
            return self.space
        if self.keepdim:
            return tuple(1 if d in self.inner else n for d, n in enumerate(self.space))
        return tuple(n for d, n in enumerate(self.space) if d not in self.inner)

    def out(self, index: Index) -> Index:
        """Where the output of a row or of an element of it goes."""
        if not self.per_row:
            return index
        if self.keepdim:
            return tuple(const(0) if d in self.inner else i for d, i in enumerate(index))
        return tuple(i for d, i in enumerate(index) if d not in self.inner)


@dataclass(frozen=True)
class Product:
    """A sum of products over k of a(batch, m, k) and b(batch, k, n), each of them an index of several dimensions."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: Callable[[Index, Index, Index], Expr]
    b: Callable[[Index, Index, Index], Expr]
    out: Callable[[Index, Index, Index], Index]
    """(batch, m, n) → index of the output."""


@dataclass(frozen=True)
class Scan:
    """Running folds along one dimension."""

    space: tuple[int, ...]
    dim: int
    fold: str
    at: At


Core = Elements | Rows | Product | Scan


@dataclass(frozen=True)
class Kernel:
    """One kernel: a core, and what is stored of each of its elements."""

    name: str
    core: Core
    out: Buffer
    epilogue: At
    """What is stored, by the index of the output; it speaks of the core's element as result(name, index)."""
    operators: tuple[str, ...] = ()
    """What it computes, in PyTorch's words."""

    def stores(self, index: Index, core: Expr) -> Expr:
        """What is stored, with the core's element put in."""

        def change(node: Expr) -> Expr | None:
            return core if node.op == "result" and node.args[0] == self.name else None

        return rewritten(self.epilogue(index), change)


@dataclass
class Program:
    """What `forward` does: kernels one after another."""

    inputs: list[Buffer] = field(default_factory=list)
    parameters: dict[Buffer, str] = field(default_factory=dict)
    """Buffer → expression in `forward`, e.g. "self.linear.weight"."""
    kernels: list[Kernel] = field(default_factory=list)
    views: dict[Buffer, Buffer] = field(default_factory=dict)
    """The same memory under another shape: what it is called then → what it is."""
    outputs: list[Buffer] = field(default_factory=list)
    is_tuple: bool = False


def in_row(space: Sequence[int], inner: Sequence[int], row: Expr, place: Expr) -> Index:
    """The whole index from a row's number and a place in the row."""
    outer = [d for d in range(len(space)) if d not in inner]
    found = dict(zip(outer, unflat(row, [space[d] for d in outer]), strict=True))
    found |= dict(zip(inner, unflat(place, [space[d] for d in inner]), strict=True))
    return tuple(found[d] for d in range(len(space)))


def power_of_two(count: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, count - 1).bit_length()


def size(shape: Sequence[int]) -> int:
    """Number of elements."""
    count = 1
    for extent in shape:
        count *= extent
    return count
