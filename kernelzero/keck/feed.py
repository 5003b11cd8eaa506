"""Jobs that are still being made while others are judged: a trainer's kernels, drawn one after another.

Any thread puts jobs in; whoever judges takes them out. Not covered: order, which is Keck's.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Sequence
from typing import Generic, TypeVar

_JOB = TypeVar("_JOB")


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
