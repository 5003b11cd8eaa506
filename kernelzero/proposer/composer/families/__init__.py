"""The table of operators, by family: one row an API, with the rule that finds its place and shape."""

from __future__ import annotations

from kernelzero.proposer.composer.families import (
    binary,
    convolutions,
    gathers,
    joins,
    layout,
    losses,
    norms,
    pointwise,
    pooling,
    products,
    reductions,
)
from kernelzero.proposer.composer.op import Op

_FAMILIES = (
    pointwise, binary, reductions, norms, products, convolutions, pooling, layout, joins, gathers, losses,
)  # fmt: skip

OPS: dict[str, Op] = {op.api: op for family in _FAMILIES for op in family.OPS}
"""API → how it is used."""

SPELLED: list[Op] = [*binary.SPELLED, *products.SPELLED]
"""Operators and methods, which are no APIs of their own."""

_MOVING = ("layout", "joins", "gathers")
_PIXELS = ("Pad", "pad", "shuffle", "Shuffle", "nfold", "earest")

MOVERS = frozenset(
    op.api
    for op in OPS.values()
    if op.apply.__module__.rpartition(".")[2] in _MOVING
    or any(word in op.api and op.apply.__module__.endswith("pooling") for word in _PIXELS)
)
"""APIs that move elements and compute nothing."""
