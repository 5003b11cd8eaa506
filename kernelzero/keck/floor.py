"""Bytes that any right kernel has to move, found by trying: a time in which no memory could move them is no time.

An input counts where the output changes with each of some elements taken at random, and then not in full, because
some elements may still not matter (an output of ReLU, a row that is not gathered). Outputs count beyond what the L2
cache can hold back. Operations do not count: algebra can save any number of them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from kernelzero.keck import wire
from kernelzero.keck.values import tensors

if TYPE_CHECKING:
    from kernelzero.keck.onboard import Asker, Case

PROBES = 16
CERTAIN = 0.7
"""Share of an input that certainly matters when all probes did: a share of 0.7 would pass with 0.3 %."""
_LARGE_BYTES = 4 << 20
"""Smaller inputs are read in a microsecond or two."""


def needed_bytes(ask: Asker, case: Case, seed: int, cache_bytes: int) -> int:
    """Bytes from and to memory that each call with these inputs needs, a lower bound.

    Args:
        ask: a child that has the reference loaded.
        case: inputs with their answer.
        seed: which elements are tried.
        cache_bytes: size of the L2 cache, which may still hold so much of the output when a call is over.
    """
    inputs = wire.decode(case.tree, wire.copies(case.buffers))
    draw = random.Random(seed)
    places = [[draw.randrange(v.numel()) for _ in range(PROBES)] if _is_large(v) else [] for v in inputs]
    counts = ask({"op": "matters", "tree": case.tree, "places": places, "seed": seed}, case.buffers)[0]["counts"]
    read = sum(_size(v) for v, count in zip(inputs, counts, strict=True) if count == PROBES)
    written = sum(_size(t) for t in tensors(case.expected) if t.is_contiguous())
    return int(CERTAIN * read) + max(0, written - cache_bytes)


def _is_large(value: Any) -> bool:
    if not (isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.is_contiguous()):
        return False
    return _size(value) >= _LARGE_BYTES


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
