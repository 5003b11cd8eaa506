"""How each operator is written in Triton, independent of the kernel around it.

A pointwise rule is one expression. A row rule writes the statements of an operator that looks along the last dimension;
it speaks only through `Row`, so the same rule serves one row a program, several rows a program, and the tile after a
matrix product. Rules are stable for large |x|: maxima are subtracted before exp, tanh goes through sigmoid.
Padding never reaches a reduction: its operand passes through `tl.where(mask, …)` with the neutral element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kernelzero.coldstart.rulebook.operators import CannotWrite

LOWEST, HIGHEST = '-float("inf")', 'float("inf")'

POINTWISE: dict[str, str] = {
    "relu": "tl.maximum({x}, 0.0)",
    "tanh": "2.0 * tl.sigmoid(2.0 * {x}) - 1.0",
    "sigmoid": "tl.sigmoid({x})",
    "exp": "tl.exp({x})",
    "exp2": "tl.exp2({x})",
    "expm1": "tl.exp({x}) - 1.0",
    "abs": "tl.abs({x})",
    "neg": "-{x}",
    "sqrt": "tl.sqrt({x})",
    "rsqrt": "1.0 / tl.sqrt({x})",
    "square": "{x} * {x}",
    "log": "tl.log({x})",
    "log2": "tl.log2({x})",
    "log1p": "tl.log(1.0 + {x})",
    "sin": "tl.sin({x})",
    "cos": "tl.cos({x})",
    "erf": "tl.erf({x})",
    "reciprocal": "1.0 / {x}",
    "sign": "tl.where({x} > 0, 1.0, tl.where({x} < 0, -1.0, 0.0))",
    "silu": "{x} * tl.sigmoid({x})",
    "mish": "{x} * (2.0 * tl.sigmoid(2.0 * (tl.maximum({x}, 0.0) + tl.log(1.0 + tl.exp(-tl.abs({x}))))) - 1.0)",
    "relu6": "tl.minimum(tl.maximum({x}, 0.0), 6.0)",
    "hardswish": "{x} * tl.minimum(tl.maximum({x} + 3.0, 0.0), 6.0) / 6.0",
    "hardsigmoid": "tl.minimum(tl.maximum({x} + 3.0, 0.0), 6.0) / 6.0",
    "selu": "1.0507009873554805 * tl.where({x} > 0, {x}, 1.6732632423543772 * (tl.exp({x}) - 1.0))",
    "softsign": "{x} / (1.0 + tl.abs({x}))",
    "tanhshrink": "{x} - (2.0 * tl.sigmoid(2.0 * {x}) - 1.0)",
    "logsigmoid": "tl.minimum({x}, 0.0) - tl.log(1.0 + tl.exp(-tl.abs({x})))",
    "leaky_relu": "tl.where({x} > 0, {x}, {negative_slope} * {x})",
    "elu": "tl.where({x} > 0, {x}, {alpha} * (tl.exp({x}) - 1.0))",
    "celu": "tl.where({x} > 0, {x}, {alpha} * (tl.exp({x} / {alpha}) - 1.0))",
    "hardtanh": "tl.minimum(tl.maximum({x}, {min_val}), {max_val})",
    "threshold": "tl.where({x} > {threshold}, {x}, {value})",
    "clamp_min": "tl.maximum({x}, {min})",
    "clamp_max": "tl.minimum({x}, {max})",
    "add": "{x} + {y}",
    "sub": "{x} - {y}",
    "mul": "{x} * {y}",
    "div": "{x} / {y}",
    "maximum": "tl.maximum({x}, {y})",
    "minimum": "tl.minimum({x}, {y})",
    "where": "tl.where({cond}, {x}, {y})",
    "addcmul": "{x} + {value} * {y} * {z}",
    "gt": "{x} > {y}",
    "lt": "{x} < {y}",
    "ge": "{x} >= {y}",
    "le": "{x} <= {y}",
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "leaky_relu": {"negative_slope": 0.01},
    "elu": {"alpha": 1.0},
    "celu": {"alpha": 1.0},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0},
    "softplus": {"beta": 1.0, "threshold": 20.0},
    "addcmul": {"value": 1.0},
    "layer_norm": {"eps": 1e-5},
    "rms_norm": {"eps": None},
    "normalize": {"p": 2.0, "dim": 1, "eps": 1e-12},
    "norm": {"p": 2},
    "cosine_similarity": {"dim": 1, "eps": 1e-8},
    "gelu": {"approximate": "none"},
}

_GELU_TANH = "{x} * tl.sigmoid(1.5957691216057308 * ({x} + 0.044715 * {x} * {x} * {x}))"
_GELU_ERF = "0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476))"
_SOFTPLUS = "tl.maximum({x}, 0.0) + tl.log(1.0 + tl.exp(-tl.abs({x})))"
_POWERS = {2: "{x} * {x}", 3: "{x} * {x} * {x}", 0.5: "tl.sqrt({x})", 1: "{x}"}
_IGNORED = {"inplace": (False, None), "_stacklevel": (3, None), "dtype": (None,), "out": (None,), "alpha": (1,)}


def number(value: Any) -> str:
    """A number as it stands in a kernel: 0.2, 1e-5, 6.0."""
    text = repr(float(value))
    return text.replace("e-0", "e-")


def attributes(op: str, given: dict[str, Any]) -> dict[str, Any]:
    """Attributes with defaults filled in. Raises CannotWrite for options that no rule covers."""
    merged = DEFAULTS.get(op, {}) | given
    for name, allowed in _IGNORED.items():
        if name in merged and name not in DEFAULTS.get(op, {}) and merged[name] not in allowed:
            raise CannotWrite(f"{op} with {name}={merged[name]}")
    if merged.get("rounding_mode") is not None:
        raise CannotWrite(f"{op} with rounding_mode={merged['rounding_mode']}")
    return merged


def is_pointwise(op: str) -> bool:
    """Whether each output element depends on one element of each operand."""
    return op in POINTWISE or op in ("gelu", "softplus", "clamp", "pow")


def pointwise(op: str, operands: dict[str, str], attrs: dict[str, Any]) -> str:
    """The expression of a pointwise operator over the given operand texts."""
    return _template(op, attrs).format(**{k: number(v) for k, v in attrs.items() if _is_number(v)}, **operands)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _template(op: str, attrs: dict[str, Any]) -> str:
    if op == "gelu":
        return _GELU_TANH if attrs["approximate"] == "tanh" else _GELU_ERF
    if op == "softplus":
        if attrs["beta"] != 1:
            raise CannotWrite(f"softplus with beta={attrs['beta']}")
        return _SOFTPLUS
    if op == "clamp":
        return _clamp(attrs)
    if op == "pow":
        if attrs.get("exponent") not in _POWERS:
            raise CannotWrite(f"pow with exponent={attrs.get('exponent')}")
        return _POWERS[attrs["exponent"]]
    return POINTWISE[op]


def _clamp(attrs: dict[str, Any]) -> str:
    text = "{x}"
    for bound, function in (("min", "maximum"), ("max", "minimum")):
        if attrs.get(bound) is not None:
            if not _is_number(attrs[bound]):
                raise CannotWrite(f"clamp with a tensor as {bound}")
            text = f"tl.{function}({text}, {{{bound}}})"
    return text


class Row(Protocol):
    """What a row rule may use of the kernel that it stands in."""

    n: str
    """Name of the row's length."""

    def where(self, value: str, fill: str) -> str:
        """The value, with padding replaced by `fill`."""

    def reduce(self, function: str, value: str) -> str:
        """`tl.<function>` along the row."""

    def scan(self, function: str, value: str) -> str:
        """`tl.<function>` along the row for functions that keep the row's length."""

    def vector(self, name: str) -> str:
        """A loaded vector as long as the row, e.g. a weight."""

    def temporary(self) -> str:
        """A fresh name."""

    def put(self, name: str, expression: str) -> None:
        """Write one statement."""


@dataclass(frozen=True)
class RowRule:
    """An operator along the last dimension."""

    reduces: bool
    """Whether one value a row comes out."""
    write: Callable[[Row, str, dict[str, str], dict[str, Any]], None]
    """(row, output name, operand names, attributes) → statements; the output may be the name of an operand."""


def _softmax(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    row.put(out, row.where(args["x"], LOWEST))
    row.put(out, f"tl.exp({out} - {row.reduce('max', out)})")
    row.put(out, f"{out} / {row.reduce('sum', out)}")


def _softmin(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    _softmax(row, out, {"x": f"-{args['x']}"}, attrs)


def _log_softmax(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    row.put(out, f"{args['x']} - {row.reduce('max', row.where(args['x'], LOWEST))}")
    total = row.reduce("sum", row.where(f"tl.exp({out})", "0.0"))
    row.put(out, f"{out} - tl.log({total})")


def _logsumexp(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    x, top = args["x"], row.temporary()
    row.put(top, row.reduce("max", row.where(x, LOWEST)))
    row.put(out, f"{top} + tl.log({row.reduce('sum', row.where(f'tl.exp({x} - {top})', '0.0'))})")


def _layer_norm(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    row.put(out, row.where(args["x"], "0.0"))
    row.put(out, row.where(f"{out} - {row.reduce('sum', out)} / {row.n}", "0.0"))
    row.put(out, f"{out} / tl.sqrt({row.reduce('sum', f'{out} * {out}')} / {row.n} + {number(attrs['eps'])})")
    _affine(row, out, args)


def _rms_norm(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    eps = 1.1920929e-07 if attrs["eps"] is None else attrs["eps"]
    row.put(out, row.where(args["x"], "0.0"))
    row.put(out, f"{out} / tl.sqrt({row.reduce('sum', f'{out} * {out}')} / {row.n} + {number(eps)})")
    _affine(row, out, args)


def _affine(row: Row, out: str, args: dict[str, str]) -> None:
    text = out
    if "w" in args:
        text = f"{text} * {row.vector(args['w'])}"
    if "b" in args:
        text = f"{text} + {row.vector(args['b'])}"
    if text != out:
        row.put(out, text)


def _normalize(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    if attrs["p"] != 2:
        raise CannotWrite(f"normalize with p={attrs['p']}")
    row.put(out, row.where(args["x"], "0.0"))
    length = f"tl.sqrt({row.reduce('sum', f'{out} * {out}')})"
    row.put(out, f"{out} / tl.maximum({length}, {number(attrs['eps'])})")


def _norm(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    x = args["x"]
    if attrs["p"] in (2, "fro", None):
        row.put(out, f"tl.sqrt({row.reduce('sum', row.where(f'{x} * {x}', '0.0'))})")
    elif attrs["p"] == 1:
        row.put(out, row.reduce("sum", row.where(f"tl.abs({x})", "0.0")))
    else:
        raise CannotWrite(f"norm with p={attrs['p']}")


def _variance(root: bool) -> Callable[[Row, str, dict[str, str], dict[str, Any]], None]:
    def write(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
        x, mean = args["x"], row.temporary()
        unbiased = attrs.get("unbiased", True)
        if unbiased not in (True, False):
            raise CannotWrite(f"var with correction={unbiased}")
        row.put(mean, f"{row.reduce('sum', row.where(x, '0.0'))} / {row.n}")
        square = f"({x} - {mean}) * ({x} - {mean})"
        count = f"({row.n} - 1)" if unbiased else row.n
        text = f"{row.reduce('sum', row.where(square, '0.0'))} / {count}"
        row.put(out, f"tl.sqrt({text})" if root else text)

    return write


def _cosine(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    x, y, eps = args["x"], args["y"], number(attrs["eps"])
    a, b = row.temporary(), row.temporary()
    row.put(a, f"tl.sqrt({row.reduce('sum', row.where(f'{x} * {x}', '0.0'))})")
    row.put(b, f"tl.sqrt({row.reduce('sum', row.where(f'{y} * {y}', '0.0'))})")
    dot = row.reduce("sum", row.where(f"{x} * {y}", "0.0"))
    row.put(out, f"{dot} / (tl.maximum({a}, {eps}) * tl.maximum({b}, {eps}))")


def _reduction(function: str, fill: str, tail: str = "") -> Callable[[Row, str, dict[str, str], dict[str, Any]], None]:
    def write(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
        row.put(out, row.reduce(function, row.where(args["x"], fill)) + tail.format(n=row.n))

    return write


def _cumsum(row: Row, out: str, args: dict[str, str], attrs: dict[str, Any]) -> None:
    row.put(out, row.scan("cumsum", args["x"]))


ROW: dict[str, RowRule] = {
    "softmax": RowRule(False, _softmax),
    "softmin": RowRule(False, _softmin),
    "log_softmax": RowRule(False, _log_softmax),
    "layer_norm": RowRule(False, _layer_norm),
    "rms_norm": RowRule(False, _rms_norm),
    "normalize": RowRule(False, _normalize),
    "cumsum": RowRule(False, _cumsum),
    "logsumexp": RowRule(True, _logsumexp),
    "sum": RowRule(True, _reduction("sum", "0.0")),
    "mean": RowRule(True, _reduction("sum", "0.0", " / {n}")),
    "max": RowRule(True, _reduction("max", LOWEST)),
    "amax": RowRule(True, _reduction("max", LOWEST)),
    "min": RowRule(True, _reduction("min", HIGHEST)),
    "amin": RowRule(True, _reduction("min", HIGHEST)),
    "argmax": RowRule(True, _reduction("argmax", LOWEST)),
    "argmin": RowRule(True, _reduction("argmin", HIGHEST)),
    "norm": RowRule(True, _norm),
    "var": RowRule(True, _variance(root=False)),
    "std": RowRule(True, _variance(root=True)),
    "cosine_similarity": RowRule(True, _cosine),
}
"""Operators along the last dimension."""
