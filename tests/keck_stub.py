"""A Keck that judges by the text, counts what it judged in a file, and can be slow or broken; alone or as a service.

    python -m tests.keck_stub --port 8017 --log judged.txt --store keck.sqlite

Words in a candidate's source decide: "sleep=0.2" seconds, "infra_error", "unsupported"; else a hash does. Equal
questions get equal answers in every process.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelzero.errors import UsageError
from kernelzero.keck.serve.service import ServeOptions, serve
from kernelzero.keck.serve.store import StoredKeck, StoreKey
from kernelzero.records import Basis, Candidate, GateReport, Status, Task, Timing, Verdict

DEVICE = "stub"


def verdict_on(task: Task, candidate: Candidate, timed: bool) -> Verdict:
    """The verdict that the stub gives."""
    number = hashlib.sha256(f"{task.source}\0{candidate.source}".encode("utf-8", "surrogatepass")).digest()[0]
    named = next((s for s in (Status.INFRA_ERROR, Status.UNSUPPORTED) if s.value in candidate.source), None)
    status = named or (Status.CORRECT if number % 2 else Status.INCORRECT)
    timing = None
    if timed and status is Status.CORRECT:
        speedup = 1.0 + number / 100
        timing = Timing(Basis.MODELLED, speedup, 1.0, speedup, speedup, speedup)
    return Verdict(status, f"hash {number}", DEVICE, candidate.backend, timing, timed, judged_s=0.001)


class StubKeck:
    """Judges one job after another, the last one first: whoever relies on order fails."""

    def __init__(self, log: Path | None = None, sleep_s: float = 0.0) -> None:
        self.judged: Counter[str] = Counter()
        self.calls = 0
        self.closed = False
        self._sleep_s = sleep_s
        self._log = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY) if log else None

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        self.calls += 1
        for index, (task, candidate) in reversed(list(enumerate(jobs))):
            found = re.search(r"sleep=([\d.]+)", candidate.source)
            time.sleep(float(found[1]) if found else self._sleep_s)
            self._count(f"{task.id} {candidate.id}")
            yield index, verdict_on(task, candidate, timed)

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        self.calls += 1
        for index, (task, apis) in reversed(list(enumerate(jobs))):
            self._count(f"{task.id} {' '.join(apis)}")
            yield index, GateReport(True, "", f"{len(apis)} APIs")

    def close(self) -> None:
        self.closed = True

    def _count(self, line: str) -> None:
        self.judged[line] += 1
        if self._log is not None:
            os.write(self._log, f"{line}\n".encode())


class MortalKeck(StubKeck):
    """Ends its whole process once for every job that says "die"; its log and its memory of deaths are in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "judged")
        self._folder = folder

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        for index, verdict in super().judge(jobs, timed=timed):
            marker = self._folder / jobs[index][1].id
            if "die" in jobs[index][1].source and not marker.exists():
                marker.touch()
                os._exit(1)
            yield index, verdict


def impossible() -> StubKeck:
    """A factory on a machine that cannot judge."""
    raise UsageError("this device cannot be")


def jobs_of(name: str, count: int, tasks: int = 5, words: str = "") -> list[tuple[Task, Candidate]]:
    """Distinct jobs, of `tasks` tasks in turn."""
    return [(Task(f"task {name} {i % tasks}"), Candidate(f"{name} {i} {words}")) for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--token")
    parser.add_argument("--sleep-s", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--body-mib", type=float, default=1.0)
    parser.add_argument("--jobs-a-request", type=int, default=10_000)
    parser.add_argument("--jobs-queued", type=int, default=50_000)
    parser.add_argument("--grace-s", type=float, default=2.0)
    given = parser.parse_args()

    def make(options: ServeOptions) -> tuple[StubKeck | StoredKeck, int]:
        stub = StubKeck(given.log, given.sleep_s)
        key = StoreKey(device=DEVICE, version="stub")
        return (StoredKeck(stub, given.store, key=key) if given.store else stub), 1

    serve(
        ServeOptions(
            port=given.port, token=given.token, batch=given.batch, body_mib=given.body_mib, grace_s=given.grace_s,
            jobs_a_request=given.jobs_a_request, jobs_queued=given.jobs_queued,
        ),
        make,
    )  # fmt: skip


if __name__ == "__main__":
    main()
