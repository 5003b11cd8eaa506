"""Where the seconds of a verdict went, each counted once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class Phases:
    """Seconds by name. A phase inside another takes its seconds from it, and so does waiting for others.

    Args:
        waited: seconds that were spent waiting so far, of all work.
    """

    def __init__(self, waited: Callable[[], float]) -> None:
        self._waited, self._at_start = waited, waited()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """The seconds of this context go to `name`."""
        began, elsewhere = time.monotonic(), self._elsewhere()
        try:
            yield
        finally:
            own = time.monotonic() - began - (self._elsewhere() - elsewhere)
            self._seconds[name] = self._seconds.get(name, 0.0) + own

    def _elsewhere(self) -> float:
        return sum(self._seconds.values()) + self._waited()

    def to_json(self) -> dict[str, float]:
        """Seconds by name, "wait" among them."""
        found = {**self._seconds, "wait": self._waited() - self._at_start}
        return {name: round(seconds, 4) for name, seconds in found.items() if seconds >= 5e-5}
