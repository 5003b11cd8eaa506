"""Verdicts that are known already: a SQLite file of them, and a Keck that asks another one only for the rest.

A killed run, server or benchmark that is started again pays only for what had not been judged. An answer is found
again by what it depends on: task, candidate, rules, tolerances, device, limits and the version of Keck. Infrastructure
errors and "unsupported" say nothing about a candidate and are never kept.

Safe for several threads and processes of one machine. Not covered: network file systems, where SQLite's write-ahead
log does not work; and the secret that inputs are drawn from, which is new in every run while stored verdicts stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import kernelzero
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.keck.client import CPU_DEVICE, Keck
from kernelzero.records import Candidate, GateReport, Record, Task, Verdict, content_id

_APPLICATION_ID = 0x4B5A5653
"""Written into the file's header, so that a database of something else is told apart."""
_BUSY_S = 30.0
_ASIDE = "serve/"
"""The part of Keck that brings questions and answers about, but decides nothing."""
_SOURCES = {".py", ".c", ".cpp", ".cu", ".cuh", ".h"}
_COLUMNS = "kind, task, subject, timed, policy, profile, baseline, device, limits, version"
_TABLE = """
CREATE TABLE IF NOT EXISTS verdicts (
    kind TEXT NOT NULL, task TEXT NOT NULL, subject TEXT NOT NULL, timed INTEGER NOT NULL, policy TEXT NOT NULL,
    profile TEXT NOT NULL, baseline TEXT NOT NULL, device TEXT NOT NULL, limits TEXT NOT NULL, version TEXT NOT NULL,
    answer TEXT NOT NULL, stored_at REAL NOT NULL,
    PRIMARY KEY (kind, task, subject, timed, policy, profile, baseline, device, limits, version)
) WITHOUT ROWID
"""
_WHERE = " AND ".join(f"{name} = ?" for name in _COLUMNS.split(", "))
_ANSWER = TypeVar("_ANSWER", Verdict, GateReport)


@functools.cache
def keck_version() -> str:
    """The package's version and a digest of the code that judges: a changed rule makes stored verdicts unknown."""
    folder = Path(__file__).parent.parent
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.suffix in _SOURCES}
    judging = sorted(name for name in files if not name.startswith(_ASIDE))
    texts = [text for name in judging for text in (name, files[name].read_text(encoding="utf-8"))]
    return f"{kernelzero.__version__}+{content_id(*texts)[:8]}"


@dataclass(frozen=True)
class StoreKey(Record):
    """What a verdict depends on beside task, candidate and whether a time was asked for."""

    policy: str = "strict"
    """Name of the rules."""
    profile: str = "paper"
    """Name of the tolerances."""
    baseline: str = "eager"
    """What candidates are timed against."""
    device: str = CPU_DEVICE
    limits: str = ""
    """What one candidate may use, e.g. "timeout_s=10.0"; a time-out under other limits is another verdict."""
    version: str = field(default_factory=keck_version)


@dataclass(frozen=True)
class StoreSize(Record):
    """How much a store holds."""

    answers: int
    """Verdicts and reports, of all keys."""
    bytes: int
    """The file and its write-ahead log."""


class VerdictStore:
    """Verdicts and gate reports in a SQLite file, which is made where there is none.

    Raises:
        UsageError: the file cannot be opened, is damaged, or belongs to something else.
        InfrastructureError: it is locked for longer than half a minute, or the disk is full.
    """

    def __init__(self, path: str | Path, key: StoreKey | None = None) -> None:
        self.path = Path(path)
        self.key = key or StoreKey()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        with self._open():
            pass

    def __enter__(self) -> VerdictStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of answers of all keys."""
        with self._open() as db:
            return int(db.execute("SELECT count(*) FROM verdicts").fetchone()[0])

    def verdict(self, task: Task, candidate: Candidate, timed: bool) -> Verdict | None:
        """The verdict on a candidate, None where it is not known.

        A timed verdict answers an untimed question. A failure that was found without a time is one with a time too.
        """
        for asked in (timed, not timed):
            found = self._read(Verdict, "verdict", task.id, candidate.id, asked)
            if found is not None and (asked == timed or not timed or not found.correct):
                return found if asked == timed else dataclasses.replace(found, timing=None, timed=timed)
        return None

    def report(self, task: Task, apis: Sequence[str]) -> GateReport | None:
        """The report on a module, None where it is not known."""
        return self._read(GateReport, "report", task.id, content_id(*apis), False)

    def put_verdict(self, task: Task, candidate: Candidate, verdict: Verdict) -> None:
        """Keep a verdict, in place of an older one; what is no outcome is left out."""
        if verdict.status.is_outcome:
            self._write("verdict", task.id, candidate.id, verdict.timed, verdict)

    def put_report(self, task: Task, apis: Sequence[str], report: GateReport) -> None:
        """Keep a report, in place of an older one; an infrastructure error is left out."""
        if report.valid is not None:
            self._write("report", task.id, content_id(*apis), False, report)

    def clear(self) -> int:
        """Forget all answers of all keys; how many there were."""
        with self._open() as db:
            return db.execute("DELETE FROM verdicts").rowcount

    def size(self) -> StoreSize:
        """How many answers there are and how many bytes they take."""
        count = len(self)
        files = [self.path, self.path.with_name(self.path.name + "-wal")]
        return StoreSize(count, sum(p.stat().st_size for p in files if p.exists()))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    # --- inside ---

    def _row(self, kind: str, task_id: str, subject: str, timed: bool) -> tuple[Any, ...]:
        k = self.key
        return (kind, task_id, subject, int(timed), k.policy, k.profile, k.baseline, k.device, k.limits, k.version)

    def _read(self, kind: type[_ANSWER], name: str, task_id: str, subject: str, timed: bool) -> _ANSWER | None:
        with self._open() as db:
            row = db.execute(f"SELECT answer FROM verdicts WHERE {_WHERE}", self._row(name, task_id, subject, timed))
            found = row.fetchone()
        if found is None:
            return None
        try:
            return kind.from_json(json.loads(found[0]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{self.path}: an answer in it is damaged; move the file away") from error

    def _write(self, name: str, task_id: str, subject: str, timed: bool, answer: Record) -> None:
        row = (*self._row(name, task_id, subject, timed), json.dumps(answer.to_json()), time.time())
        with self._open() as db:
            db.execute(f"INSERT OR REPLACE INTO verdicts ({_COLUMNS}, answer, stored_at) VALUES ({'?,' * 11}?)", row)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one statement; each is its own transaction, on the disk's log when it returns."""
        with self._lock, self._one_line():
            # A connection may not be used in a process that was forked off.
            if self._connection is None or self._pid != os.getpid():
                self._connection, self._pid = self._connect(), os.getpid()
            yield self._connection

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._claim(db)
            db.execute("PRAGMA journal_mode = WAL")
            # Survives a kill of the process; a power cut may lose the last verdicts, never the file.
            db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            db.close()
            raise
        return db

    def _claim(self, db: sqlite3.Connection) -> None:
        if self._owner(db) == _APPLICATION_ID:
            return
        # Looked at again under the lock: another process may be making the same file.
        db.execute("BEGIN IMMEDIATE")
        owner, things = self._owner(db), db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if owner != _APPLICATION_ID and (owner or things):
            raise UsageError(f"{self.path} is a database of something else, not a verdict store")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.execute(_TABLE)
        db.execute("COMMIT")

    @staticmethod
    def _owner(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA application_id").fetchone()[0])

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(f"cannot open the verdict store {self.path}: {error.strerror}") from error
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR")):
                raise InfrastructureError(f"the verdict store {self.path}: {error}") from error
            raise UsageError(f"cannot use the verdict store {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise UsageError(f"{self.path} is damaged or not a verdict store ({error}); move it away") from error


class StoredKeck:
    """Another Keck behind a store: what is known is given at once, the rest is asked, each equal job once, and kept.

    Args:
        keck: who judges what is not known; closed together with this.
        path: the store's file.
        key: what `keck`'s verdicts depend on.
        fresh_timings: judge those again that have a time, where a time is asked for: times of another day or
            machine are then never mixed.
    """

    def __init__(
        self, keck: Keck, path: str | Path, *, key: StoreKey | None = None, fresh_timings: bool = False
    ) -> None:
        self.keck = keck
        self.store = VerdictStore(path, key)
        self.fresh_timings = fresh_timings
        self.known = 0
        """Answers that came from the store."""
        self.asked = 0
        """Questions that were put to `keck`."""

    def __enter__(self) -> StoredKeck:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """Verdicts: the known ones first, then the others as they are finished."""
        places: dict[tuple[str, str], list[int]] = {}
        for index, (task, candidate) in enumerate(jobs):
            places.setdefault((task.id, candidate.id), []).append(index)
        unknown: list[list[int]] = []
        for indices in places.values():
            found = self._known(*jobs[indices[0]], timed)
            if found is None:
                unknown.append(indices)
            else:
                self.known += len(indices)
                yield from ((index, found) for index in indices)
        yield from self._ask(jobs, unknown, timed)

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        """Reports: the known ones first, then the others as they are finished."""
        places: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for index, (task, apis) in enumerate(jobs):
            places.setdefault((task.id, tuple(apis)), []).append(index)
        unknown: list[list[int]] = []
        for indices in places.values():
            found = self.store.report(*jobs[indices[0]])
            if found is None:
                unknown.append(indices)
            else:
                self.known += len(indices)
                yield from ((index, found) for index in indices)
        yield from self._ask_reports(jobs, unknown)

    def close(self) -> None:
        """Close the store and the Keck behind it."""
        self.store.close()
        self.keck.close()

    def _known(self, task: Task, candidate: Candidate, timed: bool) -> Verdict | None:
        found = self.store.verdict(task, candidate, timed)
        return None if found is not None and found.timing is not None and self.fresh_timings else found

    def _ask(
        self, jobs: Sequence[tuple[Task, Candidate]], unknown: list[list[int]], timed: bool
    ) -> Iterator[tuple[int, Verdict]]:
        self.asked += len(unknown)
        for number, verdict in self.keck.judge([jobs[i[0]] for i in unknown], timed=timed) if unknown else ():
            task, candidate = jobs[unknown[number][0]]
            # Kept before it is handed on: what a caller has seen is never judged again.
            self.store.put_verdict(task, candidate, verdict)
            yield from ((index, verdict) for index in unknown[number])

    def _ask_reports(
        self, jobs: Sequence[tuple[Task, Sequence[str]]], unknown: list[list[int]]
    ) -> Iterator[tuple[int, GateReport]]:
        self.asked += len(unknown)
        for number, report in self.keck.examine([jobs[i[0]] for i in unknown]) if unknown else ():
            task, apis = jobs[unknown[number][0]]
            self.store.put_report(task, apis, report)
            yield from ((index, report) for index in unknown[number])
