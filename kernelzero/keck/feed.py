"""Jobs that are still being made while others are judged: a trainer's kernels, drawn one after another.

Any thread puts jobs in; whoever judges takes them out. Not covered: order, which is Keck's.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_JOB = TypeVar("_JOB")
_ANSWER = TypeVar("_ANSWER")
_GATHER_S = 0.2
"""How long jobs are gathered for one list, so that not each is a request of its own."""


class Feed(Generic[_JOB]):
    """A queue with an end, that can be waited for like a file. Use as a context manager, or call `close`."""

    def __init__(self, jobs: Sequence[_JOB] = (), ended: bool = False) -> None:
        self._lock = threading.Lock()
        self._jobs, self._ended, self._closed = list(jobs), ended, False
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._ring()

    def __enter__(self) -> Feed[_JOB]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, *jobs: _JOB) -> None:
        """Put jobs in, each numbered from 0 in the order of coming. Raises ValueError after the end."""
        with self._lock:
            if self._ended:
                raise ValueError("the feed has ended")
            self._jobs += jobs
            self._ring()

    def end(self) -> None:
        """No more jobs will come."""
        with self._lock:
            self._ended = True
            self._ring()

    def take(self, wait: bool = False) -> tuple[list[_JOB], bool]:
        """The jobs that have come since the last call, and whether the feed has ended with them.

        Args:
            wait: for a job or the end, if there is neither.
        """
        while True:
            with self._lock:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._reader, 4096):
                        pass
                jobs, self._jobs = self._jobs, []
                if jobs or self._ended or not wait:
                    return jobs, self._ended
            select.select([self._reader], [], [])

    def __iter__(self) -> Iterator[_JOB]:
        """The jobs as they come, until the end: for whoever needs no more than that."""
        ended = False
        while not ended:
            jobs, ended = self.take(wait=True)
            yield from jobs

    def fileno(self) -> int:
        """Readable when there is something to take."""
        return self._reader

    def close(self) -> None:
        """Give the file descriptors back."""
        with self._lock:
            if not self._closed:
                os.close(self._reader)
                os.close(self._writer)
            self._closed = self._ended = True

    def _ring(self) -> None:
        if not self._closed:
            with contextlib.suppress(BlockingIOError):  # a full pipe is readable
                os.write(self._writer, b".")


class Ahead(Generic[_JOB, _ANSWER]):
    """Jobs that are answered in a thread of their own while more of them are being made.

    Args:
        ask: answers a feed, e.g. `keck.judge`: answers with the number of their job, until the feed has ended.
        on_answer: called in that thread with the number of answers so far and of jobs so far.
    """

    def __init__(
        self,
        ask: Callable[[Feed[_JOB]], Iterator[tuple[int, _ANSWER]]],
        on_answer: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._ask, self._on_answer = ask, on_answer
        self._feed: Feed[_JOB] = Feed()
        self._answers: dict[int, _ANSWER] = {}
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._jobs, self._given_up = 0, False
        self._thread: threading.Thread | None = None
        self.begun_at = self.answered_at = 0.0
        """`time.monotonic` of the first job and of the last answer."""

    def put(self, job: _JOB) -> int:
        """Ask; the job's number."""
        with self._lock:
            if self._thread is None:
                self.begun_at = self.answered_at = time.monotonic()
                self._thread = threading.Thread(target=self._run, name="keck-ahead", daemon=True)
                self._thread.start()
            self._feed.put(job)
            self._jobs += 1
            return self._jobs - 1

    def finish(self) -> dict[int, _ANSWER]:
        """All answers by number, once they are there. Raises what `ask` raised."""
        self._end()
        if self._error is not None:
            raise self._error
        return self._answers

    def give_up(self) -> None:
        """Answers are no longer wanted."""
        self._given_up = True
        self._end()

    def _end(self) -> None:
        self._feed.end()
        if self._thread is not None:
            self._thread.join()
        self._feed.close()

    def _run(self) -> None:
        try:
            for number, answer in (answers := self._ask(self._feed)):
                if self._given_up:
                    # Keck is told that nobody listens any more.
                    getattr(answers, "close", lambda: None)()
                    break
                self._answers[number] = answer
                self.answered_at = time.monotonic()
                self._on_answer(len(self._answers), self._jobs)
        except BaseException as error:  # raised where the answers are asked for
            self._error = error


def in_batches(
    feed: Feed[_JOB], ask: Callable[[list[_JOB]], Iterator[tuple[int, _ANSWER]]], at_once: int
) -> Iterator[tuple[int, _ANSWER]]:
    """Answers to a feed from somebody who takes lists: what has come makes one, up to `at_once` are asked at a time."""
    found: queue.SimpleQueue[tuple[int, _ANSWER] | BaseException | None] = queue.SimpleQueue()

    def one(first: int, jobs: list[_JOB]) -> None:
        for number, answer in ask(jobs):
            found.put((first + number, answer))

    def all_of_them() -> None:
        try:
            with ThreadPoolExecutor(at_once) as pool:
                running, count, ended = [], 0, False
                while not ended:
                    jobs, ended = feed.take(wait=True)
                    if jobs:
                        running.append(pool.submit(one, count, jobs))
                    count += len(jobs)
                    time.sleep(0 if ended else _GATHER_S)
                for future in running:
                    future.result()
            found.put(None)
        except BaseException as error:
            found.put(error)

    threading.Thread(target=all_of_them, name="keck-batches", daemon=True).start()
    while (answer := found.get()) is not None:
        if isinstance(answer, BaseException):
            raise answer
        yield answer
