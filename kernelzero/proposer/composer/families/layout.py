"""Calls that move elements: views, slices, flips, repetition, triangles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import ANY, Op, a_dim, facts, replaced, require, spelled, without
from kernelzero.proposer.composer.sizes import Shape, Size, fixed, numel

Move = Callable[[Draft, Value], tuple[str, Shape, dict[str, Any]]]


_HALVES = (
    "{p}[0] * {p}[1]", "{p}[0] + {p}[1]", "{p}[0] * torch.sigmoid({p}[1])", "torch.maximum({p}[0], {p}[1])",
    "{p}[1] - {p}[0]", "{p}[0].tanh() * {p}[1]",
)  # fmt: skip


def _halved(d: Draft, op: Op, x: Value) -> Value:
    """Cut in two, and both halves used; or in parts of which one is used."""
    fit = [k for k in range(1, x.rank) if x.shape[k].divides_by(2) and x.shape[k].least() > 2]
    if not fit or d.chance(0.3):
        return _moved(d, op, x)
    k = d.rng.choice(fit)
    half = x.shape[k] // 2
    shape = replaced(x.shape, k, half)
    cut = {"torch.split": "{h}", "torch.split_with_sizes": "[{h}, {h}]"}.get(op.api, "2")
    parts = d.call(f"{op.api}({{x}}, {cut}, dim={{d}})", {"x": x}, shape, api=op.api, dtype="tuple", h=half,
                   d=spelled(d, k, x.rank))  # fmt: skip
    return d.call(d.rng.choice(_HALVES), {"p": parts}, shape)


_CUTS = ("torch.chunk", "torch.split", "torch.split_with_sizes", "torch.tensor_split")


def _moved(d: Draft, op: Op, x: Value) -> Value:
    """One call that the family's function writes."""
    text, shape, params = op.given(d, x)
    text = text.replace("CALL", op.api)
    return d.call(text, {"x": x}, shape, api=op.api, facts=facts(op, x), **params)


def _flatten(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    start = d.rng.randrange(0 if d.chance(0.1) else 1, x.rank - 1) if x.rank > 2 else 0
    shape = (*x.shape[:start], numel(x.shape[start:]))
    return d.pick("CALL({x}, {d})", "CALL({x}, start_dim={d})"), shape, {"d": start}


def _flatten_layer(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    require(x.rank > 2, "nothing to flatten")
    return "CALL()", (x.shape[0], numel(x.shape[1:])), {}


def _factor(d: Draft, size: Size) -> int:
    fit = [k for k in (2, 3, 4, 5) if size.divides_by(k) and size.least() > k]
    require(bool(fit), "a size without factors")
    return int(d.rng.choice(fit))


def _unflatten(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    require(x.rank < 4, "too many dimensions")
    k = d.rng.randrange(1, x.rank)
    f = _factor(d, x.shape[k])
    shape = (*x.shape[:k], fixed(f), x.shape[k] // f, *x.shape[k + 1 :])
    return "", shape, {"d": k, "f": f}


def _unflatten_call(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    _, shape, params = _unflatten(d, x)
    return (
        d.pick("CALL({x}, {d}, ({f}, -1))", "CALL({x}, {d}, (-1, {r}))"),
        shape,
        {**params, "r": shape[params["d"] + 1]},
    )


def _unflatten_layer(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    _, shape, params = _unflatten(d, x)
    return "CALL({d}, ({f}, {r}))", shape, {**params, "r": shape[params["d"] + 1]}


def _reshape(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    if x.rank > 2 and d.chance(0.5):
        return "CALL({x}, ({a}, -1))", (x.shape[0], numel(x.shape[1:])), {"a": x.shape[0]}
    f = _factor(d, x.shape[-1])
    require(x.rank < 5, "too many dimensions")
    return "CALL({x}, ({a}, {f}))", (*x.shape[:-1], fixed(f), x.shape[-1] // f), {
        "a": x.shape[:-1], "f": (fixed(f), x.shape[-1] // f)}  # fmt: skip


def _order(d: Draft, x: Value) -> tuple[int, ...]:
    order = list(range(x.rank))
    while order == sorted(order):
        d.rng.shuffle(order)
    return tuple(order)


def _permute(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    order = _order(d, x)
    return "CALL({x}, ({o}))", tuple(x.shape[k] for k in order), {"o": ", ".join(map(str, order))}


def _transpose(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    a, b = sorted(d.rng.sample(range(0 if x.rank == 2 else 1, x.rank), 2))
    shape = list(x.shape)
    shape[a], shape[b] = shape[b], shape[a]
    return "CALL({x}, {a}, {b})", tuple(shape), {"a": spelled(d, a, x.rank), "b": spelled(d, b, x.rank)}


def _moveaxis(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    a, b = d.rng.sample(range(x.rank), 2)
    shape = [s for k, s in enumerate(x.shape) if k != a]
    shape.insert(b, x.shape[a])
    return "CALL({x}, {a}, {b})", tuple(shape), {"a": a, "b": b}


def _t(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    return "CALL({x})", (x.shape[1], x.shape[0]), {}


def _unsqueeze(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    require(x.rank < 5, "too many dimensions")
    k = d.rng.randrange(1, x.rank + 1)
    return "CALL({x}, {d})", (*x.shape[:k], fixed(1), *x.shape[k:]), {"d": k}


def _squeeze(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    fit = [k for k in range(1, x.rank) if x.shape[k] == fixed(1)]
    if fit:
        return "CALL({x}, {d})", without(x.shape, (fit[0],)), {"d": fit[0]}
    k = d.rng.randrange(1, x.rank)
    require(x.shape[k].small > 1, "a dimension of one element")
    text = d.pick("CALL({x}.mean({d}, keepdim=True), {d})", "CALL({x}.amax({d}, keepdim=True), {d})")
    return text, without(x.shape, (k,)), {"d": k}


def _tile(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    return (
        "CALL({x}, ({t}))",
        replaced(x.shape, x.rank - 1, x.shape[-1] * 2),
        {"t": ", ".join(["1"] * (x.rank - 1) + ["2"])},
    )


def _interleave(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k, times = d.rng.randrange(1, x.rank), d.pick(2, 3)
    return "CALL({x}, {t}, dim={d})", replaced(x.shape, k, x.shape[k] * times), {"t": times, "d": k}


def _broadcast(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    times = d.pick(2, 3)
    return "CALL({x}, ({t}, {s}))", (fixed(times), *x.shape), {"t": times, "s": x.shape}


def _narrow(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k = a_dim(d, x, 4)
    start = d.pick(0, 1, 2)
    length = x.shape[k] // 2
    return "CALL({x}, {d}, {a}, {n})", replaced(x.shape, k, length), {"d": k, "a": start, "n": length}


def _select(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k = a_dim(d, x, 3)
    return "CALL({x}, {d}, {i})", without(x.shape, (k,)), {"d": k, "i": d.pick(0, 1, 2, -1)}


def _unbind(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    fit = [k for k in range(1, x.rank) if x.shape[k].least() >= 3 and x.shape[k].gpu <= 256]
    require(bool(fit), "no dimension to unbind")
    k = d.rng.choice(fit)
    return "CALL({x}, dim={d})[{i}]", without(x.shape, (k,)), {"d": k, "i": d.pick(0, 1, 2)}


def _parts(d: Draft, x: Value) -> tuple[int, int]:
    k = d.rng.randrange(1, x.rank)
    return k, _factor(d, x.shape[k])


def _chunk(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k, n = _parts(d, x)
    return "CALL({x}, {n}, dim={d})[{i}]", replaced(x.shape, k, x.shape[k] // n), {"n": n, "d": k, "i": d.pick(0, 1)}


def _split(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k, n = _parts(d, x)
    size = x.shape[k] // n
    return "CALL({x}, {n}, dim={d})[{i}]", replaced(x.shape, k, size), {"n": size, "d": k, "i": d.pick(0, 1)}


def _sections(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k = a_dim(d, x, 4)
    first = x.shape[k] // 3
    rest = x.shape[k] - first
    i = d.pick(0, 1)
    return "CALL({x}, [{a}, {b}], dim={d})[{i}]", replaced(x.shape, k, (first, rest)[i]), {
        "a": first, "b": rest, "d": k, "i": i}  # fmt: skip


def _tensor_split(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    return _chunk(d, x)


def _flip(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k = a_dim(d, x, 2)
    return d.pick("CALL({x}, dims=({d},))", "CALL({x}, [{d}])"), x.shape, {"d": k}


def _fixed_flip(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    require(x.shape[0].small > 1 and x.shape[1].small > 1, "nothing to flip")
    return "CALL({x})", x.shape, {}


def _roll(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k = a_dim(d, x, 4)
    return "CALL({x}, shifts={s}, dims={d})", x.shape, {"s": d.pick(1, 2, 3, -1), "d": k}


def _triangle(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    require(min(x.shape[-1].least(), x.shape[-2].least()) > 2, "a small triangle")
    return d.pick("CALL({x})", "CALL({x}, diagonal={k})"), x.shape, {"k": d.pick(1, -1)}


def _diagonal(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    short = Size(min(x.shape[0].small, x.shape[1].small), min(x.shape[0].gpu, x.shape[1].gpu))
    require(short.least() > 3, "a short diagonal")
    return "CALL({x})", (short,), {}


def _rot90(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    a, b = x.rank - 2, x.rank - 1
    shape = (*x.shape[:a], x.shape[b], x.shape[a])
    return "CALL({x}, 1, ({a}, {b}))", shape, {"a": a, "b": b}


def _diff(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    k = a_dim(d, x, 4)
    return "CALL({x}, dim={d})", replaced(x.shape, k, x.shape[k] - 1), {"d": k}


def _ravel(d: Draft, x: Value) -> tuple[str, Shape, dict[str, Any]]:
    return "CALL({x})", (numel(x.shape),), {}


def _mover(api: str, move: Move, ranks: tuple[int, ...] = ANY, late: float = 0.0) -> Op:
    return Op(api, _halved if api in _CUTS else _moved, (), ranks, gives="exact nonneg bounded", given=move, late=late)


_ROWS: list[tuple[str, Move, tuple[int, ...]]] = [
    ("torch.flatten", _flatten, ANY), ("nn.Flatten", _flatten_layer, (3, 4, 5)),
    ("torch.unflatten", _unflatten_call, (2, 3)), ("nn.Unflatten", _unflatten_layer, (2, 3)),
    ("torch.reshape", _reshape, ANY), ("torch.permute", _permute, ANY), ("torch.transpose", _transpose, ANY),
    ("torch.swapaxes", _transpose, ANY), ("torch.moveaxis", _moveaxis, ANY), ("torch.t", _t, (2,)),
    ("torch.unsqueeze", _unsqueeze, (2, 3, 4)), ("torch.squeeze", _squeeze, ANY), ("torch.tile", _tile, ANY),
    ("torch.repeat_interleave", _interleave, ANY), ("torch.broadcast_to", _broadcast, (1, 2, 3)),
    ("torch.narrow", _narrow, ANY), ("torch.select", _select, ANY), ("torch.unbind", _unbind, ANY),
    ("torch.chunk", _chunk, ANY), ("torch.split", _split, ANY), ("torch.split_with_sizes", _sections, ANY),
    ("torch.tensor_split", _tensor_split, ANY), ("torch.flip", _flip, ANY), ("torch.fliplr", _fixed_flip, ANY),
    ("torch.flipud", _fixed_flip, ANY), ("torch.roll", _roll, ANY), ("torch.tril", _triangle, ANY),
    ("torch.triu", _triangle, ANY), ("torch.diagonal", _diagonal, (2,)), ("torch.diag", _diagonal, (2,)),
    ("torch.linalg.diagonal", _diagonal, (2,)), ("torch.rot90", _rot90, ANY), ("torch.diff", _diff, ANY),
    ("torch.ravel", _ravel, ANY),
]  # fmt: skip
_LATE = {"torch.ravel": 0.8, "torch.diag": 0.8, "torch.diagonal": 0.8, "torch.linalg.diagonal": 0.8}
_SIGNED = ("torch.diff",)

OPS: list[Op] = [
    replace(op, gives="") if op.api in _SIGNED else op
    for op in (_mover(api, move, ranks, _LATE.get(api, 0.1)) for api, move, ranks in _ROWS)
]
