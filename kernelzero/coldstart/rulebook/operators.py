"""Which PyTorch calls the rulebook knows, and under which of its own operator names.

One table for functions (`torch.softmax`, `F.softmax`, `operator.add`) and one for modules (`nn.Softmax`): both lead to
the same operator, e.g. "softmax", with named operands and attributes. Methods (`x.softmax(1)`) are read as the function
of the same name in `torch`. To teach the rulebook a new spelling, add a row here; to teach it a new operator, add its
rule in `rules.py` as well.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any


class CannotWrite(ValueError):
    """The rulebook has no rule for something in a module; the message names it."""


OPERANDS = ("x", "y", "z", "cond", "w", "b")
"""Names of arguments that may be tensors; all other arguments are attributes and must be plain numbers."""


def _words(text: str) -> list[str]:
    return text.split()


_UNARY = _words(
    "relu tanh sigmoid exp abs neg sqrt rsqrt square log log1p sin cos erf expm1 reciprocal exp2 log2 sign "
    "gelu silu mish relu6 hardswish hardsigmoid selu softsign tanhshrink logsigmoid"
)

_SIGNATURES: dict[str, tuple[str, ...]] = {
    **{name: ("x",) for name in _UNARY},
    "gelu": ("x", "approximate"),
    "silu": ("x", "inplace"),
    "mish": ("x", "inplace"),
    "relu": ("x", "inplace"),
    "relu6": ("x", "inplace"),
    "hardswish": ("x", "inplace"),
    "hardsigmoid": ("x", "inplace"),
    "selu": ("x", "inplace"),
    "leaky_relu": ("x", "negative_slope", "inplace"),
    "elu": ("x", "alpha", "inplace"),
    "celu": ("x", "alpha", "inplace"),
    "hardtanh": ("x", "min_val", "max_val", "inplace"),
    "softplus": ("x", "beta", "threshold"),
    "threshold": ("x", "threshold", "value", "inplace"),
    "clamp": ("x", "min", "max"),
    "clamp_min": ("x", "min"),
    "clamp_max": ("x", "max"),
    "pow": ("x", "exponent"),
    "add": ("x", "y", "alpha"),
    "sub": ("x", "y", "alpha"),
    "mul": ("x", "y"),
    "div": ("x", "y", "rounding_mode"),
    "maximum": ("x", "y"),
    "minimum": ("x", "y"),
    "where": ("cond", "x", "y"),
    "addcmul": ("x", "y", "z", "value"),
    "gt": ("x", "y"),
    "lt": ("x", "y"),
    "ge": ("x", "y"),
    "le": ("x", "y"),
    "softmax": ("x", "dim", "_stacklevel", "dtype"),
    "log_softmax": ("x", "dim", "_stacklevel", "dtype"),
    "softmin": ("x", "dim", "_stacklevel", "dtype"),
    "layer_norm": ("x", "normalized_shape", "w", "b", "eps"),
    "rms_norm": ("x", "normalized_shape", "w", "eps"),
    "normalize": ("x", "p", "dim", "eps", "out"),
    "sum": ("x", "dim", "keepdim", "dtype"),
    "mean": ("x", "dim", "keepdim", "dtype"),
    "max": ("x", "dim", "keepdim"),
    "min": ("x", "dim", "keepdim"),
    "amax": ("x", "dim", "keepdim"),
    "amin": ("x", "dim", "keepdim"),
    "argmax": ("x", "dim", "keepdim"),
    "argmin": ("x", "dim", "keepdim"),
    "norm": ("x", "p", "dim", "keepdim", "out", "dtype"),
    "logsumexp": ("x", "dim", "keepdim"),
    "var": ("x", "dim", "unbiased", "keepdim"),
    "std": ("x", "dim", "unbiased", "keepdim"),
    "cumsum": ("x", "dim", "dtype"),
    "cosine_similarity": ("x", "y", "dim", "eps"),
    "linear": ("x", "w", "b"),
    "matmul": ("x", "w"),
}

_TORCH = _words(
    "relu tanh sigmoid exp abs neg sqrt rsqrt square log log1p sin cos erf expm1 reciprocal exp2 log2 sign "
    "clamp clamp_min clamp_max pow add sub mul div maximum minimum where addcmul gt lt ge le softmax log_softmax "
    "sum mean max min amax amin argmax argmin norm logsumexp var std cumsum cosine_similarity matmul selu celu"
)
_FUNCTIONAL = _words(
    "relu tanh sigmoid gelu silu mish relu6 hardswish hardsigmoid selu celu softsign tanhshrink logsigmoid leaky_relu "
    "elu hardtanh softplus threshold softmax log_softmax softmin layer_norm rms_norm normalize cosine_similarity linear"
)
_OPERATOR = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "neg": "neg", "pow": "pow", "abs": "abs",
    "gt": "gt", "lt": "lt", "ge": "ge", "le": "le", "matmul": "matmul",
}  # fmt: skip
_ALIASES = {
    "clip": "clamp", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "negative": "neg",
    "absolute": "abs", "mm": "matmul", "sigmoid_": "sigmoid", "relu_": "relu",
}  # fmt: skip

_MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "ReLU": ("relu", ()), "GELU": ("gelu", ("approximate",)), "SiLU": ("silu", ()), "Sigmoid": ("sigmoid", ()),
    "Tanh": ("tanh", ()), "Mish": ("mish", ()), "ReLU6": ("relu6", ()), "Hardswish": ("hardswish", ()),
    "Hardsigmoid": ("hardsigmoid", ()), "SELU": ("selu", ()), "CELU": ("celu", ("alpha",)),
    "Softsign": ("softsign", ()), "Tanhshrink": ("tanhshrink", ()), "LogSigmoid": ("logsigmoid", ()),
    "LeakyReLU": ("leaky_relu", ("negative_slope",)), "ELU": ("elu", ("alpha",)),
    "Hardtanh": ("hardtanh", ("min_val", "max_val")), "Softplus": ("softplus", ("beta", "threshold")),
    "Threshold": ("threshold", ("threshold", "value")), "Softmax": ("softmax", ("dim",)),
    "LogSoftmax": ("log_softmax", ("dim",)), "Softmin": ("softmin", ("dim",)),
    "LayerNorm": ("layer_norm", ("normalized_shape", "eps")), "RMSNorm": ("rms_norm", ("normalized_shape", "eps")),
    "CosineSimilarity": ("cosine_similarity", ("dim", "eps")), "Linear": ("linear", ()),
}  # fmt: skip


@cache
def functions() -> dict[Any, tuple[str, tuple[str, ...]]]:
    """Callable → (operator, argument names in order)."""
    import torch
    import torch.nn.functional as functional

    table = {getattr(operator, name): op for name, op in _OPERATOR.items()}
    table |= {getattr(torch, name): name for name in _TORCH}
    table |= {getattr(functional, name): name for name in _FUNCTIONAL}
    table |= {getattr(torch, alias): name for alias, name in _ALIASES.items()}
    return {target: (op, _SIGNATURES[op]) for target, op in table.items()}


@cache
def modules() -> dict[type, tuple[str, tuple[str, ...]]]:
    """Module class → (operator, attributes to read from the instance). Weights are read by name."""
    import torch.nn as nn

    return {getattr(nn, name): row for name, row in _MODULES.items()}
