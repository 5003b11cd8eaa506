"""Functions of two or three elements, operands broadcast."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import ANY, Op, facts, form, guarded, partner


def _binary(d: Draft, op: Op, x: Value) -> Value:
    text = form(d, op)
    x = guarded(d, op.needs, x)
    operands = {"x": x}
    if "{y}" in text:
        operands["y"] = partner(d, x, exact=op.jumps)
    if "{z}" in text:
        operands["z"] = d.input(x.shape)
    if "{c}" in text:
        operands["c"] = d.input(x.shape, "mask", "torch.rand({shape}) > 0.5", "bool")
    return d.call(text, operands, x.shape, api=op.api, facts=facts(op, *operands.values()))


def _row(api: str, *forms: str, needs: str = "", gives: str = "", jumps: bool = False) -> Op:
    return Op(f"torch.{api}", _binary, forms, ANY, needs, gives, jumps, late=0.1)


def _two(name: str, *more: str, gives: str = "", jumps: bool = False) -> Op:
    return _row(name, f"torch.{name}({{x}}, {{y}})", *more, gives=gives, jumps=jumps)


OPS: list[Op] = [
    _two("add", "torch.add({x}, {y}, alpha=0.5)"),
    _two("sub", "torch.sub({x}, {y}, alpha=2)", "torch.sub({y}, {x})"),
    _two("subtract"),
    _two("mul", "torch.mul({x}, torch.sigmoid({y}))"),
    _two("multiply", "torch.multiply({x}, {y}.tanh())"),
    _row("div", "torch.div({x}, torch.abs({y}) + 1.0)", "torch.div({x}, {y}.square() + 1.0)"),
    _row("true_divide", "torch.true_divide({x}, torch.abs({y}) + 0.5)", "torch.true_divide({y}, {x}.abs() + 1.0)"),
    _two("maximum", gives="exact"),
    _two("minimum", gives="exact"),
    _two("fmax", gives="exact"),
    _two("fmin", gives="exact"),
    _two("atan2", "torch.atan2({x}, {y}.abs() + 0.5)"),
    _two("hypot", gives="nonneg"),
    _row("copysign", "torch.copysign({x}, {y})", "torch.copysign({y}, {x})", jumps=True, gives="exact"),
    _row("fmod", "torch.fmod({x}, {y}.abs() + 0.5)", "torch.fmod({x}, 0.75)", jumps=True),
    _row("remainder", "torch.remainder({x}, {y}.abs() + 0.5)", "torch.remainder({x}, 1.5)", jumps=True),
    _row("floor_divide", "torch.floor_divide({x}, {y}.abs() + 0.5)", "torch.floor_divide({x}, 0.5)", jumps=True),
    _two("logaddexp"),
    _two("logaddexp2"),
    _row("ldexp", "torch.ldexp({x}, torch.tanh({y}))", "torch.ldexp({x}, {y}.sigmoid())"),
    _row("lerp", "torch.lerp({x}, {y}, 0.3)", "torch.lerp({x}, {y}, torch.sigmoid({z}))"),
    _row("xlogy", "torch.xlogy({x}, {y}.abs() + 0.5)", "torch.xlogy({y}, {x}.abs() + 0.5)"),
    _row("special.xlogy", "torch.special.xlogy({x}, {y}.abs() + 0.5)"),
    _row("special.xlog1py", "torch.special.xlog1py({x}, {y}.abs())", "torch.special.xlog1py({y}, {x}.square())"),
    _row("heaviside", "torch.heaviside({x}.relu(), {y})", "torch.heaviside(torch.relu({x} - 0.5), {y})", jumps=True),
    _row("addcmul", "torch.addcmul({x}, {y}, {z})", "torch.addcmul({x}, {y}, {z}, value=0.5)"),
    _row("addcdiv", "torch.addcdiv({x}, {y}, {z}.abs() + 1.0)",
         "torch.addcdiv({x}, {y}, {z}.square() + 1.0, value=2.0)"),
    _row("where", "torch.where({x} > 0.0, {x}, 0.5 * {y})", "torch.where({c}, {x}, {y})",
         "torch.where({x} > {y}, {x}, {z})", jumps=True, gives="exact"),
    _row("masked_fill", "torch.masked_fill({x}, {x} > 0.5, 0.25)", "torch.masked_fill({x}, {c}, -1.0)",
         "torch.masked_fill({x}, {y} < 0.0, 0.0)", jumps=True, gives="exact"),
]  # fmt: skip

SPELLED: list[Op] = [
    Op("", _binary, ("{x} + {y}", "{x} * {y}", "{x} - {y}", "{x} / ({y}.abs() + 1.0)"), ANY),
    Op("", _binary, ("{x} * 0.5", "{x} + 1.0", "2.0 * {x}", "{x} ** 2"), ANY),
    Op("", _binary, ("{x}.relu()", "{x}.tanh()", "{x}.sigmoid()", "{x}.clamp(min=-0.5)", "{x}.abs()"), ANY),
]
"""What people write as operators and methods, for the operators that are added to a set."""
