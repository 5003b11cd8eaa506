"""Threads that ask the teacher, many lessons at once.

They are daemons: a build that is interrupted does not wait minutes for answers that nobody will read.
"""

from __future__ import annotations

import queue
import threading

from kernelzero.coldstart.teachers.base import Assignment, Lesson, Teacher

Result = tuple[int, "Lesson | Exception"]


class Crew:
    """Hands assignments to a teacher and collects lessons as they come."""

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._asked: queue.Queue[tuple[int, Assignment]] = queue.Queue()
        self._given: queue.Queue[Result] = queue.Queue()
        self.flying: dict[int, int] = {}
        """Number → the most tokens that its lesson can take, of all that was handed out and is not back."""
        for _ in range(teacher.concurrency):
            threading.Thread(target=self._work, daemon=True).start()

    def hand_out(self, number: int, assignment: Assignment, tokens: int) -> None:
        """Have a lesson written."""
        self.flying[number] = tokens
        self._asked.put((number, assignment))

    def collect(self, wait_s: float = 0.0) -> list[Result]:
        """All lessons that are back; with `wait_s` the first may take that long."""
        found: list[Result] = []
        while self.flying:
            try:
                found.append(self._given.get(timeout=wait_s) if wait_s and not found else self._given.get_nowait())
            except queue.Empty:
                break
            del self.flying[found[-1][0]]
        return found

    @property
    def reserved(self) -> int:
        """The most tokens that all lessons in flight can take."""
        return sum(self.flying.values())

    def _work(self) -> None:
        while True:
            number, assignment = self._asked.get()
            try:
                self._given.put((number, self._teacher.teach(assignment)))
            except Exception as error:
                # It is raised, or counted, where the lesson was asked for.
                self._given.put((number, error))
