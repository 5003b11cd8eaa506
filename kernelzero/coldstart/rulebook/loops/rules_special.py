"""Functions of torch.special, angles and bits: element by element, and further names of rules that are elsewhere."""

from __future__ import annotations

import math
from typing import Any

from kernelzero.coldstart.rulebook.loops import rules_norms, rules_reductions  # noqa: F401
from kernelzero.coldstart.rulebook.loops.expr import (
    BOOL,
    INT,
    Expr,
    as_bool,
    as_float,
    as_int,
    compare,
    function,
    where,
)
from kernelzero.coldstart.rulebook.loops.rules import also, pointwise, promoted, require, rule
from kernelzero.coldstart.rulebook.loops.rules_pointwise import clamped, power
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Value

for _name in ("erf", "erfc", "exp2", "expm1", "log1p", "sinc", "round", "xlogy", "softmax", "log_softmax", "logsumexp"):
    also(_name, f"special_{_name}")


@rule("logit", "logit_", "special_logit")
def logit(s: Scheduler, input: Value, eps: float | None = None) -> Value:
    """log(x / (1 − x)), x between eps and 1 − eps where eps is given."""

    def compute(x: Expr) -> Expr:
        share = as_float(x) if eps is None else clamped(x, eps, 1.0 - eps)
        return function("log", share / (1.0 - share))

    return pointwise(s, "logit", compute, input)


@rule("special_ndtr")
def ndtr(s: Scheduler, input: Value) -> Value:
    """The normal distribution's share below x."""
    return pointwise(s, "ndtr", lambda x: 0.5 + 0.5 * function("erf", as_float(x) * math.sqrt(0.5)), input)


# --- angles ----------------------------------------------------------------------------------------------------------


@rule("atan", "arctan", "atan_")
def atan(s: Scheduler, input: Value) -> Value:
    """The angle with this tangent."""
    return pointwise(s, "atan", lambda x: function("atan", x), input)


@rule("asin", "arcsin", "asin_")
def asin(s: Scheduler, input: Value) -> Value:
    """The angle with this sine: the one of a point on the unit circle."""
    return pointwise(s, "asin", lambda x: function("atan2", x, _other_side(x)), input)


@rule("acos", "arccos", "acos_")
def acos(s: Scheduler, input: Value) -> Value:
    """The angle with this cosine."""
    return pointwise(s, "acos", lambda x: function("atan2", _other_side(x), x), input)


def _other_side(x: Expr) -> Expr:
    return function("sqrt", (1.0 - as_float(x)) * (1.0 + as_float(x)))


@rule("atan2", "arctan2", "atan2_")
def atan2(s: Scheduler, input: Value, other: Value) -> Value:
    """The angle of the point (other, input)."""
    return pointwise(s, "atan2", lambda y, x: function("atan2", y, x), input, other)


@rule("hypot", "hypot_")
def hypot(s: Scheduler, input: Value, other: Value) -> Value:
    """√(a² + b²), the larger one taken out, so that no square is too large."""

    def compute(a: Expr, b: Expr) -> Expr:
        a, b = function("abs", a), function("abs", b)
        large, small = function("max", a, b), function("min", a, b)
        share = small / where(compare("eq", large, 0.0), 1.0, large)
        return large * function("sqrt", 1.0 + share * share)

    return pointwise(s, "hypot", compute, input, other)


# --- powers of two and signs -----------------------------------------------------------------------------------------


@rule("ldexp", "ldexp_")
def ldexp(s: Scheduler, input: Value, other: Value) -> Value:
    """a · 2^b."""
    return pointwise(s, "ldexp", lambda a, b: as_float(a) * function("exp2", b), input, other, dtype=_float_of(input))


def _float_of(x: Value) -> str:
    return x.dtype if x.kind == "f" else "float32"


@rule("copysign", "copysign_")
def copysign(s: Scheduler, input: Value, other: Any) -> Value:
    """|a| with the sign of b, which a zero has as well."""
    if not isinstance(other, Value):
        factor = math.copysign(1.0, other)
        return pointwise(s, "copysign", lambda a: function("abs", a) * factor, input)
    return pointwise(s, "copysign", lambda a, b: function("copysign", a, b), input, other)


@rule("signbit")
def signbit(s: Scheduler, input: Value) -> Value:
    """Whether the sign is minus, which a zero may have."""
    return pointwise(s, "signbit", lambda x: function("copysign", 1.0, x) < 0.0, input, dtype="bool")


@rule("float_power", "float_power_")
def float_power(s: Scheduler, input: Any, exponent: Any) -> Value:
    """a to the b; PyTorch gives 64 bits, a kernel computes in 32."""
    return power(s, input, exponent)  # type: ignore[no-any-return]


# --- bits ------------------------------------------------------------------------------------------------------------


def _register_bits(name: str, op: str, logical: str) -> None:
    @rule(name, f"{name}_")
    def bits(s: Scheduler, input: Any, other: Any) -> Value:
        dtype = promoted([v for v in (input, other) if isinstance(v, Value)])
        if dtype != "bool":
            return pointwise(s, name, lambda a, b: Expr(op, (as_int(a), as_int(b)), INT), input, other, dtype=dtype)
        return pointwise(s, name, lambda a, b: _truth(logical, as_bool(a), as_bool(b)), input, other, dtype="bool")


def _truth(op: str, a: Expr, b: Expr) -> Expr:
    return compare("ne", as_int(a), as_int(b)) if op == "ne" else Expr(op, (a, b), BOOL)


for _name, _op, _logical in (("and", "bitand", "and"), ("or", "bitor", "or"), ("xor", "bitxor", "ne")):
    _register_bits(f"bitwise_{_name}", _op, _logical)


@rule("bitwise_not", "bitwise_not_")
def bitwise_not(s: Scheduler, input: Value) -> Value:
    """All bits turned: −1 − x of integers."""
    require(input.kind != "f", "bitwise_not of floating point")
    if input.dtype == "bool":
        return pointwise(s, "bitwise_not", lambda x: Expr("not", (as_bool(x),), BOOL), input, dtype="bool")
    return pointwise(s, "bitwise_not", lambda x: -1 - as_int(x), input)
