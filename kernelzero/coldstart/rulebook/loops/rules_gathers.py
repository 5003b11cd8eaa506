"""Look-ups: elements whose place is itself an element of a tensor of integers.

Not covered: sorting, scattering, embedding bags, masks of booleans, and several index tensors at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import INT, Expr, as_int, compare, const, unflat, where
from kernelzero.coldstart.rulebook.loops.rules import broadcast, require, rule
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Index, Value, size


def wrapped(place: Expr, extent: int) -> Expr:
    """Places below 0 count from the end."""
    return where(place < 0, place + extent, place)


@rule("embedding")
def embedding(
    s: Scheduler,
    input: Value,
    weight: Value,
    padding_idx: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """Rows of a table. torch.embedding takes the table first, F.embedding the places."""
    require(max_norm is None, "embedding with max_norm")
    if input.kind != INT:
        input, weight = weight, input
    require(input.kind == INT and len(weight.shape) == 2, "embedding by what are no integers")
    places, table = s.read(input), s.read(weight)
    shape = (*places.shape, table.shape[1])
    return s.cheap(
        shape, table.dtype, lambda i: table.at((places.at(i[:-1]), i[-1])), "embedding", [places, table]
    )  # fmt: skip


@rule("one_hot")
def one_hot(s: Scheduler, tensor: Value, num_classes: int = -1) -> Value:
    """1 at the place that an integer names, else 0."""
    require(num_classes > 0 and tensor.kind == INT, "one_hot without the number of classes")
    return s.cheap(
        (*tensor.shape, num_classes), "int64", lambda i: as_int(compare("eq", tensor.at(i[:-1]), i[-1])),
        "one_hot", [tensor],
    )  # fmt: skip


@rule("index_select")
def index_select(s: Scheduler, input: Value, dim: int, index: Value) -> Value:
    """Slices in the order that integers name."""
    d = dim % len(input.shape)
    return picked(s, "index_select", input, d, index)


def picked(s: Scheduler, name: str, input: Value, d: int, index: Value, *, negative: bool = False) -> Value:
    """x[:, …, index, …]: the dimensions of the index in the place of one of x."""
    require(index.kind == INT, f"{name} by {index.dtype}")
    x, places, rank = s.read(input), s.read(index), len(index.shape)
    shape = (*x.shape[:d], *places.shape, *x.shape[d + 1 :])

    def at(i: Index) -> Expr:
        place = as_int(places.at(i[d : d + rank]))
        return x.at((*i[:d], wrapped(place, x.shape[d]) if negative else place, *i[d + rank :]))

    return s.cheap(shape, x.dtype, at, name, [x, places])


@rule("gather")
def gather(s: Scheduler, input: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """x[i, index[i, j]]; the index says the shape."""
    require(index.kind == INT and len(index.shape) == len(input.shape), f"gather by {index.dtype}")
    x, places = s.read(input), s.read(index)
    d = dim % max(1, len(x.shape))
    return s.cheap(
        places.shape, x.dtype, lambda i: x.at((*i[:d], as_int(places.at(i)), *i[d + 1 :])), "gather", [x, places]
    )


@rule("take_along_dim")
def take_along_dim(s: Scheduler, input: Value, indices: Value, dim: int | None = None) -> Value:
    """As gather, other dimensions broadcast; without a dimension, of the flat tensor."""
    require(indices.kind == INT, f"take_along_dim by {indices.dtype}")
    if dim is None:
        return take(s, input, indices, "take_along_dim")  # type: ignore[no-any-return]
    x, places = s.read(input), s.read(indices)
    d = dim % len(x.shape)
    shared = broadcast([[1 if k == d else n for k, n in enumerate(v.shape)] for v in (x, places)])
    shape = tuple(places.shape[d] if k == d else n for k, n in enumerate(shared))

    def at(i: Index) -> Expr:
        place = as_int(places.at(_own(i, places.shape)))
        return x.at(tuple(place if k == d else e for k, e in enumerate(_own(i, x.shape, d))))

    return s.cheap(shape, x.dtype, at, "take_along_dim", [x, places])


def _own(i: Index, shape: Sequence[int], besides: int = -1) -> Index:
    """The index in a value that is broadcast."""
    return tuple(const(0) if n == 1 and d != besides else e for d, (e, n) in enumerate(zip(i, shape, strict=True)))


@rule("take")
def take(s: Scheduler, input: Value, index: Value, _name: str = "take") -> Value:
    """Elements of the flat tensor."""
    require(index.kind == INT, f"{_name} by {index.dtype}")
    x, places = s.read(input), s.read(index)
    flat = _name != "take"
    shape = (size(places.shape),) if flat else places.shape

    def at(i: Index) -> Expr:
        own = unflat(i[0], places.shape) if flat else i
        place = wrapped(as_int(places.at(own)), size(x.shape))
        return x.at(unflat(place, x.shape))

    return s.cheap(shape, x.dtype, at, _name, [x, places])


def index_tensor(s: Scheduler, x: Value, key: Any) -> Value:
    """x[…] by one tensor of integers, beside it only full slices and an ellipsis."""
    keys = list(key) if isinstance(key, tuple | list) else [key]
    tensors = [n for n, k in enumerate(keys) if isinstance(k, Value)]
    others = [k for k in keys if not isinstance(k, Value)]
    dots = [n for n, k in enumerate(keys) if k is Ellipsis]
    require(
        len(tensors) == 1 and len(dots) <= 1 and all(k is Ellipsis or _is_full(k) for k in others),
        "indexing by a tensor together with other keys",
    )
    place = tensors[0]
    d = place if not dots or dots[0] > place else len(x.shape) - (len(keys) - place)
    index = keys[place]
    require(index.kind == INT, f"indexing by a tensor of {index.dtype}")
    return picked(s, "index", x, d, index, negative=True)


def _is_full(key: Any) -> bool:
    return isinstance(key, slice) and key == slice(None)
