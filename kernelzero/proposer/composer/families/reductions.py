"""Folds over dimensions: what is left is a row's number, or is used on the row again."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import Op, a_dim, form, guarded, require, spelled, without
from kernelzero.proposer.composer.sizes import numel

_MIDDLE = ("{x} - {r}", "{x} + {r}")
_SCALE = ("{x} / ({r} + 1.0)", "{x} * {r}")


def _dims(d: Draft, op: Op, x: Value) -> tuple[int, ...]:
    """One dimension; several where the operator takes them and there are."""
    chosen: tuple[int, ...] = (a_dim(d, x, 3, 0 if d.chance(0.15) else 1),)
    if "several" in op.given and x.rank > 2 and d.chance(0.5):
        inner = tuple(range(2, x.rank)) if x.rank > 3 else (1, 2)
        extent = numel(tuple(x.shape[k] for k in inner))
        chosen = inner if extent.least() >= 3 else chosen
    return chosen


def _reduce(d: Draft, op: Op, x: Value) -> Value:
    x = guarded(d, op.needs, x)
    dims = _dims(d, op, x)
    if "short" in op.given:
        require(numel(tuple(x.shape[k] for k in dims)).gpu <= 1024, "too many factors")
    dim = str(spelled(d, dims[0], x.rank)) if len(dims) == 1 else str(dims)
    back = bool(op.given["middle"]) and d.chance(0.35)
    d.spend(numel(tuple(s for k, s in enumerate(x.shape) if k not in dims)), 1, 1)
    text = form(d, op)
    keep = back or ("{keep}" in text and d.chance(0.2))
    shape = without(x.shape, dims, keep)
    require(len(shape) > 0, "nothing would be left")
    facts = op.gives
    row = d.call(
        text, {"x": x}, shape, api=op.api, facts=facts, dim=dim, keep=", keepdim=True" if keep else "",
        dtype=op.given.get("dtype", "float"),
    )  # fmt: skip
    if row.dtype != "float":
        row = d.call(d.pick("{x}.float()", "{x}.float() * 0.5"), {"x": row}, shape, facts="exact")
    if back:
        return d.call(d.rng.choice(op.given["middle"]), {"x": x, "r": row}, x.shape)
    return row


def _whole(d: Draft, op: Op, x: Value) -> Value:
    """Of one matrix or vector as a whole."""
    number = d.call(form(d, op), {"x": x}, (), api=op.api)
    if d.chance(0.6):
        return d.call(d.pick("{x} / ({r} + 1.0)", "{x} + 0.1 * {r}", "{x} * {r}"), {"x": x, "r": number}, x.shape)
    return number


def _trace(d: Draft, op: Op, x: Value) -> Value:
    require(min(x.shape[0].small, x.shape[1].small) >= 3, "a short diagonal")
    return _whole(d, op, x)


def _index(d: Draft, op: Op, x: Value) -> Value:
    dim = a_dim(d, x, 4)
    shape = without(x.shape, (dim,))
    d.spend(numel(shape), 1, 1)
    return d.call(form(d, op), {"x": x}, shape, api=op.api, dtype="int", dim=spelled(d, dim, x.rank), keep="")


def _cumulative(d: Draft, op: Op, x: Value) -> Value:
    x = guarded(d, op.needs, x)
    dim = a_dim(d, x, 3)
    require("short" not in op.given or x.shape[dim].gpu <= 1024, "too many factors")
    d.spend(numel(without(x.shape, (dim,))), 1, 1)
    return d.call(form(d, op), {"x": x}, x.shape, api=op.api, dim=spelled(d, dim, x.rank))


def _row(
    api: str, *forms: str, middle: tuple[str, ...] = (), several: bool = False, needs: str = "", gives: str = "",
    dtype: str = "float", jumps: bool = False, short: bool = False,
) -> Op:  # fmt: skip
    given = {"middle": middle, "dtype": dtype} | ({"several": 1} if several else {}) | ({"short": 1} if short else {})
    return Op(api, _reduce, forms, needs=needs, gives=gives, given=given, late=0.5, jumps=jumps)


_PLAIN = "({x}, dim={dim}{keep})"
_NORMS = ("({x}, dim={dim}{keep})", "({x}, ord=2, dim={dim}{keep})")

OPS: list[Op] = [
    _row("torch.sum", "torch.sum" + _PLAIN, middle=("{x} + {r}", "{x} - 0.1 * {r}"), several=True),
    _row("torch.mean", "torch.mean" + _PLAIN, middle=_MIDDLE, several=True),
    _row("torch.nansum", "torch.nansum" + _PLAIN, "torch.nansum({x}.sqrt(), dim={dim}{keep})", several=True),
    _row("torch.nanmean", "torch.nanmean" + _PLAIN, middle=_MIDDLE, several=True),
    _row("torch.amax", "torch.amax" + _PLAIN, middle=_MIDDLE, several=True, gives="exact"),
    _row("torch.amin", "torch.amin" + _PLAIN, middle=_MIDDLE, several=True, gives="exact"),
    _row("torch.max", "torch.max" + _PLAIN + "[0]", "torch.max" + _PLAIN + ".values", middle=_MIDDLE, gives="exact"),
    _row("torch.min", "torch.min" + _PLAIN + "[0]", "torch.min" + _PLAIN + ".values", middle=_MIDDLE, gives="exact"),
    _row("torch.aminmax", "torch.aminmax({x}, dim={dim}{keep})[1]", "torch.aminmax({x}, dim={dim}{keep}).min",
         middle=_MIDDLE),
    _row("torch.norm", "torch.norm" + _PLAIN, "torch.norm({x}, p=1, dim={dim}{keep})", middle=_SCALE, gives="nonneg"),
    _row("torch.linalg.norm", *("torch.linalg.norm" + n for n in _NORMS), middle=_SCALE, gives="nonneg"),
    _row("torch.linalg.vector_norm", *("torch.linalg.vector_norm" + n for n in _NORMS), middle=_SCALE, several=True,
         gives="nonneg"),
    _row("torch.logsumexp", "torch.logsumexp" + _PLAIN, middle=_MIDDLE, several=True),
    _row("torch.special.logsumexp", "torch.special.logsumexp" + _PLAIN, middle=_MIDDLE, several=True),
    _row("torch.var", "torch.var" + _PLAIN, "torch.var({x}, dim={dim}, unbiased=False{keep})", middle=_SCALE,
         several=True, gives="nonneg"),
    _row("torch.std", "torch.std" + _PLAIN, "torch.std({x}, dim={dim}, unbiased=False{keep})", middle=_SCALE,
         several=True, gives="nonneg"),
    _row("torch.var_mean", "torch.var_mean" + _PLAIN + "[0]", middle=_SCALE, several=True, gives="nonneg"),
    _row("torch.std_mean", "torch.std_mean" + _PLAIN + "[0]", middle=_SCALE, several=True, gives="nonneg"),
    _row("torch.prod", "torch.prod" + _PLAIN, needs="near one", short=True),
    _row("torch.count_nonzero", "torch.count_nonzero({x} > 0.0, dim={dim})",
         "torch.count_nonzero({x}.relu(), dim={dim})", dtype="int", jumps=True),
    _row("torch.any", "torch.any({x} > 1.25, dim={dim}{keep})", dtype="bool", jumps=True),
    _row("torch.all", "torch.all({x} > -1.25, dim={dim}{keep})", dtype="bool", jumps=True),
    Op("torch.trace", _trace, ("torch.trace({x})",), (2,), late=0.5),
    Op("torch.linalg.matrix_norm", _whole, ("torch.linalg.matrix_norm({x})",), (2,), late=0.5),
    Op("torch.argmax", _index, ("torch.argmax({x}, dim={dim})",), jumps=True, ends=True, late=9.0),
    Op("torch.argmin", _index, ("torch.argmin({x}, dim={dim})",), jumps=True, ends=True, late=9.0),
    Op("torch.cumsum", _cumulative, ("torch.cumsum({x}, dim={dim})",), given=""),
    Op("torch.cumprod", _cumulative, ("torch.cumprod({x}, dim={dim})",), needs="near one", given="short"),
]  # fmt: skip
