"""Products: linear, matmul and bmm with broadcast batches, einsum of two, outer and dot products, bilinear."""

from __future__ import annotations

from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import Expr, as_float, bounded, const, fold, kind_of, walk
from kernelzero.coldstart.rulebook.loops.rules import broadcast, pointwise, require, rows, rule, stage
from kernelzero.coldstart.rulebook.loops.rules_layout import permute, reshape, transpose
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Elements, Index, Product, Value

_SHORT = 16
"""Sums of so few products are done by one thread each."""


def plain(s: Scheduler, value: Value) -> Value:
    """The value as operand of a product: elements are read many times, so what costs something is stored first."""
    found = s.read(value)
    index = tuple(bounded(f"c{d}", n) for d, n in enumerate(value.shape))
    cheap = {"const", "var", "sum", "floordiv", "mod", "load", "cast"}
    return found if all(n.op in cheap for n in walk(found.at(index))) else s.keep(value)


def contracted(s: Scheduler, name: str, core: Product, shape: tuple[int, ...], dtype: str) -> Value:
    """A product's value; where the sum or a side is tiny, each element by a loop of its own."""
    from kernelzero.coldstart.rulebook.loops.value import size

    if size(core.k) > _SHORT and 1 in (size(core.m), size(core.n)):
        return _as_rows(s, name, core, shape, dtype)
    if size(core.k) <= _SHORT or min(size(core.m), size(core.n)) < 8:
        return s.heavy(Elements(by_loop(s, core, shape)), shape, dtype, name)
    return s.heavy(core, shape, dtype, name)


def _as_rows(s: Scheduler, name: str, core: Product, shape: tuple[int, ...], dtype: str) -> Value:
    """A product with a vector: each sum is a row's."""
    lengths = [len(e) for e in (core.batch, core.m, core.n)]
    space = (*core.batch, *core.m, *core.n, *core.k)
    dims = tuple(range(sum(lengths), len(space)))

    def element(i: Index) -> Expr:
        z, m = i[: lengths[0]], i[lengths[0] : sum(lengths[:2])]
        n, k = i[sum(lengths[:2]) : sum(lengths)], i[sum(lengths) :]
        return core.a(z, m, k) * core.b(z, k, n)

    products = Value(space, dtype, element)
    sums = rows(
        s, name, products, dims, lambda at: [stage(s, "sum", lambda i: as_float(at(i)))],
        lambda at, found: lambda i: found[0], per_row=True,
    )  # fmt: skip
    names = [[f"?{side}{d}" for d in range(n)] for side, n in zip("zmn", lengths, strict=True)]
    order = core.out(*(tuple(Expr("var", (name,), "i") for name in side) for side in names))
    place = [name for side in names for name in side]
    wanted = [place.index(index.args[0]) for index in order]
    return sums if wanted == sorted(wanted) else permute(s, sums, *wanted)


def by_loop(s: Scheduler, core: Product, shape: tuple[int, ...]) -> Any:
    """The same, one element at a time. The output's index has to be batch, m and n in this order."""
    ranks = len(core.batch), len(core.m)

    def at(index: Index) -> Expr:
        z, m, n = _parts(core, index)
        names = [s.name("k") for _ in core.k]
        k = tuple(bounded(a, extent) for a, extent in zip(names, core.k, strict=True))
        return fold("sum", list(zip(names, core.k, strict=True)), core.a(z, m, k) * core.b(z, k, n))

    del ranks, shape
    return at


def _parts(core: Product, index: Index) -> tuple[Index, Index, Index]:
    """(batch, m, n) of an output's index: `out` only changes the order, and leaves out what has one element."""
    marks = [
        tuple(Expr("var", (f"?{side}{d}",), "i") for d in range(len(extents)))
        for side, extents in (("z", core.batch), ("m", core.m), ("n", core.n))
    ]
    order = core.out(*marks)
    known = {mark: place for mark, place in zip(order, index, strict=True)}
    found = tuple(tuple(known.get(mark, const(0)) for mark in side) for side in marks)
    return found[0], found[1], found[2]


@rule("matmul", "mm", "bmm", "__matmul__", "mv", "dot", "vdot", "linalg_matmul")
def matmul(s: Scheduler, input: Value, other: Value) -> Value:
    """torch.matmul with its rules of broadcasting."""
    require(kind_of(input.dtype) == "f" and kind_of(other.dtype) == "f", "matmul of integers")
    a, b = input, other
    if len(a.shape) == 1:
        a = reshape(s, a, 1, a.shape[0])
    if len(b.shape) == 1:
        b = reshape(s, b, b.shape[0], 1)
    found = _batched(s, a, b)
    shape = list(found.shape)
    if len(input.shape) == 1:
        shape.pop(-2)
    if len(other.shape) == 1:
        shape.pop(-1)
    return found if tuple(shape) == found.shape else reshape(s, found, *shape)


def _batched(s: Scheduler, a: Value, b: Value) -> Value:
    x, y = plain(s, a), plain(s, b)
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    if len(b.shape) == 2:
        core = Product(
            (), a.shape[:-1], (columns,), (depth,),
            lambda z, m, k: as_float(x.at((*m, *k))), lambda z, k, n: as_float(y.at((*k, *n))),
            lambda z, m, n: (*m, *n),
        )  # fmt: skip
        return contracted(s, "matmul", core, (*a.shape[:-1], columns), a.dtype)
    batch = broadcast([a.shape[:-2], b.shape[:-2]])

    def lead(value: Value, z: Index) -> Index:
        own = z[len(z) - (len(value.shape) - 2) :]
        return tuple(const(0) if n == 1 else i for i, n in zip(own, value.shape[:-2], strict=True))

    core = Product(
        batch, (rows,), (columns,), (depth,),
        lambda z, m, k: as_float(x.at((*lead(x, z), *m, *k))), lambda z, k, n: as_float(y.at((*lead(y, z), *k, *n))),
        lambda z, m, n: (*z, *m, *n),
    )  # fmt: skip
    return contracted(s, "matmul", core, (*batch, rows, columns), a.dtype)


@rule("linear")
def linear(s: Scheduler, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """x Wᵀ + b; the weight is read as it lies."""
    x = plain(s, input)
    require(len(weight.shape) == 2, "linear with a vector")
    core = Product(
        (), input.shape[:-1], (weight.shape[0],), (weight.shape[1],),
        lambda z, m, k: as_float(x.at((*m, *k))), lambda z, k, n: as_float(weight.at((*n, *k))),
        lambda z, m, n: (*m, *n),
    )  # fmt: skip
    product = contracted(s, "linear", core, (*input.shape[:-1], weight.shape[0]), input.dtype)
    return product if bias is None else pointwise(s, "bias", lambda a, b: as_float(a) + b, product, bias)


def _scaled_sum(s: Scheduler, name: str, input: Value, product: Value, beta: float, alpha: float) -> Value:
    return pointwise(s, name, lambda c, p: as_float(c) * float(beta) + as_float(p) * float(alpha), input, product)


@rule("addmm", "baddbmm", "addmv")
def addmm(s: Scheduler, input: Value, mat1: Value, mat2: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    """βC + αAB."""
    return _scaled_sum(s, "addmm", input, matmul(s, mat1, mat2), beta, alpha)


@rule("addbmm")
def addbmm(s: Scheduler, input: Value, batch1: Value, batch2: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    """βC + αΣ A B over the batch: one product whose sum runs over the batch as well."""
    return _scaled_sum(s, "addbmm", input, einsum(s, "bij,bjk->ik", batch1, batch2), beta, alpha)


@rule("inner")
def inner(s: Scheduler, input: Value, other: Value) -> Value:
    """Sums of products along the last dimensions of both."""
    if not input.shape or not other.shape:
        return pointwise(s, "mul", lambda x, y: as_float(x) * y, input, other)
    if len(input.shape) == len(other.shape) == 1:
        return matmul(s, input, other)  # type: ignore[no-any-return]
    return tensordot(s, input, other, dims=([-1], [-1]))  # type: ignore[no-any-return]


@rule("outer", "ger")
def outer(s: Scheduler, input: Value, vec2: Value) -> Value:
    """All products of two vectors' elements."""
    a, b = reshape(s, input, input.shape[0], 1), reshape(s, vec2, 1, vec2.shape[0])
    return pointwise(s, "outer", lambda x, y: as_float(x) * y, a, b)


@rule("einsum")
def einsum(s: Scheduler, equation: str, *operands: Any) -> Value:
    """Of one or two operands, each letter once in each."""
    values = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], tuple | list) else list(operands)
    text = equation.replace(" ", "")
    require("..." not in text and len(values) in (1, 2), f"einsum {text}")
    left, _, right = text.partition("->")
    terms = left.split(",")
    require(all(len(set(t)) == len(t) for t in terms), f"einsum {text}")
    letters = "".join(terms)
    if "->" not in text:
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    extents = {c: n for term, v in zip(terms, values, strict=True) for c, n in zip(term, v.shape, strict=True)}
    if len(values) == 1:
        return _einsum_one(s, terms[0], right, values[0])
    return _einsum_two(s, terms, right, values, extents)


def _einsum_one(s: Scheduler, term: str, right: str, x: Value) -> Value:
    from kernelzero.coldstart.rulebook.loops.rules_layout import permute
    from kernelzero.coldstart.rulebook.loops.rules_reductions import sum_

    gone = tuple(d for d, c in enumerate(term) if c not in right)
    kept = [c for c in term if c in right]
    value = sum_(s, x, gone) if gone else x
    return permute(s, value, *(kept.index(c) for c in right)) if right else value  # type: ignore[no-any-return]


def _einsum_two(s: Scheduler, terms: list[str], right: str, values: list[Value], extents: dict[str, int]) -> Value:
    first, second = terms
    batch = [c for c in right if c in first and c in second]
    m = [c for c in right if c in first and c not in second]
    n = [c for c in right if c in second and c not in first]
    k = [c for c in dict.fromkeys(first + second) if c not in right]
    require(len(batch) + len(m) + len(n) == len(right), f"einsum to {right}")
    x, y = plain(s, values[0]), plain(s, values[1])

    def place(term: str, known: dict[str, Expr]) -> Index:
        return tuple(known[c] for c in term)

    def names(letters: list[str], index: Index) -> dict[str, Expr]:
        return dict(zip(letters, index, strict=True))

    core = Product(
        tuple(extents[c] for c in batch), tuple(extents[c] for c in m), tuple(extents[c] for c in n),
        tuple(extents[c] for c in k),
        lambda z, i, r: _masked(x, first, names(batch, z) | names(m, i) | names(k, r), place),
        lambda z, r, j: _masked(y, second, names(batch, z) | names(n, j) | names(k, r), place),
        lambda z, i, j: place(right, names(batch, z) | names(m, i) | names(n, j)),
    )  # fmt: skip
    return contracted(s, "einsum", core, tuple(extents[c] for c in right), values[0].dtype)


def _masked(value: Value, term: str, known: dict[str, Expr], place: Any) -> Expr:
    return as_float(value.at(place(term, known)))


@rule("bilinear")
def bilinear(s: Scheduler, input1: Value, input2: Value, weight: Value, bias: Value | None = None) -> Value:
    """x₁ᵀ W x₂ for each output: first W x₂, then the sum over x₁."""
    a, b, w = s.read(input1), s.read(input2), weight
    outputs, rows, columns = weight.shape
    shape = (*input1.shape[:-1], outputs)

    def at(i: Index) -> Expr:
        names = s.name("k"), s.name("k")
        j, k = bounded(names[0], rows), bounded(names[1], columns)
        body = as_float(a.at((*i[:-1], j))) * as_float(w.at((i[-1], j, k))) * as_float(b.at((*i[:-1], k)))
        return fold("sum", [(names[0], rows), (names[1], columns)], body)

    product = s.heavy(Elements(at), shape, input1.dtype, "bilinear")
    return product if bias is None else pointwise(s, "bias", lambda x, y: as_float(x) + y, product, bias)


@rule("scaled_dot_product_attention")
def attention(
    s: Scheduler,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Softmax of scaled products, times the values: three kernels."""
    from kernelzero.coldstart.rulebook.loops.expr import where
    from kernelzero.coldstart.rulebook.loops.rules_norms import softmax

    require(dropout_p == 0.0 and not enable_gqa, "attention with dropout or grouped heads")
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = pointwise(s, "scale", lambda x: as_float(x) * factor, matmul(s, query, transpose(s, key, -2, -1)))
    if attn_mask is not None:
        require(attn_mask.dtype != "bool", "attention with a mask of booleans")
        scores = pointwise(s, "mask", lambda x, m: as_float(x) + m, scores, attn_mask)
    if is_causal:
        inner = scores
        scores = s.cheap(
            inner.shape, inner.dtype, lambda i: where(i[-1] <= i[-2], inner.at(i), float("-inf")), "mask", [inner]
        )
    return matmul(s, softmax(s, scores, -1), value)  # type: ignore[no-any-return]


@rule("tensordot")
def tensordot(s: Scheduler, a: Value, b: Value, dims: Any = 2, out: None = None) -> Value:
    """Sums over the last dimensions of one and the first of the other, or over those that are named."""
    if isinstance(dims, int):
        left, right = list(range(len(a.shape) - dims, len(a.shape))), list(range(dims))
    else:
        left, right = ([d % len(v.shape) for d in named] for v, named in zip((a, b), dims, strict=True))
    letters = "abcdefghijklmnopqrstuvwxyz"
    first = letters[: len(a.shape)]
    second = list(letters[len(a.shape) : len(a.shape) + len(b.shape)])
    for d, e in zip(left, right, strict=True):
        second[e] = first[d]
    kept = [c for d, c in enumerate(first) if d not in left] + [c for e, c in enumerate(second) if e not in right]
    return einsum(s, f"{first},{''.join(second)}->{''.join(kept)}", a, b)  # type: ignore[no-any-return]


@rule("chain_matmul", "multi_dot", "linalg_multi_dot")
def chain_matmul(s: Scheduler, *matrices: Any) -> Value:
    """Products from left to right."""
    values = list(matrices[0]) if len(matrices) == 1 and isinstance(matrices[0], tuple | list) else list(matrices)
    found = values[0]
    for value in values[1:]:
        found = matmul(s, found, value)
    return found  # type: ignore[no-any-return]


@rule("vecdot", "linalg_vecdot")
def vecdot(s: Scheduler, x: Value, y: Value, *, dim: int = -1) -> Value:
    """Dot products along a dimension."""
    from kernelzero.coldstart.rulebook.loops.rules_reductions import sum_

    return sum_(s, pointwise(s, "mul", lambda a, b: as_float(a) * b, x, y), dim)  # type: ignore[no-any-return]


@rule("kron")
def kron(s: Scheduler, input: Value, other: Value) -> Value:
    """All products, in blocks."""
    require(len(input.shape) == len(other.shape), "kron of different ranks")
    shape = tuple(m * n for m, n in zip(input.shape, other.shape, strict=True))

    def at(i: Index) -> Expr:
        block = tuple(e // n for e, n in zip(i, other.shape, strict=True))
        inside = tuple(e % n for e, n in zip(i, other.shape, strict=True))
        return as_float(input.at(block)) * other.at(inside)

    return s.cheap(shape, input.dtype, at, "kron", [input, other])


@rule("addr")
def addr(s: Scheduler, input: Value, vec1: Value, vec2: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    """βC + α·a bᵀ."""
    return _scaled_sum(s, "addr", input, outer(s, vec1, vec2), beta, alpha)


@rule("cdist")
def cdist(s: Scheduler, x1: Value, x2: Value, p: float = 2.0, compute_mode: Any = None) -> Value:
    """Distances of all pairs of rows, each by a loop of its own."""
    from kernelzero.coldstart.rulebook.loops.expr import function

    require(float(p) in (1.0, 2.0), f"cdist with p={p}")
    a, b = s.read(x1), s.read(x2)
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    shape = (*batch, a.shape[-2], b.shape[-2])

    def lead(value: Value, i: Index) -> Index:
        own = i[: len(batch)][len(batch) - (len(value.shape) - 2) :]
        return tuple(const(0) if n == 1 else e for e, n in zip(own, value.shape[:-2], strict=True))

    def at(i: Index) -> Expr:
        name = s.name("k")
        k = bounded(name, a.shape[-1])
        gap = as_float(a.at((*lead(a, i), i[-2], k))) - b.at((*lead(b, i), i[-1], k))
        body = function("abs", gap) if float(p) == 1.0 else gap * gap
        total = fold("sum", [(name, a.shape[-1])], body)
        return total if float(p) == 1.0 else function("sqrt", total)

    return s.heavy(Elements(at), shape, x1.dtype, "cdist")
