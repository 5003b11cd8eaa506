"""The Coder's answers to verdicts: judged as they are drawn, in the background, so that neither waits for the other.

Not covered: rewards (judging), and who draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from kernelzero.keck.feed import Ahead, Feed
from kernelzero.records import (
    Attempt,
    Backend,
    Candidate,
    Completion,
    Extraction,
    Finish,
    Status,
    Task,
    Verdict,
)

Job = tuple[Task, Candidate]
Read = Callable[[str, Finish], Extraction]
OnVerdict = Callable[[int, int], None]
"""Called with the number of verdicts so far and the number of candidates so far; from a thread of its own."""


class Keck(Protocol):
    """What is needed of Keck: verdicts with the number of their job, as they finish, until the feed has ended."""

    def judge(self, jobs: Feed[Job], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """One verdict a job."""
        ...


@dataclass(frozen=True)
class _Answer:
    task: Task
    completion: Completion
    candidate: Candidate | None
    reason: str
    """Why there is no code."""
    job: int | None


class AnswerJudge:
    """Verdicts on the answers of one step. An answer without code is a failure of the Coder.

    Args:
        keck: judges the candidates.
        read: an answer's code.
        backend: the language of the kernels.
        timed: whether correct ones get a time.
        on_verdict: progress.
    """

    def __init__(self, keck: Keck, read: Read, backend: Backend, *, timed: bool, on_verdict: OnVerdict) -> None:
        self._read, self._backend, self._timed = read, backend, timed
        self._ahead: Ahead[Job, Verdict] = Ahead(lambda feed: keck.judge(feed, timed=timed), on_verdict)
        self._lock = threading.Lock()
        self._answers: dict[int, _Answer] = {}

    def add(self, place: int, task: Task, completion: Completion) -> None:
        """Take an answer in, from any thread; a place that was taken before is left as it is."""
        with self._lock:
            if place in self._answers:
                return
            extraction = self._read(completion.text, completion.finish)
            candidate = None if extraction.code is None else Candidate(extraction.code, self._backend)
            job = None if candidate is None else self._ahead.put((task, candidate))
            self._answers[place] = _Answer(task, completion, candidate, extraction.reason, job)

    def attempts(self) -> list[Attempt]:
        """All answers with their verdicts, by place; waits for what is not judged yet. Raises what Keck raised."""
        verdicts = self._ahead.finish()
        return [
            Attempt(one.task.id, one.completion, one.candidate, self._verdict(one, verdicts))
            for _, one in sorted(self._answers.items())
        ]

    def give_up(self) -> None:
        """The verdicts are no longer wanted."""
        self._ahead.give_up()

    @property
    def busy_s(self) -> float:
        """Seconds from the first candidate to the last verdict."""
        return self._ahead.answered_at - self._ahead.begun_at

    def _verdict(self, one: _Answer, verdicts: dict[int, Verdict]) -> Verdict:
        if one.job is None:
            reason = "no code: " + " ".join(one.reason.split())
            return Verdict(Status.COMPILE_ERROR, reason, "not judged", self._backend, timed=self._timed)
        if one.job not in verdicts:  # a job that Keck forgot is nobody's failure
            reason = "Keck gave no verdict"
            return Verdict(Status.INFRA_ERROR, reason, "not judged", self._backend, timed=self._timed)
        return verdicts[one.job]
