"""What a teacher is asked for and what it gives back. No torch, no network."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from kernelzero.records import Backend, Record, Task


class Principle(enum.StrEnum):
    """What makes kernels fast; the paper prompts with one of them at a time."""

    TILING = "tiling"
    FUSION = "fusion"
    PIPELINING = "pipelining"
    REORDERING = "reordering"


def principle_of(task_number: int, sample: int) -> Principle:
    """The principle of one sample: four samples of a task see all four, and so do four tasks of one sample."""
    return list(Principle)[(task_number + sample) % len(Principle)]


@dataclass(frozen=True)
class Assignment(Record):
    """One kernel to be written."""

    task: Task
    backend: Backend
    gpu: str
    """The GPU to write for, e.g. "NVIDIA H200"."""
    principle: Principle
    sample: int
    """Number of the sample among those of this task, from 0."""
    seed: int


@dataclass(frozen=True)
class Lesson(Record):
    """What a teacher gave: reasoning and code, or a refusal."""

    reasoning: str = ""
    code: str = ""
    principle: str = ""
    """The principle that was asked for, or those that the reasoning names, joined by "+"."""
    refusal: str = ""
    """"" where there is code, else a name: "cannot_write", "no_code", "truncated", "bad_request"."""
    detail: str = ""
    """One line: why it was refused."""
    text: str = ""
    """The raw answer where no code was found in it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.code) == bool(self.refusal):
            raise ValueError("a lesson has either code or a refusal")

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.prompt_tokens + self.completion_tokens


class TeacherDown(Exception):
    """The teacher could not be reached for one assignment; that says nothing about the task."""


class Teacher(Protocol):
    """Writes kernels. `teach` is called from several threads."""

    name: str
    concurrency: int
    """Assignments that it works on at once."""

    def teach(self, assignment: Assignment) -> Lesson:
        """One lesson.

        Raises:
            TeacherDown: not reachable this time.
            InfrastructureError: it will not be reachable another time either.
        """
        ...

    def most_tokens(self, assignment: Assignment) -> int:
        """The most tokens that the lesson can take; 0 for a teacher without tokens."""
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...
