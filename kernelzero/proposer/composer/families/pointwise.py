"""Functions of one element, activations and their layers."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import ANY, F, Op, facts, form, guarded, partner


def _unary(d: Draft, op: Op, x: Value) -> Value:
    x = guarded(d, op.needs, x)
    return d.call(form(d, op), {"x": x}, x.shape, api=op.api, facts=facts(op, x))


def _prelu(d: Draft, op: Op, x: Value) -> Value:
    channels = x.shape[1]
    if op.api == "nn.PReLU":
        text = d.pick("nn.PReLU()", "nn.PReLU(init=0.1)", "nn.PReLU({num_parameters})")
        return d.call(text, {"x": x}, x.shape, api=op.api, num_parameters=channels)
    slope = d.parameter((channels,), d.pick("slope", "weight"), 0.3)
    return d.call(form(d, op), {"x": x, "w": slope}, x.shape, api=op.api)


def _mask(d: Draft, op: Op, x: Value) -> Value:
    """A question about each element, and the use of its answer."""
    text = form(d, op)
    operands = {"x": x}
    if "{y}" in text:
        operands["y"] = partner(d, x, exact=True)
    if "{v}" in text:
        operands["v"] = d.input(x.shape)
    mask = d.call(text, operands, x.shape, api=op.api, dtype="bool", facts="exact")
    uses = ["torch.where({m}, {x}, {z})", "{x}.masked_fill({m}, 0.5)", "{x} * {m}.float()", "{x} + {m}.float()"]
    use = d.rng.choice(uses[:1] if op.given == "where" else uses)
    also = {"z": partner(d, x, exact=True)} if "{z}" in use else {}
    return d.call(use, {"m": mask, "x": x, **also}, x.shape, facts="exact")


def _row(api: str, *forms: str, needs: str = "", gives: str = "", jumps: bool = False) -> Op:
    return Op(api, _unary, forms, ANY, needs, gives, jumps)


def _layers(name: str, *builds: str, gives: str = "", jumps: bool = False) -> Op:
    return _row(f"nn.{name}", *(f"nn.{name}({arguments})" for arguments in builds or ("",)), gives=gives, jumps=jumps)


def _both(layer: str, function: str, *arguments: str, gives: str = "", jumps: bool = False) -> list[Op]:
    """A layer and its function with the same arguments."""
    calls = [f"F.{function}({{x}}{', ' if a else ''}{a})" for a in arguments or ("",)]
    return [
        _layers(layer, *arguments, gives=gives, jumps=jumps),
        _row(F + function, *calls, gives=gives, jumps=jumps),
    ]


_ACTIVATIONS = [
    *_both("ReLU", "relu", gives="nonneg exact"),
    *_both("ReLU6", "relu6", gives="nonneg bounded exact"),
    *_both("SiLU", "silu"),
    *_both("Mish", "mish"),
    *_both("SELU", "selu"),
    *_both("Hardswish", "hardswish"),
    *_both("Hardsigmoid", "hardsigmoid", gives="nonneg bounded"),
    *_both("Softsign", "softsign", gives="bounded"),
    *_both("Tanhshrink", "tanhshrink"),
    *_both("LogSigmoid", "logsigmoid"),
    *_both("Sigmoid", "sigmoid", gives="nonneg bounded"),
    *_both("Tanh", "tanh", gives="bounded"),
    *_both("GELU", "gelu", "", 'approximate="tanh"'),
    *_both("LeakyReLU", "leaky_relu", "", "0.1", "0.2", "negative_slope=0.05"),
    *_both("ELU", "elu", "", "alpha=0.5", "1.5"),
    *_both("CELU", "celu", "", "alpha=0.7", "alpha=2.0"),
    *_both("Softplus", "softplus", "", "beta=2.0", "beta=0.5, threshold=10.0", gives="nonneg"),
    *_both("Hardtanh", "hardtanh", "", "-2.0, 2.0", "min_val=-0.5, max_val=1.5", gives="bounded exact"),
    *_both("Softshrink", "softshrink", "", "0.3", gives="exact"),
    *_both("Hardshrink", "hardshrink", "", "0.7", jumps=True, gives="exact"),
    *_both("Threshold", "threshold", "0.2, -0.5", "0.5, 0.0", jumps=True, gives="exact"),
    _row("torch.relu", "torch.relu({x})", gives="nonneg exact"),
    _row("torch.sigmoid", "torch.sigmoid({x})", gives="nonneg bounded"),
    _row("torch.tanh", "torch.tanh({x})", gives="bounded"),
    _row("torch.selu", "torch.selu({x})"),
    _row("torch.celu", "torch.celu({x})", "torch.celu({x}, alpha=0.5)"),
    _row("torch.special.expit", "torch.special.expit({x})", gives="nonneg bounded"),
    _row("torch.sigmoid_", "torch.sigmoid_({x} * 2.0)", "torch.sigmoid_({x} + 0.5)", gives="nonneg bounded"),
    _row("torch.tanh_", "torch.tanh_({x} * 0.5)", "torch.tanh_({x} + 0.5)", gives="bounded"),
    _row(F + "relu_", "F.relu_({x} - 0.25)", "F.relu_({x} * 1.5)", gives="nonneg exact"),
    _row(F + "leaky_relu_", "F.leaky_relu_({x} * 1.5)", "F.leaky_relu_({x} + 0.1, 0.2)"),
    _row(F + "elu_", "F.elu_({x} * 0.5)", "F.elu_({x} + 0.1, alpha=0.5)"),
    *(Op(api, _prelu, (text,)) for api, text in (
        ("nn.PReLU", ""), (F + "prelu", "F.prelu({x}, {w})"), ("torch.prelu", "torch.prelu({x}, {w})"))),
]  # fmt: skip

_FUNCTIONS = [
    _row("torch.abs", "torch.abs({x})", gives="nonneg exact"),
    _row("torch.neg", "torch.neg({x})", gives="exact"),
    _row("torch.square", "torch.square({x})", gives="nonneg exact"),
    _row("torch.pow", "torch.pow({x}, 2)", "torch.pow({x}, 3)"),
    _row("torch.float_power", "torch.float_power({x}, 2.0).float()"),
    _row("torch.sin", "torch.sin({x})", gives="bounded"),
    _row("torch.cos", "torch.cos({x})", gives="bounded"),
    _row("torch.tan", "torch.tan({x})", needs="inside one"),
    _row("torch.sinh", "torch.sinh({x})", needs="bounded"),
    _row("torch.cosh", "torch.cosh({x})", needs="bounded", gives="nonneg"),
    _row("torch.asinh", "torch.asinh({x})"),
    _row("torch.acosh", "torch.acosh({x})", needs="large", gives="nonneg"),
    _row("torch.atanh", "torch.atanh({x})", needs="inside one"),
    _row("torch.exp", "torch.exp({x})", needs="bounded", gives="nonneg"),
    _row("torch.exp2", "torch.exp2({x})", needs="bounded", gives="nonneg"),
    _row("torch.expm1", "torch.expm1({x})", needs="bounded"),
    _row("torch.log", "torch.log({x} + 1.0)", "torch.log({x} + 0.5)", needs="nonneg"),
    _row("torch.log2", "torch.log2({x})", needs="positive"),
    _row("torch.log10", "torch.log10({x})", needs="positive"),
    _row("torch.log1p", "torch.log1p({x})", needs="nonneg", gives="nonneg"),
    _row("torch.sqrt", "torch.sqrt({x} + 1e-3)", "torch.sqrt({x} + 1.0)", needs="nonneg", gives="nonneg"),
    _row("torch.rsqrt", "torch.rsqrt({x})", needs="positive", gives="nonneg bounded"),
    _row("torch.reciprocal", "torch.reciprocal({x})", needs="positive", gives="nonneg bounded"),
    _row("torch.erf", "torch.erf({x})", gives="bounded"),
    _row("torch.erfc", "torch.erfc({x})", gives="nonneg bounded"),
    _row("torch.special.erf", "torch.special.erf({x})", gives="bounded"),
    _row("torch.special.erfc", "torch.special.erfc({x})", gives="nonneg bounded"),
    _row("torch.special.entr", "torch.special.entr({x})", needs="positive"),
    _row("torch.logit", "torch.logit({x})", needs="inside unit"),
    _row("torch.special.logit", "torch.special.logit({x})", "torch.special.logit({x}, eps=1e-3)", needs="inside unit"),
    _row("torch.sinc", "torch.sinc({x})", needs="bounded", gives="bounded"),
    _row("torch.special.sinc", "torch.special.sinc({x})", needs="bounded", gives="bounded"),
    _row("torch.deg2rad", "torch.deg2rad({x} * 20.0)", "torch.deg2rad({x}) * 30.0"),
    _row("torch.rad2deg", "torch.rad2deg({x})", "torch.rad2deg({x}) * 0.1"),
    _row("torch.clamp", "torch.clamp({x}, -1.0, 1.0)", "torch.clamp({x}, min=-0.5, max=2.0)", gives="bounded exact"),
    _row("torch.clip", "torch.clip({x}, -1.0, 1.5)", "torch.clip({x}, min=-0.75, max=0.75)", gives="bounded exact"),
    _row("torch.clamp_min", "torch.clamp_min({x}, -0.25)", "torch.clamp_min({x}, 0.1)", gives="exact"),
    _row("torch.clamp_max", "torch.clamp_max({x}, 0.75)", "torch.clamp_max({x}, 0.5)", gives="exact"),
    _row("torch.clamp_", "torch.clamp_({x} * 2.0, -1.0, 1.0)", gives="bounded exact"),
    _row("torch.clamp_min_", "torch.clamp_min_({x} * 2.0, -0.5)", gives="exact"),
    _row("torch.clamp_max_", "torch.clamp_max_({x} + 0.5, 0.75)", gives="exact"),
    _row("torch.floor", "torch.floor({x} * 2.0)", "{x} - torch.floor({x})", jumps=True, gives="exact"),
    _row("torch.ceil", "torch.ceil({x} * 2.0)", "torch.ceil({x}) - {x}", jumps=True, gives="exact"),
    _row("torch.round", "torch.round({x} * 2.0)", "torch.round({x} * 4.0) / 4.0", jumps=True, gives="exact"),
    _row("torch.trunc", "torch.trunc({x} * 2.0)", "{x} - torch.trunc({x})", jumps=True, gives="exact"),
    _row("torch.frac", "torch.frac({x})", "torch.frac({x} * 1.5)", jumps=True, gives="exact"),
    _row("torch.sign", "torch.sign({x})", "torch.sign({x}) * {x}.abs().sqrt()", jumps=True),
    _row("torch.sgn", "torch.sgn({x})", "{x} + torch.sgn({x})", jumps=True),
    _row("torch.nan_to_num", "torch.nan_to_num(torch.log({x}), nan=0.0)", "torch.nan_to_num({x}.sqrt(), nan=-0.5)"),
]

_MASKS = [
    Op("torch.isnan", _mask, ("torch.isnan(torch.log({x}))", "torch.isnan({x}.sqrt())"), jumps=True, given="where"),
    Op("torch.isfinite", _mask, ("torch.isfinite(torch.log({x}))", "torch.isfinite({x}.sqrt())"), jumps=True),
    Op("torch.isinf", _mask, ("torch.isinf(1.0 / {x}.relu())", "torch.isinf(torch.relu({x}).log())"), jumps=True),
    Op("torch.logical_not", _mask, ("torch.logical_not({x} > 0.0)", "torch.logical_not({x} < {y})"), jumps=True),
    Op("torch.eq", _mask, ("torch.eq(torch.sign({x}), torch.sign({y}))", "torch.eq({x}.relu(), 0.0)"), jumps=True),
    *(Op(f"torch.{n}", _mask, (f"torch.{n}({{x}}.sign(), {{y}}.sign())",), jumps=True) for n in ("ne", "not_equal")),
    *(Op(f"torch.{n}", _mask, (f"torch.{n}({{x}}, {{y}})", f"torch.{n}({{x}}, 0.25)"), jumps=True)
      for n in ("lt", "le", "gt", "ge", "greater_equal")),
    *(Op(f"torch.{n}", _mask, (f"torch.{n}({{x}} > 0.0, {{v}} > 0.0)", f"torch.{n}({{x}} > {{v}}, {{v}} < 0.5)"),
         jumps=True)
      for n in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_xor")),
]  # fmt: skip

OPS: list[Op] = [*_ACTIVATIONS, *_FUNCTIONS, *_MASKS]
