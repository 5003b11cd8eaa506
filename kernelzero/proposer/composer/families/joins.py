"""Concatenation, stacking and grids: several values become one."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import Op, facts, form, replaced, require
from kernelzero.proposer.composer.sizes import Shape, fixed


def _other(d: Draft, x: Value, shape: Shape | None = None) -> Value:
    """An earlier value, something of `x` itself, or a new input."""
    known = d.earlier(x, shape)
    if known and d.chance(0.4):
        return d.rng.choice(known)
    if shape is None and d.chance(0.4):
        text = d.pick("torch.tanh({x})", "{x} * 0.5", "torch.sigmoid({x})", "-{x}", "{x}.relu()")
        return d.call(text, {"x": x}, x.shape, facts="exact" if "0.5" in text or "-" in text else "")
    return d.input(x.shape if shape is None else shape)


def _joined(d: Draft, op: Op, x: Value) -> Value:
    at = op.given if op.given is not None else d.rng.randrange(1 if x.rank > 1 else 0, x.rank)
    require(at < x.rank, "too few dimensions")
    y = _other(d, x)
    shape = replaced(x.shape, at, x.shape[at] * 2)
    return d.call(form(d, op), {"x": x, "y": y}, shape, api=op.api, facts=facts(op, x, y), d=at)


def _stacked(d: Draft, op: Op, x: Value) -> Value:
    require(x.rank < 5, "too many dimensions")
    at = d.rng.randrange(0, x.rank + 1)
    y = _other(d, x)
    shape = (*x.shape[:at], fixed(2), *x.shape[at:])
    return d.call(form(d, op), {"x": x, "y": y}, shape, api=op.api, facts=facts(op, x, y), d=at)


def _dstack(d: Draft, op: Op, x: Value) -> Value:
    y = _other(d, x)
    shape = (*x.shape, fixed(2)) if x.rank == 2 else replaced(x.shape, 2, x.shape[2] * 2)
    return d.call(form(d, op), {"x": x, "y": y}, shape, api=op.api, facts=facts(op, x, y))


def _meshgrid(d: Draft, op: Op, x: Value) -> Value:
    y = d.input((d.pick(fixed(5), fixed(8), fixed(12)),))
    shape = (x.shape[0], y.shape[0])
    which = 'torch.meshgrid({x}, {y}, indexing="ij")[{i}]'
    first = d.call(which, {"x": x, "y": y}, shape, api=op.api, i=0)
    return d.call("{a} * {y}", {"a": first, "y": y}, shape)


_CAT = ("torch.{n}([{{x}}, {{y}}], dim={{d}})", "torch.{n}(({{x}}, {{y}}), dim={{d}})")

OPS: list[Op] = [
    *(Op(f"torch.{n}", _joined, tuple(text.format(n=n) for text in _CAT), gives="exact", late=0.2)
      for n in ("cat", "concat")),
    Op("torch.stack", _stacked, ("torch.stack([{x}, {y}], dim={d})",), (1, 2, 3, 4), gives="exact", late=0.3),
    Op("torch.hstack", _joined, ("torch.hstack([{x}, {y}])", "torch.hstack(({x}, {y}))"), gives="exact", late=0.2,
       given=1),
    Op("torch.column_stack", _joined, ("torch.column_stack([{x}, {y}])",), gives="exact", late=0.2, given=1),
    Op("torch.vstack", _joined, ("torch.vstack([{x}, {y}])", "torch.vstack(({x}, {y}))"), gives="exact", late=0.2,
       given=0),
    Op("torch.dstack", _dstack, ("torch.dstack([{x}, {y}])",), (2, 3, 4), gives="exact", late=0.3),
    Op("torch.meshgrid", _meshgrid, ranks=(1,), late=0.6),
]  # fmt: skip
