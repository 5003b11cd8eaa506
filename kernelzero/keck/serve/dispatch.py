"""Between many requests and one Keck: a fair queue, and the one thread that works it off.

    request ─┐
    request ─┼─ turns ── batch ── Keck.judge / Keck.examine ── answers, each to its request
    request ─┘

Requests take turns, so a request of two jobs waits for one batch and not for the 10,000 jobs before it. Jobs of a
request whose client has gone leave the queue. It knows nothing of HTTP. Not covered: what survives a kill, which is
what a `StoredKeck` underneath is for.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from kernelzero.errors import InfrastructureError
from kernelzero.keck.client import Keck
from kernelzero.keck.serve.prometheus import Metrics
from kernelzero.keck.serve.questions import Questions
from kernelzero.records import Candidate, GateReport, Status, Verdict, content_id

Answer: TypeAlias = Verdict | GateReport
_ATTEMPTS = 2
"""Calls of Keck for one batch, before what is left of it becomes an infrastructure error."""
_REMEMBERED = 20_000
"""Answers kept for requests that named themselves."""
SHUTTING_DOWN = "the server is shutting down; ask again"


@dataclass(frozen=True)
class Line:
    """One thing to tell a client."""

    index: int = -1
    answer: Answer | None = None
    """None: this is the end."""
    error: str = ""
    """Why the request ended before all its jobs were answered."""


class QueueFull(Exception):
    """There is no room for a request's jobs now."""

    def __init__(self, waiting: int, limit: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} jobs are waiting, {limit} may; ask again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class ShuttingDown(Exception):
    """No request is taken any more."""


class Ticket:
    """One request in the queue. `tell` is called from the dispatcher's thread and may not block."""

    def __init__(self, questions: Questions, tell: Callable[[Line], object]) -> None:
        self.questions = questions
        self.tell = tell
        # Jobs of one task after one another: taking a task on is paid for once.
        by_task: dict[str, list[int]] = {}
        for index, (task, _) in enumerate(questions.jobs):
            by_task.setdefault(task.source, []).append(index)
        self.waiting = deque(index for indices in by_task.values() for index in indices)
        self.left = len(questions.jobs)
        self.asked_at = time.monotonic()

    @property
    def mode(self) -> tuple[str, bool]:
        """Jobs of one mode can be put to Keck in one call."""
        return self.questions.kind, self.questions.timed

    def memory_key(self, index: int) -> str | None:
        """What an answer is remembered by, None for a request without an id."""
        if not self.questions.id:
            return None
        task, subject = self.questions.jobs[index]
        what = [subject.id] if isinstance(subject, Candidate) else list(subject)
        return content_id(self.questions.id, *map(str, self.mode), task.id, *what)


Place: TypeAlias = tuple[Ticket, int]


class Dispatcher:
    """Puts jobs of waiting requests to `keck`, `batch` at a time.

    Args:
        keck: answers one call at a time; closed by `close`.
        batch: most jobs of one call; a request that comes newly waits for about one batch.
        jobs_queued: most jobs that may wait.
        device: named in verdicts about jobs that Keck did not answer.
    """

    def __init__(
        self, keck: Keck, *, batch: int = 16, jobs_queued: int = 50_000, device: str = "unknown",
        metrics: Metrics | None = None,
    ) -> None:  # fmt: skip
        self.metrics = metrics or new_metrics()
        self.jobs_queued = jobs_queued
        self.failure: BaseException | None = None
        """What ended the thread, None while all is well."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called by the thread when it failed."""
        self._keck, self._batch, self._device = keck, batch, device
        self._turns: deque[Ticket] = deque()
        """Requests with waiting jobs, next one first."""
        self._open: set[Ticket] = set()
        """Requests that are not fully answered."""
        self._running = 0
        self._remembered: OrderedDict[str, Answer] = OrderedDict()
        self._seconds_each = 0.1
        self._stopping = self._hurry = False
        self._changed = threading.Condition()
        # Keck's program ends with the thread that started it, so this one thread makes all calls.
        self._thread = threading.Thread(target=self._run, name="keck-dispatcher", daemon=True)
        self._thread.start()

    # --- what requests ask for ---

    def submit(self, ticket: Ticket) -> None:
        """Queue a request's jobs. Raises QueueFull or ShuttingDown."""
        with self._changed:
            if self._stopping:
                raise ShuttingDown(SHUTTING_DOWN)
            waiting = self._waiting()
            if waiting + ticket.left > self.jobs_queued:
                raise QueueFull(waiting, self.jobs_queued, self._room_in_s(waiting + ticket.left - self.jobs_queued))
            self._open.add(ticket)
            if ticket.left:
                self._turns.append(ticket)
            else:
                self._end(ticket)
            self._changed.notify()

    def cancel(self, ticket: Ticket) -> None:
        """The client has gone: jobs that were not started leave the queue. Does nothing to a finished request."""
        with self._changed:
            if ticket in self._open:
                self._open.discard(ticket)
                self.metrics.count("cancelled_jobs_total", by=len(ticket.waiting))
                self._leave(ticket)

    def queue(self) -> dict[str, Any]:
        """What waits and what runs, as JSON."""
        with self._changed:
            now = time.monotonic()
            return {
                "waiting": self._waiting(),
                "running": self._running,
                "requests": [
                    {
                        "kind": t.questions.kind,
                        "jobs": len(t.questions.jobs),
                        "waiting": len(t.waiting),
                        "unanswered": t.left,
                        "age_s": round(now - t.asked_at, 3),
                    }
                    for t in sorted(self._open, key=lambda t: t.asked_at)
                ],
            }

    # --- its end ---

    def stop(self) -> None:
        """Take no more requests and start no more jobs; what runs is answered, then all requests are told."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def hurry(self) -> None:
        """Do not wait for what runs: tell all requests now."""
        self.stop()
        self._hurry = True
        self._end_all(SHUTTING_DOWN)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop, wait for the thread, and close Keck.

        A thread that is still inside Keck after `timeout_s` is left alone: Keck's program ends with this process.
        """
        self.hurry()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._keck.close()

    # --- the thread ---

    def _run(self) -> None:
        try:
            while places := self._next_batch():
                self._answer(places)
            self._end_all(SHUTTING_DOWN)
        except BaseException as error:
            self.failure = error
            self.stop()
            self._end_all("the server failed; see its messages")
            self.on_failure()

    def _next_batch(self) -> list[Place]:
        """Jobs of one mode in fair shares; empty when stopping. Waits for them."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._stopping or self._turns)
                if self._stopping:
                    return []
                places = self._take()
                self._running = len(places)
                if places:
                    return places

    def _take(self) -> list[Place]:
        mode = self._turns[0].mode
        sharing = deque(t for t in self._turns if t.mode == mode)
        share = max(1, self._batch // len(sharing))
        places: list[Place] = []
        while sharing and len(places) < self._batch:
            ticket = sharing.popleft()
            places += self._share_of(ticket, min(share, self._batch - len(places)))
            # Whose turn it was goes to the back of the queue.
            self._turns.remove(ticket)
            if ticket.waiting:
                self._turns.append(ticket)
                sharing.append(ticket)
        return places

    def _share_of(self, ticket: Ticket, most: int) -> list[Place]:
        places: list[Place] = []
        while ticket.waiting and len(places) < most:
            place = (ticket, ticket.waiting.popleft())
            if not self._remember(place):
                places.append(place)
        return places

    def _remember(self, place: Place) -> bool:
        """Answer a job from memory, where a request of the same id asked for it before."""
        ticket, index = place
        key = ticket.memory_key(index)
        if key is None or key not in self._remembered:
            return False
        self._give(ticket, index, self._remembered[key])
        return True

    def _answer(self, places: list[Place]) -> None:
        """One batch: all of it is answered when this returns, or the server is shutting down."""
        started, left, reason = time.monotonic(), dict(enumerate(places)), "Keck gave no answer"
        for _ in range(_ATTEMPTS):
            try:
                self._ask(left)
            except InfrastructureError as error:
                reason = " ".join(str(error).split())
            if not left or self._hurry:
                break
        with self._changed:
            for ticket, index in left.values() if not self._hurry else ():
                self._give(ticket, index, self._unanswered(ticket, index, reason))
            self._running = 0
            self._seconds_each += 0.2 * ((time.monotonic() - started) / len(places) - self._seconds_each)

    def _ask(self, left: dict[int, Place]) -> None:
        numbers = list(left)
        for position, answer in self._call([left[number] for number in numbers]):
            with self._changed:
                ticket, index = left.pop(numbers[position])
                self._running -= 1
                self._learn(ticket, index, answer)
                self._give(ticket, index, answer)
            if self._hurry:
                return

    def _call(self, places: list[Place]) -> Iterator[tuple[int, Answer]]:
        kind, timed = places[0][0].mode
        jobs: list[Any] = [ticket.questions.jobs[index] for ticket, index in places]
        return self._keck.judge(jobs, timed=timed) if kind == "verdicts" else self._keck.examine(jobs)

    def _unanswered(self, ticket: Ticket, index: int, reason: str) -> Answer:
        _, subject = ticket.questions.jobs[index]
        if not isinstance(subject, Candidate):
            return GateReport(None, "infrastructure", reason)
        return Verdict(Status.INFRA_ERROR, reason, self._device, subject.backend, timed=ticket.questions.timed)

    # --- under the lock ---

    def _waiting(self) -> int:
        return sum(len(t.waiting) for t in self._turns)

    def _room_in_s(self, jobs: int) -> int:
        return max(1, min(60, math.ceil(jobs * self._seconds_each)))

    def _learn(self, ticket: Ticket, index: int, answer: Answer) -> None:
        key = ticket.memory_key(index)
        outcome = answer.status.is_outcome if isinstance(answer, Verdict) else answer.valid is not None
        if key is None or not outcome:
            return
        self._remembered[key] = answer
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)

    def _give(self, ticket: Ticket, index: int, answer: Answer) -> None:
        _count(self.metrics, answer, time.monotonic() - ticket.asked_at)
        if ticket not in self._open:
            return
        ticket.left -= 1
        ticket.tell(Line(index, answer))
        if not ticket.left:
            self._end(ticket)

    def _end(self, ticket: Ticket, error: str = "") -> None:
        self._open.discard(ticket)
        if error:
            self._leave(ticket)
        ticket.tell(Line(error=error))

    def _leave(self, ticket: Ticket) -> None:
        ticket.waiting.clear()
        if ticket in self._turns:
            self._turns.remove(ticket)

    def _end_all(self, error: str) -> None:
        with self._changed:
            for ticket in list(self._open):
                self._end(ticket, error)


def new_metrics() -> Metrics:
    """What the service counts, all at 0."""
    metrics = Metrics()
    metrics.counter("verdicts_total", "Verdicts given, by status.", *(f'status="{s.value}"' for s in Status))
    metrics.counter("reports_total", "Gate reports given.", *(f'valid="{v}"' for v in ("true", "false", "unknown")))
    metrics.counter("refused_total", "Requests refused, by HTTP status.")
    metrics.counter("cancelled_jobs_total", "Jobs dropped because their client had gone.", "")
    metrics.histogram("answer_seconds", "From the request to the answer, waiting included.")
    metrics.histogram("judged_seconds", "What judging took, as the verdict says; known verdicts say what it took then.")
    return metrics


def _count(metrics: Metrics, answer: Answer, seconds: float) -> None:
    metrics.observe("answer_seconds", seconds)
    if isinstance(answer, Verdict):
        metrics.count("verdicts_total", f'status="{answer.status.value}"')
        metrics.observe("judged_seconds", answer.judged_s)
    else:
        valid = {True: "true", False: "false", None: "unknown"}[answer.valid]
        metrics.count("reports_total", f'valid="{valid}"')
