"""API sets for a corpus: every API of the composer equally often, in sets of one to four."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kernelzero.records import ApiSet

_COUNTS = (1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4)
"""How many APIs a set has: 15, 35, 30, 20 %."""


def draw_from(apis: Sequence[str], seed: int, number: int) -> ApiSet:
    """The set of one draw. Among len(apis) draws that follow one another, each API is the first of exactly one."""
    turn, place = divmod(number, len(apis))
    count = random.Random(f"size {seed} {number}").choice(_COUNTS)
    return ApiSet(tuple(_shuffled(apis, f"{seed} {turn} {slot}")[place] for slot in range(count)))


def _shuffled(apis: Sequence[str], key: str) -> list[str]:
    order = sorted(apis)
    random.Random(key).shuffle(order)
    return order
