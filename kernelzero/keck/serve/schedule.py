"""Hands jobs to workers that may die: small chunks grouped by task, what a lost worker had goes to another one.

    jobs ── chunks ── workers ── answers          a chunk that was lost comes back job by job, to another worker;
               ▲─────────┘ lost                   a job that is lost twice becomes an infrastructure error

It knows nothing of Ray or any other way to run workers: those are behind `Crew`, with a real one in `cluster.py`.
Not covered: workers that hang without dying; Keck's own time limits end every candidate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from kernelzero.errors import InfrastructureError
from kernelzero.records import GateReport, Verdict

Answer: TypeAlias = Verdict | GateReport
_LOSSES = 2
"""A job that was with so many workers when they were lost is not given to another one."""


@dataclass(frozen=True)
class Work:
    """Jobs of one call for one worker."""

    kind: str
    """"verdicts" or "reports"."""
    jobs: tuple[Any, ...]
    timed: bool


@dataclass(frozen=True)
class Ready:
    """A worker can take work."""

    worker: int


@dataclass(frozen=True)
class Finished:
    """A worker did its work: answers by the position of their job in it."""

    worker: int
    answers: tuple[tuple[int, Answer], ...]


@dataclass(frozen=True)
class Lost:
    """A worker died, or could not start."""

    worker: int
    reason: str


Event: TypeAlias = Ready | Finished | Lost


class Crew(Protocol):
    """Workers by number, each with a Keck of its own."""

    def start(self, worker: int) -> None:
        """Begin to start a worker, in place of the one of that number if there was one; Ready or Lost follows."""
        ...

    def give(self, worker: int, work: Work) -> None:
        """Give work to a worker that is ready and has none; Finished or Lost follows."""
        ...

    def wait(self, timeout_s: float) -> Event | None:
        """The next event, None if there was none in time."""
        ...


@dataclass(frozen=True)
class _Chunk:
    indices: tuple[int, ...]
    avoid: int = -1
    """The worker that was lost with it."""


class _Todo:
    """Jobs of one call that are not answered yet."""

    def __init__(self, task_ids: Sequence[str], size: int) -> None:
        self.left = set(range(len(task_ids)))
        self._losses = dict.fromkeys(self.left, 0)
        self._groups = _grouped(task_ids, size)
        self._fresh = deque(range(len(self._groups)))
        self._owned: dict[int, int] = {}
        """The group that a worker took from last."""
        self._returned: deque[_Chunk] = deque()

    def take(self, worker: int, alone: bool) -> _Chunk | None:
        """What was lost elsewhere, else more of the worker's own task, else a new task, else part of the longest one.

        `alone`: there is no other worker that could take what this one was lost with.
        """
        for chunk in self._returned:
            if alone or chunk.avoid != worker:
                self._returned.remove(chunk)
                return chunk
        group = self._group_for(worker)
        return None if group is None else self._groups[group].popleft()

    def lose(self, chunk: _Chunk, worker: int) -> list[int]:
        """Take a chunk back; the jobs that were lost too often, which nobody is given any more."""
        given_up = []
        for index in self.left.intersection(chunk.indices):
            self._losses[index] += 1
            if self._losses[index] < _LOSSES:
                # Alone, so that a job that kills its worker takes no other with it.
                self._returned.append(_Chunk((index,), avoid=worker))
            else:
                self.left.discard(index)
                given_up.append(index)
        return given_up

    def _group_for(self, worker: int) -> int | None:
        own = self._owned.get(worker)
        if own is None or not self._groups[own]:
            longest = max(self._owned.values(), key=lambda g: len(self._groups[g]), default=None)
            own = self._fresh.popleft() if self._fresh else longest
        if own is None or not self._groups[own]:
            return None
        self._owned[worker] = own
        return own


def _grouped(task_ids: Sequence[str], size: int) -> list[deque[_Chunk]]:
    """Groups of chunks: one for each task of more than `size` jobs, and one-chunk groups of smaller tasks."""
    by_task: dict[str, list[int]] = {}
    for index, task_id in enumerate(task_ids):
        by_task.setdefault(task_id, []).append(index)
    groups: list[deque[_Chunk]] = []
    packed: list[int] = []
    for indices in sorted(by_task.values(), key=len, reverse=True):
        if len(indices) > size:
            groups.append(deque(_Chunk(tuple(indices[i : i + size])) for i in range(0, len(indices), size)))
            continue
        if len(packed) + len(indices) > size:
            groups.append(deque([_Chunk(tuple(packed))]))
            packed = []
        packed += indices
    return groups + ([deque([_Chunk(tuple(packed))])] if packed else [])


class Scheduler:
    """Runs calls, one at a time, on a crew.

    Args:
        crew: the workers, numbered from 0; started on the first call.
        workers: how many.
        chunk: most jobs that a worker is given at once, which is what its loss can cost.
        restarts: how often in a row a worker is started again without having finished anything.
        start_s: how long to wait for a worker while none is ready.
    """

    def __init__(self, crew: Crew, workers: int, *, chunk: int = 8, restarts: int = 3, start_s: float = 300.0) -> None:
        self.workers = workers
        self._crew, self._chunk, self._restarts, self._start_s = crew, chunk, restarts, start_s
        self._starting: set[int] = set()
        self._idle: set[int] = set()
        self._busy: dict[int, _Chunk | None] = {}
        """What each has; None: work of a call that was given up, whose answers nobody waits for."""
        self._failures = [0] * workers

    def run(
        self, kind: str, jobs: Sequence[Any], task_ids: Sequence[str], timed: bool
    ) -> Iterator[tuple[int, Answer | str]]:
        """Answers by index as they come; a text is the reason why a job got none.

        Raises:
            InfrastructureError: no worker is left, or none became ready.
        """
        size = max(1, min(self._chunk, math.ceil(len(jobs) / (2 * self.workers))))
        todo = _Todo(task_ids, size)
        try:
            if jobs:
                self._start_missing()
            while todo.left:
                self._hand_out(todo, kind, jobs, timed)
                yield from self._next(todo)
        finally:
            self._busy = dict.fromkeys(self._busy)

    def _start_missing(self) -> None:
        """A worker that was given up in an earlier call has another chance: its machine may be back."""
        for worker in set(range(self.workers)) - self._starting - self._idle - self._busy.keys():
            self._failures[worker] = 0
            self._start(worker)

    def _start(self, worker: int) -> None:
        self._starting.add(worker)
        self._crew.start(worker)

    def _hand_out(self, todo: _Todo, kind: str, jobs: Sequence[Any], timed: bool) -> None:
        for worker in sorted(self._idle):
            chunk = todo.take(worker, alone=len(self._idle) + len(self._busy) == 1)
            if chunk is not None:
                self._idle.discard(worker)
                self._busy[worker] = chunk
                self._crew.give(worker, Work(kind, tuple(jobs[i] for i in chunk.indices), timed))

    def _next(self, todo: _Todo) -> Iterator[tuple[int, Answer | str]]:
        event = self._crew.wait(self._start_s)
        match event:
            case Ready(worker):
                self._starting.discard(worker)
                self._idle.add(worker)
            case Finished(worker, answers):
                yield from self._finish(todo, worker, answers)
            case Lost(worker, reason):
                yield from self._lose(todo, worker, reason)
            case None if not self._busy:
                raise InfrastructureError(f"no worker was ready within {self._start_s:g} s")

    def _finish(
        self, todo: _Todo, worker: int, answers: tuple[tuple[int, Answer], ...]
    ) -> Iterator[tuple[int, Answer | str]]:
        chunk = self._busy.pop(worker)
        self._idle.add(worker)
        self._failures[worker] = 0
        if chunk is None:
            return
        for position, answer in answers:
            index = chunk.indices[position]
            if index in todo.left:
                todo.left.discard(index)
                yield index, answer
        for index in todo.lose(chunk, worker):
            yield index, "the worker gave no answer"

    def _lose(self, todo: _Todo, worker: int, reason: str) -> Iterator[tuple[int, Answer | str]]:
        chunk = self._busy.pop(worker, None)
        self._idle.discard(worker)
        self._starting.discard(worker)
        self._failures[worker] += 1
        if self._failures[worker] <= self._restarts:
            self._start(worker)
        elif not (self._starting or self._idle or self._busy):
            raise InfrastructureError(f"all {self.workers} workers are lost: {reason}")
        for index in todo.lose(chunk, worker) if chunk else ():
            yield index, f"lost with its worker {_LOSSES} times: {reason}"
