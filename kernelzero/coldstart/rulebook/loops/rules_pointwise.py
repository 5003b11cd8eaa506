"""Pointwise rules: arithmetic, functions, activations, comparisons and choices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import (
    BOOL,
    Expr,
    as_bool,
    as_float,
    as_int,
    as_kind,
    compare,
    const,
    function,
    kind_of,
    where,
)
from kernelzero.coldstart.rulebook.loops.rules import pointwise, promoted, require, rule
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Value

_SQRT_HALF = math.sqrt(0.5)


def exp(x: Expr) -> Expr:
    """e to the x."""
    return function("exp", x)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^−x)."""
    return function("sigmoid", x)


def tanh(x: Expr) -> Expr:
    """tanh x."""
    return function("tanh", x)


def softplus(x: Expr, beta: float = 1.0, threshold: float = 20.0) -> Expr:
    """log(1 + e^βx) / β, linear where that makes no difference."""
    scaled = as_float(x) * beta
    safe = function("log", 1.0 + exp(function("min", scaled, threshold)))
    return where(scaled > threshold, x, safe / beta)


def relu(x: Expr) -> Expr:
    """max(x, 0)."""
    return function("max", x, 0.0)


def clamped(x: Expr, low: float | None, high: float | None) -> Expr:
    """Between two numbers."""
    x = x if low is None else function("max", x, low)
    return x if high is None else function("min", x, high)


def sign(x: Expr) -> Expr:
    """−1, 0 or 1."""
    return where(x > 0.0, 1.0, where(x < 0.0, -1.0, 0.0))


def elu(x: Expr, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Expr:
    """x where positive, else α(e^x − 1)."""
    low = (exp(function("min", as_float(x) * input_scale, 0.0)) - 1.0) * (alpha * scale)
    return where(x > 0.0, as_float(x) * scale, low)


def log_sigmoid(x: Expr) -> Expr:
    """Stable on both sides."""
    return function("min", x, 0.0) - function("log", 1.0 + exp(-function("abs", x)))


def gelu(x: Expr, approximate: str = "none") -> Expr:
    """Exact or by tanh."""
    x = as_float(x)
    if approximate == "tanh":
        return 0.5 * x * (1.0 + tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + function("erf", x * _SQRT_HALF))


_UNARY: dict[str, Callable[[Expr], Expr]] = {
    "relu": relu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "exp": exp,
    "neg": lambda x: -as_float(x),
    "square": lambda x: as_float(x) * x,
    "log1p": lambda x: function("log1p", x),
    "expm1": lambda x: function("expm1", x),
    "reciprocal": lambda x: 1.0 / as_float(x),
    "sign": sign,
    "silu": lambda x: as_float(x) * sigmoid(x),
    "mish": lambda x: as_float(x) * tanh(softplus(x)),
    "relu6": lambda x: clamped(x, 0.0, 6.0),
    "hardswish": lambda x: as_float(x) * clamped(as_float(x) + 3.0, 0.0, 6.0) / 6.0,
    "hardsigmoid": lambda x: clamped(as_float(x) / 6.0 + 0.5, 0.0, 1.0),
    "selu": lambda x: elu(x, 1.6732632423543772, 1.0507009873554805),
    "softsign": lambda x: as_float(x) / (1.0 + function("abs", x)),
    "tanhshrink": lambda x: as_float(x) - tanh(x),
    "logsigmoid": log_sigmoid,
    "sinh": lambda x: 0.5 * (exp(x) - exp(-as_float(x))),
    "cosh": lambda x: 0.5 * (exp(x) + exp(-as_float(x))),
    "tan": lambda x: function("sin", x) / function("cos", x),
    "asinh": lambda x: sign(x) * function("log", function("abs", x) + function("sqrt", as_float(x) * x + 1.0)),
    "acosh": lambda x: function("log", as_float(x) + function("sqrt", as_float(x) * x - 1.0)),
    "atanh": lambda x: 0.5 * function("log", (1.0 + as_float(x)) / (1.0 - as_float(x))),
    "erfc": lambda x: 1.0 - function("erf", x),
    "frac": lambda x: as_float(x) - trunc(x),
    "rad2deg": lambda x: as_float(x) * (180.0 / math.pi),
    "deg2rad": lambda x: as_float(x) * (math.pi / 180.0),
    "positive": lambda x: x,
    "sinc": lambda x: where(
        compare("eq", x, 0.0), 1.0, function("sin", as_float(x) * math.pi) / (as_float(x) * math.pi)
    ),
}
_SAME_NAME = ("sqrt", "rsqrt", "log", "sin", "cos", "erf", "abs", "floor", "ceil", "exp2", "log2")
_PREDICATES: dict[str, Callable[[Expr], Expr]] = {
    "isnan": lambda x: compare("ne", x, x),
    "isinf": lambda x: compare("eq", function("abs", x), float("inf")),
    "isfinite": lambda x: function("abs", x) < float("inf"),
    "logical_not": lambda x: Expr("not", (as_bool(x),), BOOL),
}


def trunc(x: Expr) -> Expr:
    """Towards zero."""
    return where(x < 0.0, function("ceil", x), function("floor", x))


def rounded(x: Expr) -> Expr:
    """To the nearest integer, halves to even: adding 1.5 · 2^23 leaves no room for fractions."""
    small = function("abs", x) < 4194304.0
    return where(small, (as_float(x) + 12582912.0) - 12582912.0, x)


def _floating(x: Value) -> str:
    return x.dtype if kind_of(x.dtype) == "f" else "float32"


def _register_unary(name: str, compute: Callable[[Expr], Expr]) -> None:
    @rule(name, f"{name}_")
    def unary(s: Scheduler, input: Value, inplace: bool = False, _name: str = name) -> Value:
        keeps = _name in ("neg", "square", "sign", "abs", "positive", "relu") and kind_of(input.dtype) == "i"
        if keeps:
            return pointwise(s, _name, lambda x: as_kind(compute(as_float(x)), "i"), input)
        return pointwise(s, _name, compute, input, dtype=_floating(input))


for _name, _compute in _UNARY.items():
    _register_unary(_name, _compute)
for _name in _SAME_NAME:
    _register_unary(_name, lambda x, _function=_name: function(_function, x))  # type: ignore[misc]
_register_unary("log10", lambda x: function("log2", x) * math.log10(2.0))
_register_unary("log_sigmoid", log_sigmoid)
_register_unary("trunc", trunc)
_register_unary("fix", trunc)


def _register_predicate(name: str, compute: Callable[[Expr], Expr]) -> None:
    @rule(name)
    def predicate(s: Scheduler, input: Value) -> Value:
        return pointwise(s, name, compute, input, dtype="bool")


for _name, _compute in _PREDICATES.items():
    _register_predicate(_name, _compute)


@rule("round", "round_")
def round_(s: Scheduler, input: Value, decimals: int = 0) -> Value:
    """To the nearest integer."""
    require(decimals == 0, "round with decimals")
    return pointwise(s, "round", rounded, input)


# --- arithmetic ------------------------------------------------------------------------------------------------------


def _arithmetic(s: Scheduler, name: str, compute: Callable[[Expr, Expr], Expr], a: Any, b: Any) -> Value:
    values = [v for v in (a, b) if isinstance(v, Value)]
    dtype = promoted(values)
    if any(isinstance(v, float) for v in (a, b)) and kind_of(dtype) != "f":
        dtype = "float32"
    kind = kind_of(dtype)
    require(kind != BOOL, f"{name} of booleans")
    return pointwise(
        s, name, lambda x, y: as_kind(compute(as_kind(x, kind), as_kind(y, kind)), kind), a, b, dtype=dtype
    )


@rule("add", "add_", "__add__", "iadd")
def add(s: Scheduler, input: Any, other: Any, *, alpha: float = 1) -> Value:
    """a + αb."""
    return _arithmetic(s, "add", lambda x, y: x + y * alpha, input, other)


@rule("sub", "sub_", "subtract", "isub")
def sub(s: Scheduler, input: Any, other: Any, *, alpha: float = 1) -> Value:
    """a − αb."""
    return _arithmetic(s, "sub", lambda x, y: x - y * alpha, input, other)


@rule("rsub")
def rsub(s: Scheduler, input: Any, other: Any, *, alpha: float = 1) -> Value:
    """b − αa."""
    return sub(s, other, input, alpha=alpha)


@rule("mul", "mul_", "multiply", "imul")
def mul(s: Scheduler, input: Any, other: Any) -> Value:
    """a · b."""
    return _arithmetic(s, "mul", lambda x, y: x * y, input, other)


@rule("div", "div_", "divide", "true_divide", "truediv", "itruediv")
def div(s: Scheduler, input: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    """a / b."""
    values = [v for v in (input, other) if isinstance(v, Value)]
    dtype = promoted(values)
    rounds: dict[str | None, Callable[[Expr], Expr]] = {
        None: lambda x: x, "floor": lambda x: function("floor", x), "trunc": trunc,
    }  # fmt: skip
    require(rounding_mode is None or kind_of(dtype) == "f", "div of integers with rounding")
    return pointwise(
        s, "div", lambda x, y: rounds[rounding_mode](as_float(x) / as_float(y)), input, other,
        dtype=dtype if kind_of(dtype) == "f" else "float32",
    )  # fmt: skip


@rule("floor_divide", "floordiv")
def floor_divide(s: Scheduler, input: Any, other: Any) -> Value:
    """⌊a / b⌋."""
    return div(s, input, other, rounding_mode="floor")


@rule("remainder", "mod")
def remainder(s: Scheduler, input: Any, other: Any) -> Value:
    """a − b⌊a / b⌋, in floating point."""
    require(all(not isinstance(v, Value) or kind_of(v.dtype) == "f" for v in (input, other)), "remainder of integers")
    return _arithmetic(s, "remainder", lambda x, y: x - y * function("floor", x / y), input, other)


@rule("fmod")
def fmod(s: Scheduler, input: Any, other: Any) -> Value:
    """a − b·trunc(a / b), in floating point."""
    require(all(not isinstance(v, Value) or kind_of(v.dtype) == "f" for v in (input, other)), "fmod of integers")
    return _arithmetic(s, "fmod", lambda x, y: x - y * trunc(x / y), input, other)


@rule("maximum", "fmax")
def maximum(s: Scheduler, input: Any, other: Any) -> Value:
    """The larger one."""
    return _arithmetic(s, "maximum", lambda x, y: where(x > y, x, y), input, other)


@rule("minimum", "fmin")
def minimum(s: Scheduler, input: Any, other: Any) -> Value:
    """The smaller one."""
    return _arithmetic(s, "minimum", lambda x, y: where(x < y, x, y), input, other)


@rule("pow", "pow_")
def power(s: Scheduler, input: Any, exponent: Any) -> Value:
    """a to the b: by products for small whole numbers, else by exp and log, for a > 0."""
    if isinstance(exponent, int | float) and float(exponent) in (0.5, -0.5, -1.0, 2.0, 3.0, 4.0, 1.0):
        return pointwise(s, "pow", lambda x: _known_power(as_float(x), float(exponent)), input, dtype=_floating(input))
    if isinstance(exponent, int | float):
        require(float(exponent) != int(exponent) or exponent > 0, f"pow with exponent {exponent}")
        whole = float(exponent) == int(exponent)
        return pointwise(s, "pow", lambda x: _general_power(as_float(x), float(exponent), whole), input)
    return pointwise(s, "pow", lambda x, y: function("exp2", as_float(y) * function("log2", x)), input, exponent)


def _known_power(x: Expr, exponent: float) -> Expr:
    known = {
        1.0: lambda: x, 2.0: lambda: x * x, 3.0: lambda: x * x * x, 4.0: lambda: (x * x) * (x * x),
        0.5: lambda: function("sqrt", x), -0.5: lambda: function("rsqrt", x), -1.0: lambda: 1.0 / x,
    }  # fmt: skip
    return known[exponent]()


def _general_power(x: Expr, exponent: float, whole: bool) -> Expr:
    size = function("exp2", exponent * function("log2", function("abs", x)))
    if not whole:
        return function("exp2", exponent * function("log2", x))
    return where(x < 0.0, -size, size) if int(exponent) % 2 else size


@rule("addcmul")
def addcmul(s: Scheduler, input: Value, tensor1: Value, tensor2: Value, *, value: float = 1) -> Value:
    """x + v·a·b."""
    return pointwise(s, "addcmul", lambda x, a, b: x + as_float(a) * b * float(value), input, tensor1, tensor2)


@rule("addcdiv")
def addcdiv(s: Scheduler, input: Value, tensor1: Value, tensor2: Value, *, value: float = 1) -> Value:
    """x + v·a / b."""
    return pointwise(s, "addcdiv", lambda x, a, b: x + as_float(a) / b * float(value), input, tensor1, tensor2)


@rule("lerp")
def lerp(s: Scheduler, input: Value, end: Value, weight: Any) -> Value:
    """a + w(b − a)."""
    return pointwise(s, "lerp", lambda a, b, w: a + as_float(w) * (as_float(b) - a), input, end, weight)


@rule("logaddexp")
def logaddexp(s: Scheduler, input: Value, other: Value) -> Value:
    """log(e^a + e^b)."""
    return pointwise(
        s, "logaddexp",
        lambda a, b: function("max", a, b) + function("log", 1.0 + exp(-function("abs", as_float(a) - b))),
        input, other,
    )  # fmt: skip


@rule("xlogy")
def xlogy(s: Scheduler, input: Any, other: Any) -> Value:
    """x·log y, 0 where x is."""
    return pointwise(
        s, "xlogy", lambda a, b: where(compare("eq", a, 0.0), 0.0, as_float(a) * function("log", b)), input, other
    )


# --- comparisons and choices -----------------------------------------------------------------------------------------


def _register_comparison(name: str, op: str) -> None:
    @rule(name)
    def comparison(s: Scheduler, input: Any, other: Any) -> Value:
        return pointwise(s, name, lambda a, b: compare(op, a, b), input, other, dtype="bool")


for _name, _op in (
    ("lt", "lt"), ("le", "le"), ("gt", "gt"), ("ge", "ge"), ("eq", "eq"), ("ne", "ne"), ("less", "lt"),
    ("greater", "gt"), ("less_equal", "le"), ("greater_equal", "ge"), ("not_equal", "ne"),
):  # fmt: skip
    _register_comparison(_name, _op)


def _register_logical(name: str, compute: Callable[[Expr, Expr], Expr]) -> None:
    @rule(name, f"{name}_")
    def logical(s: Scheduler, input: Value, other: Value) -> Value:
        return pointwise(s, name, lambda a, b: compute(as_bool(a), as_bool(b)), input, other, dtype="bool")


_register_logical("logical_and", lambda a, b: Expr("and", (a, b), BOOL))
_register_logical("logical_or", lambda a, b: Expr("or", (a, b), BOOL))
_register_logical("logical_xor", lambda a, b: compare("ne", as_int(a), as_int(b)))


@rule("where")
def where_(s: Scheduler, condition: Value, input: Any, other: Any) -> Value:
    """One or the other."""
    values = [v for v in (input, other) if isinstance(v, Value)]
    dtype = promoted(values) if values else "float32"
    return pointwise(
        s, "where", lambda c, a, b: where(c, as_kind(a, kind_of(dtype)), as_kind(b, kind_of(dtype))),
        condition, input, other, dtype=dtype,
    )  # fmt: skip


@rule("masked_fill", "masked_fill_")
def masked_fill(s: Scheduler, input: Value, mask: Value, value: float) -> Value:
    """A number where the mask is set."""
    kind = input.kind
    return pointwise(
        s, "masked_fill", lambda x, m: where(m, as_kind(const(value), kind), x), input, mask, dtype=input.dtype
    )


@rule("nan_to_num")
def nan_to_num(
    s: Scheduler, input: Value, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """Numbers for what is none."""
    top = 3.4028234663852886e38
    high, low = (top if posinf is None else posinf), (-top if neginf is None else neginf)

    def compute(x: Expr) -> Expr:
        finite = where(compare("eq", x, float("inf")), high, where(compare("eq", x, float("-inf")), low, x))
        return where(compare("ne", x, x), nan, finite)

    return pointwise(s, "nan_to_num", compute, input)


@rule("clamp", "clip", "clamp_", "clip_")
def clamp(s: Scheduler, input: Value, min: Any = None, max: Any = None) -> Value:
    """Between bounds, numbers or tensors."""
    operands = [b for b in (min, max) if b is not None]
    require(bool(operands), "clamp without bounds")

    def compute(x: Expr, *bounds: Expr) -> Expr:
        found, given = x, list(bounds)
        if min is not None:
            low = as_kind(given.pop(0), x.kind)
            found = where(found < low, low, found)
        if max is not None:
            high = as_kind(given.pop(0), x.kind)
            found = where(found > high, high, found)
        return found

    return pointwise(s, "clamp", compute, input, *operands, dtype=input.dtype)


@rule("clamp_min", "clamp_min_")
def clamp_min(s: Scheduler, input: Value, min: Any) -> Value:
    """Not below."""
    return clamp(s, input, min=min)


@rule("clamp_max", "clamp_max_")
def clamp_max(s: Scheduler, input: Value, max: Any) -> Value:
    """Not above."""
    return clamp(s, input, max=max)


# --- activations with parameters -------------------------------------------------------------------------------------


@rule("gelu")
def gelu_(s: Scheduler, input: Value, approximate: str = "none") -> Value:
    """GELU."""
    return pointwise(s, "gelu", lambda x: gelu(x, approximate), input)


@rule("leaky_relu", "leaky_relu_")
def leaky_relu(s: Scheduler, input: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    """x or a·x."""
    return pointwise(s, "leaky_relu", lambda x: where(x > 0.0, x, as_float(x) * negative_slope), input)


@rule("elu", "elu_")
def elu_(s: Scheduler, input: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    """ELU."""
    return pointwise(s, "elu", lambda x: elu(x, alpha), input)


@rule("celu", "celu_")
def celu(s: Scheduler, input: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    """CELU."""
    return pointwise(s, "celu", lambda x: elu(x, alpha, 1.0, 1.0 / alpha), input)


@rule("hardtanh", "hardtanh_")
def hardtanh(s: Scheduler, input: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    """Between two numbers."""
    return pointwise(s, "hardtanh", lambda x: clamped(x, float(min_val), float(max_val)), input)


@rule("softplus")
def softplus_(s: Scheduler, input: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """Softplus."""
    return pointwise(s, "softplus", lambda x: softplus(x, float(beta), float(threshold)), input)


@rule("threshold", "threshold_", "_threshold")
def threshold_(s: Scheduler, input: Value, threshold: float, value: float, inplace: bool = False) -> Value:
    """x above a threshold, else a number."""
    return pointwise(s, "threshold", lambda x: where(x > float(threshold), x, float(value)), input)


@rule("hardshrink")
def hardshrink(s: Scheduler, input: Value, lambd: float = 0.5) -> Value:
    """0 near 0."""
    return pointwise(s, "hardshrink", lambda x: where(function("abs", x) > lambd, x, 0.0), input)


@rule("softshrink")
def softshrink(s: Scheduler, input: Value, lambd: float = 0.5) -> Value:
    """Towards 0 by a number."""
    return pointwise(
        s,
        "softshrink",
        lambda x: where(x > lambd, as_float(x) - lambd, where(x < -lambd, as_float(x) + lambd, 0.0)),
        input,
    )


@rule("prelu")
def prelu(s: Scheduler, input: Value, weight: Value) -> Value:
    """x or w·x, w for each channel."""
    shape = (1, weight.shape[0], *(1 for _ in input.shape[2:])) if len(input.shape) > 1 else weight.shape
    spread = Value(shape, weight.dtype, lambda index: weight.at((index[1] if len(shape) > 1 else index[0],)))
    return pointwise(s, "prelu", lambda x, w: where(x > 0.0, x, as_float(w) * x), input, spread)


@rule("dropout", "alpha_dropout", "dropout2d", "feature_dropout")
def dropout(s: Scheduler, input: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    """Nothing, where it is off."""
    require(not training or p == 0, "dropout that is on")
    return input


@rule("logaddexp2")
def logaddexp2(s: Scheduler, input: Value, other: Value) -> Value:
    """log₂(2^a + 2^b)."""

    def compute(a: Expr, b: Expr) -> Expr:
        gap = function("exp2", -function("abs", as_float(a) - b))
        return function("max", a, b) + function("log2", 1.0 + gap)

    return pointwise(s, "logaddexp2", compute, input, other)


@rule("heaviside")
def heaviside(s: Scheduler, input: Value, values: Value) -> Value:
    """0, a value at 0, 1."""
    return pointwise(
        s, "heaviside", lambda x, v: where(x < 0.0, 0.0, where(compare("eq", x, 0.0), v, 1.0)), input, values
    )


@rule("xlog1py", "special_xlog1py")
def xlog1py(s: Scheduler, input: Any, other: Any) -> Value:
    """x·log(1 + y), 0 where x is."""
    return pointwise(
        s, "xlog1py", lambda a, b: where(compare("eq", a, 0.0), 0.0, as_float(a) * function("log1p", b)), input, other
    )


@rule("entr", "special_entr")
def entr(s: Scheduler, input: Value) -> Value:
    """−x·log x."""

    def compute(x: Expr) -> Expr:
        positive = x > 0.0
        inside = -(as_float(x) * function("log", where(positive, x, 1.0)))
        return where(positive, inside, where(compare("eq", x, 0.0), 0.0, float("-inf")))

    return pointwise(s, "entr", compute, input)


@rule("sgn")
def sgn(s: Scheduler, input: Value) -> Value:
    """The sign."""
    return pointwise(s, "sgn", sign, input)


@rule("expit", "special_expit")
def expit(s: Scheduler, input: Value) -> Value:
    """The logistic function."""
    return pointwise(s, "expit", sigmoid, input, dtype=_floating(input))


@rule("glu")
def glu(s: Scheduler, input: Value, dim: int = -1) -> Value:
    """One half times the logistic function of the other."""
    from kernelzero.coldstart.rulebook.loops.rules_layout import chunk

    a, b = chunk(s, input, 2, dim)
    return pointwise(s, "glu", lambda x, y: as_float(x) * sigmoid(y), a, b)


@rule("rdiv")
def rdiv(s: Scheduler, input: Any, other: Any) -> Value:
    """b / a."""
    return div(s, other, input)  # type: ignore[no-any-return]


@rule("rpow")
def rpow(s: Scheduler, input: Value, other: Any) -> Value:
    """b to the a, for a number b > 0."""
    require(isinstance(other, int | float) and other > 0, "a tensor as exponent of such a base")
    return pointwise(
        s, "pow", lambda x: function("exp2", as_float(x) * math.log2(other)), input, dtype=_floating(input)
    )
