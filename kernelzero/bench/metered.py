"""An endpoint whose tokens are counted request by request, and a line of progress with the time that is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelzero.bench.rows import Rows
from kernelzero.policy.base import Style
from kernelzero.policy.endpoint import EndpointSampler
from kernelzero.records import content_id


class MeteredEndpoint(EndpointSampler):
    """As `EndpointSampler`; writes what each answered request used, as the endpoint reports it."""

    def __init__(
        self,
        base_url: str,
        model: str,
        usage_file: Path,
        *,
        concurrency: int = 8,
        retries: int = 4,
        timeout_s: float = 600.0,
        style: Style = "full",
    ) -> None:
        limits: dict[str, Any] = {"concurrency": concurrency, "retries": retries, "timeout_s": timeout_s}
        super().__init__(base_url, model, style=style, **limits)
        client: Any = self._client
        self._client = _Counting(client, Rows(usage_file))  # type: ignore[assignment]


class _Counting:
    """The part of the client that a sampler uses."""

    def __init__(self, client: Any, rows: Rows) -> None:
        self.chat = self.completions = self
        self._client, self._rows = client, rows

    def create(self, **arguments: Any) -> Any:
        answer = self._client.chat.completions.create(**arguments)
        usage = getattr(answer, "usage", None)
        if usage is not None:
            counts = {
                "prompt_tokens": int(usage.prompt_tokens or 0),
                "completion_tokens": int(usage.completion_tokens or 0),
            }
            key = content_id(str(getattr(answer, "id", "")), str(time.time_ns()), str(threading.get_ident()))
            self._rows.append([{"key": key, **counts}])
        return answer

    def close(self) -> None:
        self._client.close()


class ProgressLine:
    """Says how far a pass is and how long it may still take, at most every `every_s` seconds and at the end.

    The time left is that of the phase that has most to do, at its own pace in this call.
    """

    def __init__(self, say: Callable[[str], None], every_s: float = 5.0) -> None:
        self._say, self._every_s = say, every_s
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[float, int]] = {}
        self._now: dict[str, tuple[int, int]] = {}
        self._said = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Progress of a phase: `done` of `total`."""
        with self._lock:
            now = time.monotonic()
            self._begun.setdefault(phase, (now, done))
            self._now[phase] = (done, total)
            if now - self._said < self._every_s and (done < total or phase == "sample"):
                return
            self._said = now
            parts = [f"{name} {done}/{total}" for name, (done, total) in self._now.items()]
            self._say(", ".join(parts) + self._left(now))

    def _left(self, now: float) -> str:
        times = []
        for phase, (done, total) in self._now.items():
            start, before = self._begun[phase]
            if done > before and done < total:
                times.append((now - start) / (done - before) * (total - done))
        return f", {clock(max(times))} left" if times else ""


def clock(seconds: float) -> str:
    """A duration for people: "45 s", "3:20 min", "2:05 h"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
