"""Bytes that any right kernel has to move, found by trying: a time in which no memory could move them is no time.

An input counts where the output changes with each of some elements taken at random, and then not in full, because
some elements may still not matter (an output of ReLU, a row that is not gathered). Outputs count beyond what the L2
cache can hold back. Operations do not count: algebra can save any number of them.
"""

from __future__ import annotations

import math
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
    read = sum(_size(v) for i, v in enumerate(inputs) if _is_large(v) and _all_matter(ask, case, inputs, i, draw))
    written = sum(_size(t) for t in tensors(case.expected) if t.is_contiguous())
    return int(CERTAIN * read) + max(0, written - cache_bytes)


def _is_large(value: Any) -> bool:
    if not (isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.is_contiguous()):
        return False
    return _size(value) >= _LARGE_BYTES


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _all_matter(ask: Asker, case: Case, inputs: list[Any], index: int, draw: random.Random) -> bool:
    flat = inputs[index].view(-1)
    for _ in range(PROBES):
        at = draw.randrange(flat.numel())
        kept = float(flat[at])
        if not math.isfinite(kept):
            return False
        flat[at] = kept + 100.0 * (1.0 + abs(kept))
        changed = _changes(ask, case, inputs)
        flat[at] = kept
        if not changed:
            return False
    return True


def _changes(ask: Asker, case: Case, inputs: list[Any]) -> bool:
    from kernelzero.keck.onboard import FORWARD_SEED

    tree, buffers = wire.encode(inputs)
    facts, out = ask({"op": "call", "tree": tree, "seed": FORWARD_SEED}, buffers)
    pairs = zip(tensors(wire.decode(facts["tree"], out)), tensors(case.expected), strict=False)
    return any(not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in pairs)
