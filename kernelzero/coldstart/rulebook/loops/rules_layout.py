"""Views and rearrangements: each element is another one's, so they cost nothing inside of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import (
    Expr,
    add,
    as_kind,
    compare,
    const,
    flat,
    kind_of,
    modulo,
    unflat,
    where,
)
from kernelzero.coldstart.rulebook.loops.rules import promoted, require, rule, table
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Index, Value, size


def _ints(given: Sequence[Any]) -> tuple[int, ...]:
    found = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    return tuple(int(n) for n in found)


@rule("reshape", "view", "view_as", "reshape_as")
def reshape(s: Scheduler, input: Value, *shape: Any) -> Value:
    """The same elements in the same order."""
    given = shape[0].shape if len(shape) == 1 and isinstance(shape[0], Value) else _ints(shape)
    count = size(input.shape)
    known = size([n for n in given if n != -1])
    new = tuple(count // max(1, known) if n == -1 else n for n in given)
    require(size(new) == count, "view to another dtype")
    return s.cheap(new, input.dtype, lambda i: input.at(unflat(flat(i, new), input.shape)), "reshape", [input])


@rule("flatten")
def flatten(s: Scheduler, input: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Dimensions made one."""
    rank = len(input.shape)
    first, last = start_dim % rank, end_dim % rank
    return reshape(s, input, *input.shape[:first], size(input.shape[first : last + 1]), *input.shape[last + 1 :])  # type: ignore[no-any-return]


@rule("unflatten")
def unflatten(s: Scheduler, input: Value, dim: int, sizes: Any) -> Value:
    """One dimension made several."""
    d = dim % len(input.shape)
    rest = input.shape[d] // max(1, size([n for n in sizes if n != -1]))
    filled = tuple(rest if n == -1 else n for n in sizes)
    return reshape(s, input, *input.shape[:d], *filled, *input.shape[d + 1 :])  # type: ignore[no-any-return]


@rule("permute")
def permute(s: Scheduler, input: Value, *dims: Any) -> Value:
    """Dimensions in another order."""
    order = [d % len(input.shape) for d in _ints(dims)]
    shape = tuple(input.shape[d] for d in order)

    def at(i: Index) -> Expr:
        place = [const(0)] * len(order)
        for index, d in zip(i, order, strict=True):
            place[d] = index
        return input.at(tuple(place))

    return s.cheap(shape, input.dtype, at, "permute", [input])


@rule("transpose", "swapaxes", "swapdims")
def transpose(s: Scheduler, input: Value, dim0: int, dim1: int) -> Value:
    """Two dimensions swapped."""
    order = list(range(len(input.shape)))
    a, b = dim0 % len(order), dim1 % len(order)
    order[a], order[b] = order[b], order[a]
    return permute(s, input, *order)  # type: ignore[no-any-return]


@rule("t", "numpy_T", "T", "mT")
def t(s: Scheduler, input: Value) -> Value:
    """A matrix transposed."""
    return input if len(input.shape) < 2 else transpose(s, input, -2, -1)


@rule("movedim", "moveaxis")
def movedim(s: Scheduler, input: Value, source: int, destination: int) -> Value:
    """A dimension elsewhere."""
    require(isinstance(source, int) and isinstance(destination, int), "movedim of several dimensions")
    order = [d for d in range(len(input.shape)) if d != source % len(input.shape)]
    order.insert(destination % len(input.shape), source % len(input.shape))
    return permute(s, input, *order)  # type: ignore[no-any-return]


@rule("squeeze")
def squeeze(s: Scheduler, input: Value, dim: Any = None) -> Value:
    """Without dimensions of one element."""
    dims = range(len(input.shape)) if dim is None else [d % len(input.shape) for d in _ints([dim])]
    return reshape(s, input, *(n for d, n in enumerate(input.shape) if not (d in dims and n == 1)))  # type: ignore[no-any-return]


@rule("unsqueeze")
def unsqueeze(s: Scheduler, input: Value, dim: int) -> Value:
    """With one more dimension, of one element."""
    d = dim % (len(input.shape) + 1)
    return reshape(s, input, *input.shape[:d], 1, *input.shape[d:])  # type: ignore[no-any-return]


@rule("contiguous", "clone", "detach", "alias")
def same(s: Scheduler, input: Value, *_: Any, **__: Any) -> Value:
    """What it is."""
    return input


@rule("expand", "expand_as", "broadcast_to")
def expand(s: Scheduler, input: Value, *sizes: Any) -> Value:
    """Repeated without being stored."""
    given = sizes[0].shape if len(sizes) == 1 and isinstance(sizes[0], Value) else _ints(sizes)
    lead = len(given) - len(input.shape)
    shape = tuple(n if n != -1 else input.shape[d - lead] for d, n in enumerate(given))

    def at(i: Index) -> Expr:
        own = i[lead:]
        return input.at(tuple(const(0) if n == 1 else e for e, n in zip(own, input.shape, strict=True)))

    return s.cheap(shape, input.dtype, at, "expand", [input])


@rule("repeat", "tile")
def repeat(s: Scheduler, input: Value, *sizes: Any) -> Value:
    """Several copies along dimensions."""
    times = _ints(sizes)
    times = (1,) * (len(input.shape) - len(times)) + times
    lead = len(times) - len(input.shape)
    shape = tuple(n * (input.shape[d - lead] if d >= lead else 1) for d, n in enumerate(times))

    def at(i: Index) -> Expr:
        return input.at(tuple(modulo(e, n) for e, n in zip(i[lead:], input.shape, strict=True)))

    return s.cheap(shape, input.dtype, at, "repeat", [input])


@rule("repeat_interleave")
def repeat_interleave(s: Scheduler, input: Value, repeats: Any, dim: int | None = None) -> Value:
    """Each element several times."""
    require(isinstance(repeats, int), "repeat_interleave by a tensor")
    x = input if dim is not None else flatten(s, input)
    d = 0 if dim is None else dim % len(x.shape)
    shape = tuple(n * repeats if k == d else n for k, n in enumerate(x.shape))
    return s.cheap(
        shape, x.dtype, lambda i: x.at(tuple(e // repeats if k == d else e for k, e in enumerate(i))),
        "repeat_interleave", [x],
    )  # fmt: skip


@rule("narrow")
def narrow(s: Scheduler, input: Value, dim: int, start: int, length: int) -> Value:
    """A part along a dimension."""
    d = dim % len(input.shape)
    return sliced(s, input, {d: (start % input.shape[d] if start < 0 else start, 1, length)}, ())


@rule("select")
def select(s: Scheduler, input: Value, dim: int, index: int) -> Value:
    """One place of a dimension."""
    d = dim % len(input.shape)
    return sliced(s, input, {d: (index % input.shape[d], 1, 1)}, (d,))


def sliced(s: Scheduler, x: Value, parts: dict[int, tuple[int, int, int]], gone: tuple[int, ...]) -> Value:
    """Dimension → (start, step, length); dimensions in `gone` are dropped."""
    shape = tuple(parts.get(d, (0, 1, n))[2] for d, n in enumerate(x.shape) if d not in gone)

    def at(i: Index) -> Expr:
        given = iter(i)
        place = []
        for d, _ in enumerate(x.shape):
            start, step, _length = parts.get(d, (0, 1, 0))
            place.append(const(start) if d in gone else next(given) * step + start)
        return x.at(tuple(place))

    return s.cheap(shape, x.dtype, at, "slice", [x])


@rule("getitem")
def getitem(s: Scheduler, input: Any, key: Any) -> Any:
    """x[…]: whole numbers, slices, None and an ellipsis; of tuples, the item."""
    if not isinstance(input, Value):
        return input[key]
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(isinstance(k, Value) for k in keys):
        from kernelzero.coldstart.rulebook.loops.rules_gathers import index_tensor

        return index_tensor(s, input, key)
    require(all(isinstance(k, int | slice) or k is None or k is Ellipsis for k in keys), "indexing by a tensor")
    count = sum(isinstance(k, int | slice) for k in keys)
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(input.shape) - count)
    return _indexed(s, input, keys)


def _indexed(s: Scheduler, x: Value, keys: list[Any]) -> Value:
    parts: dict[int, tuple[int, int, int]] = {}
    gone: list[int] = []
    shape: list[int] = []
    d = 0
    for key in keys:
        if key is None:
            shape.append(1)
            continue
        extent = x.shape[d]
        if isinstance(key, int):
            parts[d] = (key % extent, 1, 1)
            gone.append(d)
        else:
            start, stop, step = key.indices(extent)
            parts[d] = (start, step, len(range(start, stop, step)))
            shape.append(parts[d][2])
        d += 1
    value = sliced(s, x, parts, tuple(gone))
    new = (*shape, *x.shape[d:])
    return value if new == value.shape else reshape(s, value, *new)  # type: ignore[no-any-return]


@rule("chunk")
def chunk(s: Scheduler, input: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    """Equal parts."""
    extent = input.shape[dim % len(input.shape)]
    return split(s, input, -(-extent // chunks), dim)  # type: ignore[no-any-return]


@rule("tensor_split")
def tensor_split(s: Scheduler, input: Value, indices_or_sections: Any, dim: int = 0) -> tuple[Value, ...]:
    """So many parts, the first ones longer by one where it does not come out even; or parts that begin at places."""
    require(not isinstance(indices_or_sections, Value), "tensor_split by a tensor")
    extent = input.shape[dim % len(input.shape)]
    if isinstance(indices_or_sections, int):
        each, more = divmod(extent, indices_or_sections)
        lengths = [each + (k < more) for k in range(indices_or_sections)]
    else:
        ends = [max(0, min(extent, p + extent if p < 0 else p)) for p in indices_or_sections]
        lengths = [max(0, b - a) for a, b in zip([0, *ends], [*ends, extent], strict=True)]
    require(min(lengths) > 0, "tensor_split with empty parts")
    return split(s, input, lengths, dim)  # type: ignore[no-any-return]


@rule("split", "split_with_sizes")
def split(s: Scheduler, input: Value, split_size_or_sections: Any, dim: int = 0) -> tuple[Value, ...]:
    """Parts of given lengths."""
    d = dim % len(input.shape)
    extent, each = input.shape[d], split_size_or_sections
    lengths = [min(each, extent - a) for a in range(0, extent, each)] if isinstance(each, int) else list(each)
    starts = [sum(lengths[:k]) for k in range(len(lengths))]
    return tuple(sliced(s, input, {d: (a, 1, n)}, ()) for a, n in zip(starts, lengths, strict=True))


@rule("unbind")
def unbind(s: Scheduler, input: Value, dim: int = 0) -> tuple[Value, ...]:
    """All places of a dimension."""
    return tuple(select(s, input, dim, k) for k in range(input.shape[dim % len(input.shape)]))


@rule("cat", "concat", "concatenate")
def cat(s: Scheduler, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Side by side along a dimension."""
    d = dim % len(tensors[0].shape)
    dtype = promoted(list(tensors))
    total = sum(v.shape[d] for v in tensors)
    shape = tuple(total if k == d else n for k, n in enumerate(tensors[0].shape))
    sources = [s.read(v) for v in tensors]

    def at(i: Index) -> Expr:
        found, end = None, total
        for value in reversed(sources):
            start = end - value.shape[d]
            place = tuple(guarded(add(e, -start), value.shape[d]) if k == d else e for k, e in enumerate(i))
            element = as_kind(value.at(place), kind_of(dtype))
            found = element if found is None else where(i[d] < end, element, found)
            end = start
        assert found is not None
        return found

    return s.cheap(shape, dtype, at, "cat", sources)


def guarded(index: Expr, extent: int) -> Expr:
    """The index, or 0 where it lies outside: what is read there is not used."""
    inside = (index >= 0) & (index < extent)
    return where(inside, index, 0)


@rule("stack")
def stack(s: Scheduler, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Side by side along a new dimension."""
    d = dim % (len(tensors[0].shape) + 1)
    return cat(s, [unsqueeze(s, v, d) for v in tensors], d)  # type: ignore[no-any-return]


@rule("hstack")
def hstack(s: Scheduler, tensors: Sequence[Value]) -> Value:
    """Side by side."""
    return cat(s, tensors, 0 if len(tensors[0].shape) == 1 else 1)  # type: ignore[no-any-return]


@rule("vstack", "row_stack")
def vstack(s: Scheduler, tensors: Sequence[Value]) -> Value:
    """One below the other."""
    return cat(s, [unsqueeze(s, v, 0) if len(v.shape) == 1 else v for v in tensors], 0)  # type: ignore[no-any-return]


@rule("fliplr")
def fliplr(s: Scheduler, input: Value) -> Value:
    """Backwards from left to right, which is dimension 1."""
    return flip(s, input, 1)  # type: ignore[no-any-return]


@rule("flipud")
def flipud(s: Scheduler, input: Value) -> Value:
    """Backwards from top to bottom, which is dimension 0."""
    return flip(s, input, 0)  # type: ignore[no-any-return]


@rule("flip")
def flip(s: Scheduler, input: Value, *given: Any, dims: Any = ()) -> Value:
    """Backwards along dimensions."""
    chosen = {d % len(input.shape) for d in _ints(given or [dims])}

    def at(i: Index) -> Expr:
        return input.at(
            tuple((n - 1) - e if d in chosen else e for d, (e, n) in enumerate(zip(i, input.shape, strict=True)))
        )

    return s.cheap(input.shape, input.dtype, at, "flip", [input])


@rule("roll")
def roll(s: Scheduler, input: Value, shifts: Any, dims: Any = None) -> Value:
    """Moved in a circle."""
    if dims is None:
        whole = roll(s, flatten(s, input), shifts, 0)
        return reshape(s, whole, *input.shape)  # type: ignore[no-any-return]
    moves = dict(zip([d % len(input.shape) for d in _ints([dims])], _ints([shifts]), strict=True))

    def at(i: Index) -> Expr:
        return input.at(
            tuple(
                modulo(e + (n - moves[d]) % n, n) if d in moves else e
                for d, (e, n) in enumerate(zip(i, input.shape, strict=True))
            )
        )

    return s.cheap(input.shape, input.dtype, at, "roll", [input])


@rule("tril")
def tril(s: Scheduler, input: Value, diagonal: int = 0) -> Value:
    """Zero above a diagonal."""
    return s.cheap(
        input.shape, input.dtype, lambda i: where(i[-1] <= i[-2] + diagonal, input.at(i), _zero(input)), "tril", [input]
    )


@rule("triu")
def triu(s: Scheduler, input: Value, diagonal: int = 0) -> Value:
    """Zero below a diagonal."""
    return s.cheap(
        input.shape, input.dtype, lambda i: where(i[-1] >= i[-2] + diagonal, input.at(i), _zero(input)), "triu", [input]
    )


def _zero(value: Value) -> Expr:
    return as_kind(0, value.kind)


@rule("diagonal")
def diagonal(s: Scheduler, input: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """A diagonal of two dimensions, as the last one."""
    a, b = dim1 % len(input.shape), dim2 % len(input.shape)
    down, right = max(-offset, 0), max(offset, 0)
    count = min(input.shape[a] - down, input.shape[b] - right)
    require(count > 0, "a diagonal without elements")

    def at(i: Index) -> Expr:
        others = iter(i)
        ends = {a: i[-1] + down, b: i[-1] + right}
        return input.at(tuple(ends[d] if d in ends else next(others) for d in range(len(input.shape))))

    kept = tuple(n for d, n in enumerate(input.shape) if d not in (a, b))
    return s.cheap((*kept, count), input.dtype, at, "diagonal", [input])


@rule("linalg_diagonal")
def linalg_diagonal(s: Scheduler, A: Value, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """Diagonals of matrices."""
    return diagonal(s, A, offset, dim1, dim2)  # type: ignore[no-any-return]


@rule("diag")
def diag(s: Scheduler, input: Value, diagonal: int = 0) -> Value:
    """A diagonal of a matrix, or a matrix with a vector as its diagonal."""
    if len(input.shape) == 1:
        return diag_embed(s, input, diagonal)  # type: ignore[no-any-return]
    return table()["diagonal"](s, input, diagonal)  # type: ignore[no-any-return]


@rule("diag_embed")
def diag_embed(s: Scheduler, input: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """Matrices with vectors as their diagonals."""
    require((dim1, dim2) == (-2, -1), "diag_embed to other dimensions")
    extent, down = input.shape[-1], max(-offset, 0)
    side = extent + abs(offset)

    def at(i: Index) -> Expr:
        here = compare("eq", i[-1] - i[-2], offset)
        return where(here, input.at((*i[:-2], guarded(i[-2] - down, extent))), _zero(input))

    return s.cheap((*input.shape[:-1], side, side), input.dtype, at, "diag_embed", [input])


_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "bool": "bool",
}


def cast(s: Scheduler, x: Value, dtype: str) -> Value:
    """Another dtype."""
    if dtype == x.dtype:
        return x
    return s.cheap(x.shape, dtype, lambda i: as_kind(x.at(i), kind_of(dtype)), "to", [x])


def _register_cast(name: str, dtype: str) -> None:
    @rule(name)
    def casting(s: Scheduler, input: Value) -> Value:
        return cast(s, input, dtype)


for _name, _dtype in _DTYPES.items():
    _register_cast(_name, _dtype)


@rule("to", "type_as", "type")
def to(s: Scheduler, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Another dtype; the device stays."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, Value):
            return cast(s, input, given.dtype)
        if str(given).startswith("torch."):
            return cast(s, input, str(given).removeprefix("torch."))
    return input


@rule("ravel")
def ravel(s: Scheduler, input: Value) -> Value:
    """One dimension."""
    return flatten(s, input)  # type: ignore[no-any-return]


@rule("column_stack")
def column_stack(s: Scheduler, tensors: Sequence[Value]) -> Value:
    """Columns side by side."""
    return cat(s, [unsqueeze(s, v, 1) if len(v.shape) == 1 else v for v in tensors], 1)  # type: ignore[no-any-return]


@rule("dstack")
def dstack(s: Scheduler, tensors: Sequence[Value]) -> Value:
    """Side by side along the third dimension."""
    require(all(len(v.shape) >= 2 for v in tensors), "dstack of vectors")
    return cat(s, [unsqueeze(s, v, 2) if len(v.shape) == 2 else v for v in tensors], 2)  # type: ignore[no-any-return]


@rule("meshgrid")
def meshgrid(s: Scheduler, *tensors: Any, indexing: str = "ij") -> tuple[Value, ...]:
    """Each vector along a dimension of its own."""
    values = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else list(tensors)
    require(indexing == "ij" and all(len(v.shape) == 1 for v in values), "meshgrid with such arguments")
    shape = tuple(v.shape[0] for v in values)
    return tuple(_along(s, v, d, shape) for d, v in enumerate(values))


def _along(s: Scheduler, value: Value, dim: int, shape: tuple[int, ...]) -> Value:
    return s.cheap(shape, value.dtype, lambda i: value.at((i[dim],)), "meshgrid", [value])


@rule("diff")
def diff(s: Scheduler, input: Value, n: int = 1, dim: int = -1) -> Value:
    """Each element less the one before."""
    d, x = dim % len(input.shape), input
    for _ in range(n):
        x = _once(s, x, d)
    return x


def _once(s: Scheduler, x: Value, dim: int) -> Value:
    shape = tuple(n - 1 if d == dim else n for d, n in enumerate(x.shape))

    def at(i: Index) -> Expr:
        later = tuple(add(e, 1) if d == dim else e for d, e in enumerate(i))
        return x.at(later) - x.at(i)

    return s.cheap(shape, x.dtype, at, "diff", [x])


@rule("rot90")
def rot90(s: Scheduler, input: Value, k: int = 1, dims: Any = (0, 1)) -> Value:
    """Turned by a right angle in a plane."""
    a, b = (d % len(input.shape) for d in dims)
    turned = input
    for _ in range(k % 4):
        turned = flip(s, transpose(s, turned, a, b), a)
    return turned
