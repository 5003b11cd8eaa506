"""Sizes of dimensions, each as a pair: small enough for an interpreter, and what a GPU is given for the same module."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Sizes = Literal["small", "gpu"]


@dataclass(frozen=True)
class Size:
    """The extent of one dimension, in elements; arithmetic works on both members."""

    small: int
    gpu: int

    def __add__(self, other: Size | int) -> Size:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Size | int) -> Size:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Size | int) -> Size:
        return self._with(other, lambda a, b: a * b)

    def __floordiv__(self, other: Size | int) -> Size:
        return self._with(other, lambda a, b: a // b)

    def _with(self, other: Size | int, do: Callable[[int, int], int]) -> Size:
        small, gpu = (other.small, other.gpu) if isinstance(other, Size) else (other, other)
        return Size(do(self.small, small), do(self.gpu, gpu))

    def divides_by(self, number: int) -> bool:
        """Whether both members are multiples of `number`."""
        return self.small % number == 0 and self.gpu % number == 0

    def least(self) -> int:
        """The smaller member."""
        return min(self.small, self.gpu)

    def of(self, sizes: Sizes) -> int:
        """One member."""
        return self.small if sizes == "small" else self.gpu


Shape = tuple[Size, ...]


def fixed(number: int) -> Size:
    """A size that is the same everywhere."""
    return Size(number, number)


def numel(shape: Shape) -> Size:
    """Number of elements."""
    return Size(math.prod(s.small for s in shape), math.prod(s.gpu for s in shape))


def _pairs(*pairs: tuple[int, int]) -> tuple[Size, ...]:
    return tuple(Size(*pair) for pair in pairs)


_TABLES = {
    "batch_size": _pairs((1, 1), (1, 1), (2, 32), (2, 64), (2, 128), (3, 48), (4, 64)),
    "rows": _pairs((1, 1), (3, 384), (4, 1024), (5, 2000), (7, 4001), (8, 4096), (12, 8184), (16, 16384), (17, 8193)),
    "features": _pairs(
        (8, 512), (10, 1000), (12, 768), (16, 1024), (20, 1280), (24, 1536), (31, 1023), (32, 2048), (33, 2049),
        (40, 4000), (48, 3072), (64, 4096),
    ),
    "seq_len": _pairs((3, 129), (5, 255), (6, 198), (7, 301), (8, 256)),
    "dim": _pairs((8, 128), (12, 192), (15, 255), (16, 256), (24, 384), (32, 512)),
    "channels": _pairs((3, 3), (3, 3), (4, 32), (6, 48), (8, 64)),
    "length": _pairs((9, 1023), (12, 1020), (16, 2048), (20, 4000), (25, 4095)),
    "side": _pairs((4, 32), (5, 35), (6, 36), (7, 56), (8, 64), (9, 63)),
    "edge": _pairs((3, 15), (4, 16), (4, 20), (5, 25)),
}  # fmt: skip


def any_size(role: str, rng: random.Random) -> Size:
    """A size for a role, one of the table's names."""
    return rng.choice(_TABLES[role])


def first_shape(rank: int, rng: random.Random) -> list[tuple[str, Size]]:
    """Roles and sizes of a module's first input of a rank from 1 to 5."""
    if rank == 3 and rng.random() < 0.5:
        roles = ["batch_size", "seq_len", "dim"]
    else:
        roles = {
            1: ["features"],
            2: ["rows", "features"],
            3: ["batch_size", "channels", "length"],
            4: ["batch_size", "channels", "side", "side"],
            5: ["batch_size", "channels", "edge", "edge", "edge"],
        }[rank]
    sizes = [any_size(role, rng) for role in roles]
    if rank > 3 and rng.random() < 0.6:
        sizes[2:] = [sizes[2]] * (rank - 2)
    names = {"rows": "batch_size", "side": "height", "edge": "depth"}
    return [(names.get(role, role), size) for role, size in zip(roles, sizes, strict=True)]
