"""The rulebook: a teacher that needs no model. It reads a module's torch.fx graph and writes its Triton kernel.

`write_kernel` gives a complete `ModelNew` source in one of `VARIANTS` honest ways, `reasoning` says in a few sentences
what was tiled, fused, pipelined or reordered and why. Whatever has no rule is refused by name (`CannotWrite`), never
written wrongly. Not covered: modules that need more than one kernel, reductions over other dimensions than the last,
float types other than float32. The module is executed in this process, so it has to be trusted.
"""

from __future__ import annotations

from kernelzero.coldstart.rulebook.explain import explain
from kernelzero.coldstart.rulebook.graph import read
from kernelzero.coldstart.rulebook.operators import CannotWrite
from kernelzero.coldstart.rulebook.plan import make_plan
from kernelzero.coldstart.rulebook.source import choose, render
from kernelzero.records import Task

VARIANTS = 2
"""Number of variants: blocks of 1024 or of 256 elements, one or four rows a program, a blocked or a whole inner
dimension of a matrix product."""

__all__ = ["VARIANTS", "CannotWrite", "reasoning", "write_kernel"]


def write_kernel(task: Task, *, variant: int = 0) -> str:
    """Triton source with `ModelNew` for a trusted module.

    Raises CannotWrite, naming what has no rule, and ValueError for a variant outside range(VARIANTS).
    """
    return render(choose(make_plan(read(task.source)), _checked(variant)))


def reasoning(task: Task, variant: int = 0) -> str:
    """What the kernel of `write_kernel(task, variant=variant)` tiles, fuses, pipelines or reorders, and why."""
    return explain(choose(make_plan(read(task.source)), _checked(variant)))


def _checked(variant: int) -> int:
    if variant not in range(VARIANTS):
        raise ValueError(f"variant {variant} is not in range({VARIANTS})")
    return variant
