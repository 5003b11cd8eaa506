"""What the table of operators is made of, and helpers that several families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelzero.proposer.composer.draft import DoesNotFit, Draft, Value
from kernelzero.proposer.composer.sizes import Shape, Size

F = "torch.nn.functional."
ANY = (2, 3, 4, 5)

Apply = Callable[[Draft, "Op", Value], Value]


@dataclass(frozen=True)
class Op:
    """How the composer uses one API. To teach it a new one, add a row to a family's table."""

    api: str
    """The catalogue's name."""
    apply: Apply
    """Puts the call, and what belongs to it, on a value; DoesNotFit where it cannot."""
    forms: tuple[str, ...] = ()
    """Ways to write it, one is drawn."""
    ranks: tuple[int, ...] = ANY
    """Ranks that it takes."""
    needs: str = ""
    """What its operand must be: a key of GUARDS."""
    gives: str = ""
    """Facts of the result; "exact" where an exact operand gives an exact result."""
    jumps: bool = False
    """Whether a rounding error of the operand can become a large one: such operators only follow exact values."""
    late: float = 0.0
    """Added to a random number between 0 and 1 to find the place in the order."""
    starts: bool = False
    """Whether it takes nothing but inputs of its own."""
    ends: bool = False
    """Whether nothing comes after it."""
    given: Any = None
    """Family's own."""


GUARDS: dict[str, tuple[str, ...]] = {
    "nonneg": ("torch.abs({x})", "{x}.abs()", "torch.square({x})", "F.softplus({x})"),
    "positive": ("torch.abs({x}) + 0.5", "{x}.abs() + 1.0", "F.softplus({x}) + 0.1", "torch.sigmoid({x}) + 0.25"),
    "large": ("torch.abs({x}) + 1.1", "F.softplus({x}) + 1.25"),
    "bounded": ("torch.clamp({x}, -2.0, 2.0)", "torch.tanh({x})", "torch.sigmoid({x})", "2.0 * torch.tanh({x})"),
    "unit": ("torch.sigmoid({x})", "{x}.sigmoid()"),
    "inside unit": ("0.8 * torch.sigmoid({x}) + 0.1", "0.5 + 0.4 * torch.tanh({x})"),
    "inside one": ("0.9 * torch.tanh({x})", "torch.clamp({x}, -0.9, 0.9)"),
    "log softmax": ("F.log_softmax({x}, dim=-1)", "torch.log_softmax({x}, dim=-1)"),
    "log softmax over classes": ("F.log_softmax({x}, dim=1)", "torch.log_softmax({x}, dim=1)"),
    "near one": ("1.0 + 0.1 * torch.tanh({x})", "1.0 + 0.1 * torch.sin({x})"),
}
"""Need → expressions that meet it."""
_MEETS = {"nonneg": "nonneg", "bounded": "bounded"}


def guarded(d: Draft, need: str, x: Value) -> Value:
    """`x`, made to be what an operator needs."""
    if not need or (need in _MEETS and _MEETS[need] in x.facts):
        return x
    facts = {"nonneg": "nonneg", "bounded": "bounded"}.get(need, "")
    return d.call(d.pick(*GUARDS[need]), {"x": x}, x.shape, facts=facts)


def facts(op: Op, *operands: Value) -> str:
    """Facts of a result; exact only where all operands are."""
    found = op.gives.split()
    if not all("exact" in v.facts for v in operands):
        found = [f for f in found if f != "exact"]
    return " ".join(found)


def form(d: Draft, op: Op) -> str:
    """One of the op's forms."""
    return str(d.rng.choice(op.forms))


def partner(d: Draft, x: Value, exact: bool = False) -> Value:
    """A second operand of `x`'s shape, or one that broadcasts: an earlier value, a new input, a weight."""
    known = [v for v in d.earlier(x) if not exact or "exact" in v.facts]
    if known and d.chance(0.45):
        return d.rng.choice(known[-3:])
    if d.chance(0.25) and x.shape[-1].small > 1 and x.rank > 1:
        return d.parameter(x.shape[-1:], d.pick("scale", "bias", "shift"))
    return d.input(x.shape)


def a_dim(d: Draft, x: Value, least: int = 3, first: int = 1) -> int:
    """A dimension of at least `least` elements, the last one preferred."""
    fit = [k for k in range(min(first, x.rank - 1), x.rank) if x.shape[k].least() >= least]
    if not fit:
        raise DoesNotFit("no dimension that is long enough")
    return fit[-1] if d.chance(0.6) else d.rng.choice(fit)


def spelled(d: Draft, dim: int, rank: int) -> int:
    """A dimension, sometimes counted from the end."""
    return dim - rank if d.chance(0.5) else dim


def without(shape: Shape, dims: tuple[int, ...], keep: bool = False) -> Shape:
    """The shape after a reduction."""
    one = Size(1, 1)
    return tuple(one if k in dims else s for k, s in enumerate(shape) if keep or k not in dims)


def replaced(shape: Shape, dim: int, size: Size) -> Shape:
    """The shape with one other extent."""
    return tuple(size if k == dim % len(shape) else s for k, s in enumerate(shape))


def require(condition: bool, what: str) -> None:
    """DoesNotFit unless the condition holds."""
    if not condition:
        raise DoesNotFit(what)
