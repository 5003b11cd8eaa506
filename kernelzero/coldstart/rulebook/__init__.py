"""The rulebook: a teacher that needs no model. It follows a module's calls and writes its kernels.

`write_kernel` gives a complete `ModelNew` source, in Triton or CUDA C++, in one of `VARIANTS` honest ways; `reasoning`
says in a few sentences what was tiled, fused, pipelined or reordered and why. Whatever has no rule is refused by name
(`CannotWrite`), never written wrongly. Triton kernels of modules that one kernel over rows can compute come from
`plan.py`, which fuses most; all else from `loops`. The module is executed in this process: it has to be trusted.
"""

from __future__ import annotations

from kernelzero.coldstart.rulebook.explain import explain
from kernelzero.coldstart.rulebook.graph import read
from kernelzero.coldstart.rulebook.loops import reasons, write_cuda, write_triton
from kernelzero.coldstart.rulebook.operators import CannotWrite
from kernelzero.coldstart.rulebook.plan import make_plan
from kernelzero.coldstart.rulebook.source import Text, choose, render
from kernelzero.records import Backend, Task

VARIANTS = 2
"""Number of variants: blocks of 1024 or of 256 elements, one or four rows a program, a blocked or a whole inner
dimension of a matrix product, larger and smaller tiles."""

__all__ = ["VARIANTS", "CannotWrite", "reasoning", "write_kernel"]


def write_kernel(task: Task, *, variant: int = 0, backend: Backend = Backend.TRITON) -> str:
    """Source with `ModelNew` for a trusted module.

    Raises:
        CannotWrite: naming what has no rule.
        ValueError: for a variant outside range(VARIANTS).
    """
    _check(variant)
    if backend is Backend.CUDA:
        return write_cuda(task.source, variant)
    text = _one_kernel(task, variant)
    return render(text) if text is not None else write_triton(task.source, variant)


def reasoning(task: Task, variant: int = 0, backend: Backend = Backend.TRITON) -> str:
    """What the kernels of `write_kernel` with the same arguments tile, fuse, pipeline or reorder, and why."""
    _check(variant)
    text = _one_kernel(task, variant) if backend is Backend.TRITON else None
    return explain(text) if text is not None else reasons(task.source, backend.value)


def _one_kernel(task: Task, variant: int) -> Text | None:
    """The module as one kernel over rows, None where it is more than that."""
    try:
        return choose(make_plan(read(task.source)), variant)
    except CannotWrite:
        return None


def _check(variant: int) -> None:
    if variant not in range(VARIANTS):
        raise ValueError(f"variant {variant} is not in range({VARIANTS})")
