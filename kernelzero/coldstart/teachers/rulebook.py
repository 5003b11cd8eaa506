"""The rulebook as a teacher: no model, no tokens, the same answer every time.

It takes no advice: the principle of a lesson is what its reasoning names, whatever was asked for. Modules are executed
here, so they have to be trusted.
"""

from __future__ import annotations

import random
import re
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from kernelzero.coldstart.teachers.base import Assignment, Lesson, Principle
from kernelzero.errors import InfrastructureError
from kernelzero.records import Backend, Task

_NAMED = re.compile(r"\b(" + "|".join(p.value.capitalize() for p in Principle) + r"):")


class RulebookTeacher:
    """`write_kernel` and `reasoning` in `workers` processes."""

    name = "rulebook"

    def __init__(self, workers: int = 1) -> None:
        from kernelzero.coldstart.workers import open_pool

        self.concurrency = workers
        self._pool = open_pool(workers)

    def teach(self, assignment: Assignment) -> Lesson:
        """One lesson; samples of a task take the rulebook's variants in turn, from one drawn by the seed."""
        job = (assignment.task, assignment.backend, assignment.sample, assignment.seed)
        try:
            return Lesson(**self._pool.submit(_write, *job).result())
        except BrokenProcessPool as error:
            raise InfrastructureError("a process of the rulebook died; is there enough memory?") from error

    def most_tokens(self, assignment: Assignment) -> int:
        """None."""
        return 0

    def close(self) -> None:
        """Stop the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _write(task: Task, backend: Backend, sample: int, seed: int) -> dict[str, Any]:
    """The fields of a lesson; runs in a process of the pool."""
    import time

    from kernelzero.coldstart.rulebook import VARIANTS, CannotWrite, reasoning, write_kernel

    started = time.perf_counter()
    variant = (random.Random(f"variant {seed} {task.id}").randrange(VARIANTS) + sample) % VARIANTS
    try:
        code = write_kernel(task, variant=variant, backend=backend)
        why = reasoning(task, variant, backend)
    except CannotWrite as error:
        fields: dict[str, Any] = {"refusal": "cannot_write", "detail": " ".join(str(error).split())}
    else:
        named = [p.value for p in Principle if p.value.capitalize() in _NAMED.findall(why)]
        fields = {"reasoning": why, "code": code, "principle": "+".join(named)}
    return {**fields, "seconds": time.perf_counter() - started}
