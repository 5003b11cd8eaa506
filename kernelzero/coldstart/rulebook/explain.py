"""A kernel's reasoning in a few short sentences, after the four principles: tiling, fusion, pipelining, reordering."""

from __future__ import annotations

from kernelzero.coldstart.rulebook.plan import Plan, is_product
from kernelzero.coldstart.rulebook.rules import ROW
from kernelzero.coldstart.rulebook.source import Text

_STABLE = ("softmax", "softmin", "log_softmax", "logsumexp")


def explain(text: Text) -> str:
    """Tiling, fusion, and where they apply pipelining and reordering."""
    plan = text.kernel.plan
    parts = [_tiling(text, plan), _fusion(plan), _pipelining(plan), _reordering(plan)]
    return " ".join(part for part in parts if part)


def _tiling(text: Text, plan: Plan) -> str:
    if plan.template == "elementwise":
        return f"Tiling: all elements are independent, so each program takes {text.constants['BLOCK']} of them."
    if plan.template == "row":
        rows = f"{text.constants['ROWS']} rows" if "ROWS" in text.constants else "one row"
        return f"Tiling: {rows} a program, as a row fits one block; columns beyond it are masked."
    if plan.loop:
        size = text.constants["BLOCK"]
        outer = "whole rows of the result" if "BLOCK_N" in text.constants else f"{size} x {size} tiles of the result"
        return f"Tiling: {outer}, the inner dimension in steps of {size}."
    return "Tiling: 16 or more rows a program; the weights are small enough to stay in one tile."


def _fusion(plan: Plan) -> str:
    names = [node.op for node in plan.order]
    if len(names) == 1:
        return "Fusion: one operator, read once and written once."
    return f"Fusion: {', '.join(names)} in one kernel, so intermediate values stay in registers."


def _pipelining(plan: Plan) -> str:
    return "Pipelining: the loop's loads can be issued ahead of its products." if plan.loop else ""


def _reordering(plan: Plan) -> str:
    if any(node.op in _STABLE for node in plan.order):
        return "Reordering: the row's maximum is subtracted before exp, so large values do not overflow."
    if any(is_product(node) and node.op == "linear" for node in plan.order):
        return "Reordering: the weight is read transposed, so no copy is made."
    if any(node.op in ROW for node in plan.order):
        return "Reordering: padding is replaced by the neutral element before each reduction."
    return ""
