"""The operators that the composer can use, each with the lines that a person would write for it.

One row an API, under the catalogue's name. A step is a template over `{x}` (the running value) and, where there are two
operands, `{y}`; `{s}` stands for the step's submodule. To teach the composer a new API, add a row.
"""

from __future__ import annotations

from dataclasses import dataclass

F = "torch.nn.functional."


@dataclass(frozen=True)
class Step:
    """One line of `forward`."""

    kind: str
    """"pointwise", "binary", "where", "row", "reduce", "index", "similarity", "product" or "parameter"."""
    forms: tuple[str, ...]
    """Ways to write it, one is drawn."""
    build: tuple[str, ...] = ()
    """For modules: ways to construct the submodule `{s}`."""
    name: str = ""
    """Attribute of the submodule."""
    safe: str = ""
    """What the operand must be: "" anything, "nonneg" at least 0, "bounded" of moderate size."""
    gives: str = ""
    """What the result is, in the same words; "bounded" implies nothing about the sign unless it says "nonneg"."""
    middle: tuple[str, ...] = ()
    """For reductions in the middle of a chain: how the row's value `{r}` is used on `{x}`."""


def _module(cls: str, name: str, *builds: str, kind: str = "pointwise", gives: str = "") -> Step:
    return Step(kind, ("self.{s}({x})",), builds or (f"nn.{cls}()",), name, gives=gives)


def _pointwise(*forms: str, safe: str = "", gives: str = "") -> Step:
    return Step("pointwise", forms, safe=safe, gives=gives)


def _row(*forms: str, gives: str = "") -> Step:
    return Step("row", forms, gives=gives)


def _reduce(call: str, *middle: str, tail: str = "") -> Step:
    """`call` has `{k}` where keepdim goes."""
    return Step("reduce", (call + tail,), middle=middle)


_SLOPES = ("0.01", "0.1", "0.2")
_LINEAR = ("nn.Linear({k}, {n})", "nn.Linear({k}, {n})", "nn.Linear({k}, {n}, bias=False)")
_BOUNDS = (("-1.0", "1.0"), ("-2.0", "2.0"), ("-0.5", "1.5"))

_POINTWISE: dict[str, Step] = {
    "torch.relu": _pointwise("torch.relu({x})", gives="nonneg"),
    F + "relu": _pointwise("F.relu({x})", gives="nonneg"),
    "nn.ReLU": _module("ReLU", "relu", gives="nonneg"),
    F + "relu6": _pointwise("F.relu6({x})", gives="nonneg bounded"),
    "nn.ReLU6": _module("ReLU6", "relu6", gives="nonneg bounded"),
    F + "gelu": _pointwise("F.gelu({x})", 'F.gelu({x}, approximate="tanh")'),
    "nn.GELU": _module("GELU", "gelu"),
    F + "silu": _pointwise("F.silu({x})"),
    "nn.SiLU": _module("SiLU", "silu"),
    "torch.sigmoid": _pointwise("torch.sigmoid({x})", gives="nonneg bounded"),
    F + "sigmoid": _pointwise("F.sigmoid({x})", gives="nonneg bounded"),
    "nn.Sigmoid": _module("Sigmoid", "sigmoid", gives="nonneg bounded"),
    "torch.tanh": _pointwise("torch.tanh({x})", gives="bounded"),
    F + "tanh": _pointwise("F.tanh({x})", gives="bounded"),
    "nn.Tanh": _module("Tanh", "tanh", gives="bounded"),
    F + "leaky_relu": _pointwise("F.leaky_relu({x})", *(f"F.leaky_relu({{x}}, negative_slope={s})" for s in _SLOPES)),
    "nn.LeakyReLU": _module("LeakyReLU", "leaky_relu", *(f"nn.LeakyReLU({s})" for s in _SLOPES)),
    F + "elu": _pointwise("F.elu({x})", "F.elu({x}, alpha=0.5)"),
    "nn.ELU": _module("ELU", "elu", "nn.ELU()", "nn.ELU(alpha=0.5)"),
    F + "selu": _pointwise("F.selu({x})"),
    "nn.SELU": _module("SELU", "selu"),
    F + "hardtanh": _pointwise("F.hardtanh({x})", "F.hardtanh({x}, -2.0, 2.0)", gives="bounded"),
    "nn.Hardtanh": _module("Hardtanh", "hardtanh", "nn.Hardtanh()", "nn.Hardtanh(-2.0, 2.0)", gives="bounded"),
    "nn.Hardswish": _module("Hardswish", "hardswish"),
    F + "hardswish": _pointwise("F.hardswish({x})"),
    F + "hardsigmoid": _pointwise("F.hardsigmoid({x})", gives="nonneg bounded"),
    "nn.Hardsigmoid": _module("Hardsigmoid", "hardsigmoid", gives="nonneg bounded"),
    F + "softplus": _pointwise("F.softplus({x})", gives="nonneg"),
    "nn.Softplus": _module("Softplus", "softplus", gives="nonneg"),
    "nn.Mish": _module("Mish", "mish"),
    F + "logsigmoid": _pointwise("F.logsigmoid({x})"),
    "torch.exp": _pointwise("torch.exp({x})", safe="bounded", gives="nonneg"),
    "torch.expm1": _pointwise("torch.expm1({x})", safe="bounded"),
    "torch.abs": _pointwise("torch.abs({x})", gives="nonneg"),
    "torch.neg": _pointwise("torch.neg({x})"),
    "torch.square": _pointwise("torch.square({x})", gives="nonneg"),
    "torch.pow": _pointwise("torch.pow({x}, 2)", "torch.pow({x}, 3)"),
    "torch.sqrt": _pointwise("torch.sqrt({x})", safe="nonneg", gives="nonneg"),
    "torch.rsqrt": _pointwise("torch.rsqrt({x} + 1.0)", safe="nonneg", gives="nonneg bounded"),
    "torch.reciprocal": _pointwise("torch.reciprocal({x} + 1.0)", safe="nonneg", gives="nonneg bounded"),
    "torch.log": _pointwise("torch.log({x} + 1.0)", "torch.log({x} + 0.5)", safe="nonneg"),
    "torch.log1p": _pointwise("torch.log1p({x})", safe="nonneg", gives="nonneg"),
    "torch.sin": _pointwise("torch.sin({x})", gives="bounded"),
    "torch.cos": _pointwise("torch.cos({x})", gives="bounded"),
    "torch.erf": _pointwise("torch.erf({x})", gives="bounded"),
    "torch.clamp": _pointwise(
        *(f"torch.clamp({{x}}, min={a}, max={b})" for a, b in _BOUNDS), "torch.clamp({x}, min=0.0)", gives="bounded"
    ),
}

_OTHERS: dict[str, Step] = {
    "torch.add": Step("binary", ("torch.add({x}, {y})",)),
    "torch.sub": Step("binary", ("torch.sub({x}, {y})",)),
    "torch.mul": Step("binary", ("torch.mul({x}, {y})",)),
    "torch.div": Step("binary", ("torch.div({x}, torch.abs({y}) + 1.0)",)),
    "torch.maximum": Step("binary", ("torch.maximum({x}, {y})",)),
    "torch.minimum": Step("binary", ("torch.minimum({x}, {y})",)),
    "torch.where": Step("where", ("torch.where({x} > 0.0, {x}, {y})", "torch.where({x} > {y}, {x}, 0.5 * {y})")),
    "torch.softmax": _row("torch.softmax({x}, dim=1)", gives="nonneg bounded"),
    F + "softmax": _row("F.softmax({x}, dim=1)", gives="nonneg bounded"),
    "nn.Softmax": _module("Softmax", "softmax", "nn.Softmax(dim=1)", kind="row", gives="nonneg bounded"),
    "torch.log_softmax": _row("torch.log_softmax({x}, dim=1)"),
    F + "log_softmax": _row("F.log_softmax({x}, dim=1)"),
    "nn.LogSoftmax": _module("LogSoftmax", "log_softmax", "nn.LogSoftmax(dim=1)", kind="row"),
    "nn.LayerNorm": _module("LayerNorm", "norm", "nn.LayerNorm({n})", kind="row", gives="bounded"),
    F + "layer_norm": _row("F.layer_norm({x}, {x}.shape[1:])", gives="bounded"),
    "nn.RMSNorm": _module("RMSNorm", "rms", "nn.RMSNorm({n}, eps=1e-6)", kind="row", gives="bounded"),
    F + "rms_norm": _row("F.rms_norm({x}, {x}.shape[1:], eps=1e-6)", gives="bounded"),
    F + "normalize": _row("F.normalize({x}, dim=1)", gives="bounded"),
    "torch.cumsum": _row("torch.cumsum({x}, dim=1)"),
    "torch.sum": _reduce("torch.sum({x}, dim=1{k})", "{x} + {r}", "{x} - 0.1 * {r}"),
    "torch.mean": _reduce("torch.mean({x}, dim=1{k})", "{x} - {r}", "{x} + {r}"),
    "torch.max": _reduce("torch.max({x}, dim=1{k})", "{x} - {r}", "{x} + {r}", tail="[0]"),
    "torch.min": _reduce("torch.min({x}, dim=1{k})", "{x} - {r}", "{x} + {r}", tail="[0]"),
    "torch.amax": _reduce("torch.amax({x}, dim=1{k})", "{x} - {r}", "{x} + {r}"),
    "torch.amin": _reduce("torch.amin({x}, dim=1{k})", "{x} - {r}", "{x} + {r}"),
    "torch.norm": _reduce("torch.norm({x}, dim=1{k})", "{x} / ({r} + 1.0)", "{x} + {r}"),
    "torch.logsumexp": _reduce("torch.logsumexp({x}, dim=1{k})", "{x} - {r}", "{x} + {r}"),
    "torch.var": _reduce("torch.var({x}, dim=1{k})", "{x} / ({r} + 1.0)", "{x} * {r}"),
    "torch.std": _reduce("torch.std({x}, dim=1{k})", "{x} / ({r} + 1.0)", "{x} * {r}"),
    "torch.argmax": Step("index", ("torch.argmax({x}, dim=1)",)),
    "torch.argmin": Step("index", ("torch.argmin({x}, dim=1)",)),
    F + "cosine_similarity": Step("similarity", ("F.cosine_similarity({x}, {y}, dim=1)",)),
    "nn.Linear": Step("product", ("self.{s}({x})",), _LINEAR, "linear"),
    F + "linear": Step("product", ("F.linear({x}, {w})",)),
    "torch.matmul": Step("product", ("torch.matmul({x}, {w})",)),
    "torch.mm": Step("product", ("torch.mm({x}, {w})",)),
    "nn.Parameter": Step(
        "parameter", ("{x} * self.{s}", "{x} + self.{s}"), ("nn.Parameter(torch.randn({n}))",), "scale"
    ),
}

STEPS: dict[str, Step] = {**_POINTWISE, **_OTHERS}
"""API → step."""

EXTRAS = (
    "torch.relu",
    "torch.sigmoid",
    "torch.tanh",
    F + "gelu",
    F + "silu",
    "torch.add",
    "torch.mul",
    "nn.Linear",
    "nn.Parameter",
)
"""Operators that are added now and then to a set, to make the chain longer."""
