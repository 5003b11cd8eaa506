"""Counters and histograms of the Keck service, in Prometheus's text format. Thread-safe; nothing is kept on disk."""

from __future__ import annotations

import bisect
import threading
from collections import Counter

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper ends of the buckets."""
_PREFIX = "kernelzero_keck_"


class Metrics:
    """What the service counts. Names are given without the common prefix "kernelzero_keck_"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._help: dict[str, str] = {}

    def counter(self, name: str, help: str, *labels: str) -> None:
        """Announce a counter; label values named here, e.g. 'status="correct"', start at 0."""
        self._help[name] = help
        self._counts[name] = Counter(dict.fromkeys(labels, 0))

    def histogram(self, name: str, help: str) -> None:
        """Announce a histogram of seconds."""
        self._help[name] = help
        self._buckets[name] = [0] * (len(SECONDS) + 1)
        self._sums[name] = 0.0

    def count(self, name: str, label: str = "", by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name][label] += by

    def observe(self, name: str, seconds: float) -> None:
        """Add one duration to a histogram."""
        with self._lock:
            self._buckets[name][bisect.bisect_left(SECONDS, seconds)] += 1
            self._sums[name] += seconds

    def text(self, gauges: dict[str, float]) -> str:
        """Everything as Prometheus reads it, with the gauges of this moment."""
        with self._lock:
            lines = [line for name in self._counts for line in self._counter_lines(name)]
            lines += [line for name in self._buckets for line in self._histogram_lines(name)]
        for name, value in gauges.items():
            lines += [f"# TYPE {_PREFIX}{name} gauge", f"{_PREFIX}{name} {value:g}"]
        return "\n".join(lines) + "\n"

    def _counter_lines(self, name: str) -> list[str]:
        lines = [f"# HELP {_PREFIX}{name} {self._help[name]}", f"# TYPE {_PREFIX}{name} counter"]
        counts = self._counts[name] or {"": 0}
        return lines + [
            f"{_PREFIX}{name}{'{' + label + '}' if label else ''} {count}" for label, count in counts.items()
        ]

    def _histogram_lines(self, name: str) -> list[str]:
        lines, total = [f"# HELP {_PREFIX}{name} {self._help[name]}", f"# TYPE {_PREFIX}{name} histogram"], 0
        for end, count in zip((*map(str, SECONDS), "+Inf"), self._buckets[name], strict=True):
            total += count
            lines.append(f'{_PREFIX}{name}_bucket{{le="{end}"}} {total}')
        return [*lines, f"{_PREFIX}{name}_sum {self._sums[name]:g}", f"{_PREFIX}{name}_count {total}"]
