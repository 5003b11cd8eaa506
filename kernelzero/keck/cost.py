"""A roofline model of one GPU: counted bytes, operations and launches in, milliseconds out.

Reference and candidate go through the same formula, so the ratio says which of the two moves less, computes less and
launches less. It knows nothing of caches, coalescing, occupancy beyond the number of programs, or instruction mix:
a modelled time is good for comparing two versions of one small module, never for quoting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from kernelzero.keck.values import tensors
from kernelzero.keck.words import words

BANDWIDTH_BYTES_S = 4.3e12
"""Device-to-device copy on one H200, measured, bytes read plus bytes written."""
VECTOR_FLOPS_S = 6.0e13
"""fp32 outside the matrix units."""
MATRIX_FLOPS_S = 4.0e14
"""Matrix units on fp32 operands rounded to tf32."""
MULTIPROCESSORS = 132
SATURATING_PROGRAMS = 32
"""Programs that together saturate the memory system."""
LAUNCH_S = 4.0e-6
"""One kernel launch in a stream that is never empty."""
TRANSCENDENTAL_OPS = 8
"""Operations that one exp, log, sin … counts for."""


@dataclass
class Meter:
    """Adds up the modelled time of one call, launch by launch."""

    launches: int = 0
    seconds: float = 0.0
    launch_seconds: float = 0.0
    names: list[str] = field(default_factory=list)

    def add(self, name: str, moved_bytes: float, vector_ops: float, matrix_ops: float, programs: int) -> None:
        """Count one launch.

        Args:
            name: of the kernel or operator.
            moved_bytes: bytes of device memory touched, each once, read or written.
            vector_ops, matrix_ops: floating-point operations.
            programs: independent programs (thread blocks).
        """
        programs = max(programs, 1)
        memory_s = moved_bytes / (BANDWIDTH_BYTES_S * min(1.0, programs / SATURATING_PROGRAMS))
        rate = min(1.0, programs / MULTIPROCESSORS)
        compute_s = vector_ops / (VECTOR_FLOPS_S * rate) + matrix_ops / (MATRIX_FLOPS_S * rate)
        self.launches += 1
        self.launch_seconds += LAUNCH_S
        self.seconds += LAUNCH_S + max(memory_s, compute_s)
        self.names.append(name)

    @property
    def milliseconds(self) -> float:
        """Modelled time of everything counted so far, in ms."""
        return self.seconds * 1e3


_TRANSCENDENTAL = words(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan erf erfc erfinv sigmoid gelu silu "
    "mish softplus elu celu selu pow rsqrt sqrt _softmax _log_softmax logsumexp log_sigmoid_forward lgamma "
    "digamma atan2 logaddexp xlogy binary_cross_entropy binary_cross_entropy_with_logits"
)


def count_operator(meter: Meter, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """Count one eager operator as one launch that reads its inputs and writes its outputs once.

    Args:
        func: the `torch._ops.OpOverload` that ran.
        out: its result.
    """
    inputs, outputs = tensors((args, kwargs)), tensors(out)
    moved = sum(t.numel() * t.element_size() for t in inputs + outputs)
    largest = max((t.numel() for t in inputs + outputs), default=0)
    name = func._schema.name.split("::")[-1]
    matrix_ops = _matrix_ops(func, args, kwargs, out)
    per_element = TRANSCENDENTAL_OPS if name.rstrip("_") in _TRANSCENDENTAL else 1
    written = max((t.numel() for t in outputs), default=0)
    programs = math.ceil(written / 4096) if matrix_ops else math.ceil(largest / 1024)
    meter.add(name, moved, 0 if matrix_ops else per_element * largest, matrix_ops, programs)


def _matrix_ops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(func._overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0
