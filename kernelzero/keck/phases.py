"""Where the seconds of a verdict went, each counted once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping


class Phases:
    """Seconds by name. A phase inside another takes its seconds from it, and so do the machine's own.

    Args:
        machine: what the machine counts by itself, of all work so far: seconds of waiting for others, of having the GPU
            alone.
    """

    def __init__(self, machine: Callable[[], Mapping[str, float]]) -> None:
        self._machine, self._at_start = machine, dict(machine())
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
        return sum(self._seconds.values()) + sum(self._machine().values())

    def to_json(self) -> dict[str, float]:
        """Seconds by name, the machine's among them."""
        machines = {name: seconds - self._at_start.get(name, 0.0) for name, seconds in self._machine().items()}
        found = {**self._seconds, **machines}
        return {name: round(seconds, 4) for name, seconds in found.items() if seconds >= 5e-5}
