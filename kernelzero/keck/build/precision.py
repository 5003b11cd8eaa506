"""What a kernel's PTX says about precision: conversions to 16 bits and tensor-core arithmetic in fewer bits.

Facts, not verdicts: a task in bfloat16 may well convert. Not covered: integers put together bit by bit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelzero.records import Record

_NARROWING = re.compile(r"\bcvt(?:\.\w+)*?\.(f16x2|f16|bf16x2|bf16|e4m3x2|e5m2x2|tf32)\.(?:f32|f64)\b")
_MATRIX = re.compile(r"\b(?:wgmma\.mma_async|wmma\.mma|mma)\.[\w.]*?\.(tf32|f16|bf16|e4m3|e5m2)\b")
_ARITHMETIC = re.compile(r"\b(?:add|sub|mul|fma|min|max|ex2|tanh)(?:\.\w+)*?\.(f16x2|f16|bf16x2|bf16)\b")
_APPROXIMATE = re.compile(r"\b(\w+\.approx(?:\.ftz)?)\.f32\b")


@dataclass(frozen=True)
class ReducedPrecision(Record):
    """What was found, each name once, in alphabetical order."""

    conversions: tuple[str, ...]
    """Types that float32 or float64 values are converted to."""
    arithmetic: tuple[str, ...]
    """16-bit types that ordinary instructions compute in."""
    matrix: tuple[str, ...]
    """Input types of tensor-core instructions."""
    approximate: tuple[str, ...]
    """Instructions that approximate, as --use_fast_math asks for."""

    @property
    def sixteen(self) -> bool:
        """Whether something is computed or kept in 16 bits or fewer; TF32, Triton's default, is not that."""
        return any(name != "tf32" for name in (*self.conversions, *self.arithmetic, *self.matrix))

    @property
    def any(self) -> bool:
        """Whether a float32 value may have lost bits on its way."""
        return bool(self.conversions or self.arithmetic or self.matrix)


def reduced_precision(ptx: str) -> ReducedPrecision:
    """The facts about a PTX text."""
    patterns = (_NARROWING, _ARITHMETIC, _MATRIX, _APPROXIMATE)
    return ReducedPrecision(*(tuple(sorted(set(pattern.findall(ptx)))) for pattern in patterns))
