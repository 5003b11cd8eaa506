"""Whether a candidate's output is the reference's: structure first, then values. Runs on the trusted side only.

Criteria: integers, booleans and everything that is not a tensor compare exactly. Floating point compares with
|a − b| ≤ atol + rtol·|b|, atol = rtol = 1e-2 (the paper's), NaN where the reference has NaN and nowhere else, equal
infinities. Where an answer that knows nothing passes that, atol is scaled by the root mean square of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from kernelzero.keck import wire

ATOL = RTOL = 1e-2
_KERNELBENCH = {torch.float16: 1e-2, torch.bfloat16: 1e-2}
_KERNELBENCH_WIDE = 1e-4


@dataclass(frozen=True)
class Criterion:
    """How floating-point values are compared."""

    scaled: bool
    """Whether atol is relative to the root mean square of the reference's finite values."""
    profile: str = "paper"
    """Whose tolerances: "paper", or "kernelbench" by dtype."""
    relaxed: float = 1.0
    """Factor on both tolerances, where what is compared has been compared strictly before."""

    @property
    def name(self) -> str:
        """What a verdict calls it."""
        return "scale-aware" if self.scaled else "absolute"

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """(atol, rtol) for outputs of a dtype."""
        if self.profile == "kernelbench":
            both = _KERNELBENCH.get(dtype, _KERNELBENCH_WIDE)
            return both * self.relaxed, both * self.relaxed
        return ATOL * self.relaxed, RTOL * self.relaxed


ABSOLUTE, SCALED = Criterion(False), Criterion(True)
KERNELBENCH = Criterion(False, profile="kernelbench")


def difference(actual: Any, expected: Any, criterion: Criterion, where: str = "output", wide: Any = None) -> str | None:
    """None where `actual` agrees with `expected`, else one line that says how it does not.

    Args:
        actual: decoded output of the candidate.
        expected: output of the reference.
        where: how to call the value in the message.
        wide: the reference's output in more bits, or None: its own rounding error is added to the tolerance, so that a
            kernel which rounds less often than a chain of 16-bit operators is not held to their errors.
    """
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(actual, expected, criterion, where, wide)
    if isinstance(expected, list | tuple):
        return _sequence_difference(actual, expected, criterion, where, wide)
    if isinstance(expected, dict):
        return _dict_difference(actual, expected, criterion, where, wide)
    if isinstance(expected, float) and isinstance(actual, float):
        return difference(torch.tensor(actual), torch.tensor(expected), criterion, where)
    if type(actual) is not type(expected) or actual != expected:
        return f"{where} is {_short(actual)}, expected {_short(expected)}"
    return None


def _sequence_difference(actual: Any, expected: Any, criterion: Criterion, where: str, wide: Any) -> str | None:
    if not isinstance(actual, list | tuple) or len(actual) != len(expected):
        return f"{where} is {_short(actual)}, expected a sequence of {len(expected)}"
    for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
        found = difference(a, b, criterion, f"{where}[{index}]", None if wide is None else wide[index])
        if found:
            return found
    return None


def _dict_difference(actual: Any, expected: Any, criterion: Criterion, where: str, wide: Any) -> str | None:
    if not isinstance(actual, dict) or actual.keys() != expected.keys():
        return f"{where} is {_short(actual)}, expected a dictionary with keys {sorted(map(str, expected))}"
    for key, value in expected.items():
        found = difference(actual[key], value, criterion, f"{where}[{key!r}]", None if wide is None else wide[key])
        if found:
            return found
    return None


def _tensor_difference(actual: Any, expected: torch.Tensor, criterion: Criterion, where: str, wide: Any) -> str | None:
    if not isinstance(actual, torch.Tensor):
        return f"{where} is {_short(actual)}, expected a tensor"
    if actual.shape != expected.shape:
        return f"{where} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.dtype != expected.dtype:
        return f"{where} has dtype {actual.dtype}, expected {expected.dtype}"
    if actual.dtype.is_complex:
        actual, expected = torch.view_as_real(actual), torch.view_as_real(expected)
    if not expected.dtype.is_floating_point:
        wrong = actual != expected
        return _report(wrong, actual, expected, where, "differ (compared exactly)")
    atol, rtol = criterion.tolerances(expected.dtype)
    atol *= scale_of(expected) if criterion.scaled else 1.0
    if _clearly_agrees(actual, expected, atol, rtol):
        return None
    rounding = torch.nan_to_num((wide.double() - expected.double()).abs(), posinf=0.0) if _fits(wide, expected) else 0.0
    return _float_difference(actual.double(), expected.double(), criterion, where, (atol, rtol), rounding)


_CLEARLY = 0.999
"""Of the tolerance, for arithmetic in 32 bits: what it calls close is close in 64 bits too."""


def _clearly_agrees(actual: torch.Tensor, expected: torch.Tensor, atol: float, rtol: float) -> bool:
    """Whether all elements are finite and well within the tolerance: one look, for answers that are mostly right."""
    due = expected if expected.dtype.itemsize >= 4 else expected.float()
    gap = (actual.to(due.dtype) - due).abs_()
    # Infinity is not less than infinity, and NaN than nothing.
    return bool((gap < due.abs().mul_(_CLEARLY * rtol).add_(_CLEARLY * atol)).all())


def _fits(wide: Any, expected: torch.Tensor) -> bool:
    return isinstance(wide, torch.Tensor) and wide.shape == expected.shape and not wide.dtype.is_complex


def _float_difference(
    actual: torch.Tensor,
    expected: torch.Tensor,
    criterion: Criterion,
    where: str,
    tolerances: tuple[float, float],
    rounding: torch.Tensor | float,
) -> str | None:
    nan = torch.isnan(actual)
    if not torch.equal(nan, torch.isnan(expected)):
        return f"{where} has {int(nan.sum())} NaN, expected {int(torch.isnan(expected).sum())}"
    infinite = torch.isinf(expected) | torch.isinf(actual)
    wrong = infinite & (actual != expected)
    atol, rtol = tolerances
    finite = ~infinite & ~nan
    gap = torch.where(finite, actual - expected, torch.zeros_like(actual)).abs()
    wrong |= finite & (gap > atol + rtol * expected.abs() + rounding)
    return _report(wrong, actual, expected, where, f"differ by more than the {criterion.name} tolerance")


_scales: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Of answers, which many candidates are compared with and nobody writes to."""


def scale_of(expected: torch.Tensor) -> float:
    """Root mean square of the finite values, 0 where there are none; remembered as long as the tensor lives."""
    if expected not in _scales:
        finite = expected[torch.isfinite(expected)].double()
        _scales[expected] = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    found: float = _scales[expected]
    return found


def _report(wrong: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor, where: str, what: str) -> str | None:
    count = int(wrong.sum())
    if not count:
        return None
    first = tuple(int(i) for i in wrong.nonzero()[0])
    got, due = actual[first].item(), expected[first].item()
    share = f"{count} of {wrong.numel()} elements"
    return f"{where}: {share} {what}, first at {list(first)}: {got:.6g}, expected {due:.6g}"


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a sequence of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def shape_difference(tree: Any, expected: Any) -> str | None:
    """Like `difference`, on an encoded tree and before its bytes are touched: shapes and dtypes of the tensors."""
    actual, due = wire.tensor_specs(tree), wire.tensor_specs(wire_specs(expected))
    if len(actual) != len(due):
        return f"output has {len(actual)} tensors, expected {len(due)}"
    for index, ((dtype, shape), (due_dtype, due_shape)) in enumerate(zip(actual, due, strict=True)):
        where = "output" if len(due) == 1 else f"output {index}"
        if tuple(shape) != tuple(due_shape):
            return f"{where} has shape {tuple(shape)}, expected {tuple(due_shape)}"
        if dtype != due_dtype:
            return f"{where} has dtype torch.{dtype}, expected torch.{due_dtype}"
    return None


def wire_specs(value: Any) -> Any:
    """The encoded tree of a value without its bytes."""
    if isinstance(value, torch.Tensor):
        return {"t": str(value.dtype).removeprefix("torch."), "shape": tuple(value.shape)}
    if isinstance(value, list | tuple):
        return {"l": [wire_specs(item) for item in value]}
    if isinstance(value, dict):
        return {"d": [[None, wire_specs(item)] for item in value.values()]}
    return {"v": None}
