"""What the measurements on a GPU have in common: limits of time, partial results, facts of the machine, tables.

A machine with a GPU is often had for minutes only. Each part of a measurement runs `within` its seconds; when they are
over, or somebody interrupts, it reports what it has.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kernelzero.records import Verdict


class Stopped(KeyboardInterrupt):
    """Time is over or somebody interrupts. No `except Exception` on the way holds it up."""


@dataclass
class Span:
    """How a part of a measurement went."""

    started: float
    seconds: float = 0.0
    """Until the body ended or was told to, or what the body says."""
    cut: str = ""
    """Why it ended early: "time", "interrupted", or "" where it did not."""


@contextlib.contextmanager
def within(budget_s: float | None) -> Iterator[Span]:
    """Run the body, at most `budget_s` seconds of it; ended early or interrupted it ends quietly, and the span says so.

    SIGTERM counts as an interrupt, and SIGINT counts even where a shell started this program with it ignored.
    """
    span = Span(time.monotonic())

    def stop(number: int, _: Any) -> None:
        span.seconds = time.monotonic() - span.started
        raise Stopped("time" if number == signal.SIGALRM else "interrupted")

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    # Never 0, which would mean no alarm.
    signal.setitimer(signal.ITIMER_REAL, 0 if budget_s is None else max(budget_s, 0.01))
    try:
        yield span
    except KeyboardInterrupt as stopped:
        span.cut = str(stopped) or "interrupted"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)
        span.seconds = span.seconds or time.monotonic() - span.started


class Clock:
    """Seconds that are left of a whole measurement."""

    def __init__(self, budget_s: float) -> None:
        self._end = time.monotonic() + budget_s
        self.interrupted = False
        """Set where a part was interrupted: nothing is begun after that."""

    @property
    def left_s(self) -> float:
        """Seconds; 0 when nothing should be begun any more."""
        return 0.0 if self.interrupted else max(0.0, self._end - time.monotonic())

    @contextlib.contextmanager
    def part(self, share: float = 1.0) -> Iterator[Span]:
        """`within` a share of what is left."""
        with within(share * self.left_s) as span:
            yield span
        self.interrupted |= span.cut == "interrupted"


def load_client() -> None:
    """Import what Keck's client imports on first use, torch: cut off in the middle of that, a program may crash."""
    from kernelzero.keck import wire  # noqa: F401


def say(text: str) -> None:
    """A line of progress, at once."""
    print(text, flush=True)


def write(path: Path, found: dict[str, Any]) -> None:
    """JSON, after each part, so that a program that is killed leaves what it had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print columns: the first to the left, others to the right, as wide as their longest entry."""
    lines = [list(map(_cell, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  ".join(t.rjust(w) if i else t.ljust(w) for i, (t, w) in enumerate(zip(line, widths, strict=True))))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def an_hour(count: int, seconds: float) -> int | None:
    """Rate; None where there is none."""
    return round(count / seconds * 3600) if count and seconds > 0 else None


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b where both are known."""
    return round(a / b, 3) if a and b else None


def median(values: Iterable[float]) -> float | None:
    """The median; None of nothing."""
    found = list(values)
    return round(statistics.median(found), 6) if found else None


def median_phases(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Median seconds of each phase that verdicts tell, over those verdicts that went through it."""
    return {name: round(statistics.median(values), 4) for name, values in _phases(verdicts).items()}


def summed_phases(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Seconds of each phase over all verdicts."""
    return {name: round(sum(values), 2) for name, values in _phases(verdicts).items()}


def _phases(verdicts: Iterable[Verdict]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = defaultdict(list)
    for verdict in verdicts:
        for name, value in (getattr(verdict, "phases", None) or {}).items():
            seconds[name].append(value)
    return seconds


def exploit_header(path: Path) -> dict[str, str]:
    """The lines `# key: value` at the top of a file of exploits/."""
    fields: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# ") or ": " not in line:
            break
        key, value = line[2:].split(": ", 1)
        fields[key] = value
    return fields


def machine(device: str) -> dict[str, Any]:
    """What figures depend on."""
    versions = {name: _version(name) for name in ("torch", "triton")}
    gpu = _first_line(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]) if device != "cpu" else None
    return {
        "gpu": gpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **versions,
        "load_before": round(os.getloadavg()[0], 2),
    }


def gpu_memory_mib(number: int = 0) -> int | None:
    """Memory in use, by everybody, on a GPU by its number among those that this program sees; None: not known."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = visible.split(",")[number] if visible else str(number)
    said = _first_line(["nvidia-smi", "-i", name, "--query-gpu=memory.used", "--format=csv,noheader,nounits"])
    if said is None:
        asked = f"import torch; free, total = torch.cuda.mem_get_info({number}); print((total - free) >> 20)"
        said = _first_line([sys.executable, "-c", asked])
    return int(said) if said and said.isdigit() else None


def _first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
