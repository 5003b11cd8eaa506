"""The corpus of the cold start: module → gates → teacher → Keck → the correct kernels.

    draw → screen (benchmark, near, duplicate) → gates → teacher → verdict → rows.jsonl → corpus-*.parquet, card

Everything is appended as it comes: killed at any moment, a build loses what was in flight and goes on with the same
command. Number n is always the same module, principle and sample, and of two equal modules the one with the smaller
number stays, whatever came first; so an interrupted build ends with the rows of an uninterrupted one. (A model behind
an endpoint need not answer the same twice; answers that were given are kept.)
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelzero.coldstart.card import write_card
from kernelzero.coldstart.crew import Crew
from kernelzero.coldstart.nearness import Excluder
from kernelzero.coldstart.rows import ANSWERS, ROWS, Answer, CorpusRow, Log, corpus_of, load_answers, load_rows
from kernelzero.coldstart.rows import write_parquet as write_corpus
from kernelzero.coldstart.screen import Screen, examined, operators_of
from kernelzero.coldstart.tasks import Draft, Source
from kernelzero.coldstart.teachers import Assignment, Lesson, Teacher, TeacherDown, principle_of
from kernelzero.config import first_difference
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.keck import Keck
from kernelzero.records import Backend, Candidate, GateReport, Record, Status, Verdict
from kernelzero.runfolder import RunFolder

Say = Callable[[str], None]
CHUNK = 64
"""Least number of numbers whose modules are drawn and examined at a time."""
FAILURES_IN_A_ROW = 8
"""Lessons without an answer, one after the other, after which the teacher counts as gone."""
SAY_EVERY_S = 5.0


@dataclass(frozen=True)
class BuildSettings(Record):
    """What is built. All but `count` and `budget_tokens` have to stay the same for a build to go on."""

    count: int
    """Numbers, each one sample of one module."""
    backend: Backend = Backend.TRITON
    device: str = "cpu"
    gpu: str = "NVIDIA H200"
    """The GPU that the teacher is told to write for."""
    samples: int = 1
    """Samples of each module, of different principles."""
    seed: int = 0
    budget_tokens: int = 0
    """Most tokens over all calls of this build; 0: no end."""


@dataclass(frozen=True)
class _Session(Record):
    session: int
    elapsed_s: float
    rows: int


@dataclass
class _Open:
    """A number on its way to a row."""

    row: CorpusRow
    draft: Draft
    lesson: Lesson | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def build(
    folder: Path,
    source: Source,
    teacher: Teacher,
    keck: Keck,
    settings: BuildSettings,
    excluder: Excluder,
    *,
    about: dict[str, Any] | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Build a corpus in `folder`, or go on with it, and write its Parquet file and card.

    Args:
        excluder: knows the benchmark tasks that must not be in the corpus.
        about: more that has to stay the same, for the card.
        say: shows progress.

    Returns:
        The card's facts.

    Raises:
        UsageError: the folder holds a build with other settings, or another process works in it.
        InfrastructureError: teacher or Keck are gone; what was done is kept.
    """
    if source.most is not None and settings.count > source.most * settings.samples:
        most = source.most * settings.samples
        raise UsageError(f"--count {settings.count}: there are {most} numbers (tasks times samples) at most")
    run = RunFolder(folder)
    with run.locked():
        facts = {"teacher": teacher.name, "source": source.name, **(about or {}), **settings.to_json()}
        _same_build(run, facts)
        started = _Build(folder, source, teacher, keck, settings, excluder, say)
        try:
            started.run()
        finally:
            started.close()
        rows = load_rows(folder)
        corpus = corpus_of(rows.values())
        write_corpus(corpus, folder / f"corpus-{settings.backend.value}.parquet")
        return write_card(folder, facts, rows, corpus, stopped=started.stopped)


def keck_seed(folder: Path) -> int:
    """What Keck draws inputs from in this build: a secret of the folder, the same in every call.

    Some modules are on the edge of a gate; with other inputs an interrupted build would end with other rows.
    """
    run = RunFolder(folder)
    kept = run.read_json("keck_seed.json")
    if kept is None:
        kept = secrets.randbits(48)
        try:
            run.write_json("keck_seed.json", kept)
        except OSError as error:
            raise UsageError(f"cannot write to {folder}: {error.strerror}") from error
    return int(kept)


def _same_build(run: RunFolder, facts: dict[str, Any]) -> None:
    free = ("count", "budget_tokens")
    before = run.read_json("build.json")
    if before is not None:
        ours, theirs = ({k: v for k, v in f.items() if k not in free} for f in (facts, before))
        if difference := first_difference(ours, theirs):
            raise UsageError(f"{run.path} holds another build: {difference}; choose another folder")
    run.write_json("build.json", facts)


class _Build:
    """The state of one call; `run` is the flow."""

    def __init__(
        self, folder: Path, source: Source, teacher: Teacher, keck: Keck, settings: BuildSettings,
        excluder: Excluder, say: Say,
    ) -> None:  # fmt: skip
        self.source, self.teacher, self.keck, self.say, self.settings = source, teacher, keck, say, settings
        self.rows = load_rows(folder)
        self.log, self.answers = Log(folder / ROWS), Log(folder / ANSWERS)
        self.sessions = Log(folder / "sessions.jsonl")
        given = load_answers(folder)
        self.spent = sum(answer.lesson.tokens for answer in given)
        done = {n for n, row in self.rows.items() if row.final}
        self.missing = {n for n in range(settings.count) if n not in done}
        self.known = {a.number: a for a in given if a.number in self.missing}
        self.tasks_left = deque(sorted({n // settings.samples for n in self.missing}))
        self.screen = Screen(excluder, self.rows.values(), settings.samples)
        self.chunk = max(CHUNK, 2 * teacher.concurrency)
        self.crew = Crew(teacher)
        self.passed: deque[_Open] = deque()
        self.taught: dict[int, _Open] = {}
        self.ready: deque[_Open] = deque()
        self.ahead: tuple[list[int], Iterator[Draft]] = ([], iter(()))
        self.failures = 0
        self.stopped = ""
        self.begun = self.said = time.monotonic()
        self.session, self.made = time.time_ns(), 0

    def run(self) -> None:
        """Until every number has a row, or the budget is spent."""
        self._look_ahead()
        while self._more_modules() or self.passed or self.crew.flying or self.ready:
            if self._more_modules() and self._room() > 0:
                self._take_in()
            self._hand_out()
            busy = self.ready or (self._more_modules() and self._room() > 0)
            self._collect(wait_s=0.0 if busy else 1.0)
            self._judge()
        self._progress(last=True)

    def close(self) -> None:
        """Close the files."""
        for log in (self.log, self.answers, self.sessions):
            log.close()

    # Modules

    def _more_modules(self) -> bool:
        """Whether there are modules to be looked at; without budget only those whose answers were paid for."""
        return bool(self.ahead[0]) and not (self.stopped and not self.known)

    def _room(self) -> int:
        """How many more modules should be on their way to the teacher."""
        return 2 * self.chunk - len(self.passed) - len(self.crew.flying) - len(self.ready)

    def _look_ahead(self) -> None:
        """Have the next modules written while others are judged."""
        most = max(1, self.chunk // self.settings.samples)
        numbers = [self.tasks_left.popleft() for _ in range(min(most, len(self.tasks_left)))]
        self.ahead = (numbers, self.source.drafts(numbers) if numbers else iter(()))

    def _take_in(self) -> None:
        drafts = list(self.ahead[1])
        self._look_ahead()
        open_ = [draft for draft in drafts if self._screened(draft)]
        started = time.perf_counter()
        reports = dict(examined(self.keck, open_))
        share = (time.perf_counter() - started) / max(len(open_), 1)
        for index, draft in enumerate(open_):
            self._gated(draft, reports[index], share)
        self._progress()

    def _screened(self, draft: Draft) -> bool:
        """Whether a module may be a task as far as its text says; refused rows are written."""
        refusal, detail = self.screen.refusal(draft)
        for one in self._numbers(draft) if refusal else ():
            self._add(dataclasses.replace(one.row, refusal=refusal, detail=detail, seconds=one.seconds))
        return not refusal

    def _gated(self, draft: Draft, report: GateReport, seconds: float) -> None:
        for one in self._numbers(draft):
            one.seconds["gate"] = seconds
            if report.valid:
                self.passed.append(one)
                continue
            refusal = "infra:keck" if report.valid is None else f"gate:{report.gate}"
            self._add(dataclasses.replace(one.row, refusal=refusal, detail=report.reason, seconds=one.seconds))

    def _numbers(self, draft: Draft) -> list[_Open]:
        """The numbers of a module that have no row yet."""
        s = self.settings
        first = draft.task_number * s.samples
        rows = [
            CorpusRow(
                number, draft.task.id if draft.module else "", draft.module, draft.apis, s.backend.value,
                teacher=self.teacher.name, seed=s.seed, operators=operators_of(draft.module),
            )
            for number in range(first, first + s.samples) if number in self.missing
        ]  # fmt: skip
        return [_Open(row, draft, seconds={"draw": draft.seconds / s.samples}) for row in rows]

    # Lessons

    def _hand_out(self) -> None:
        """Give the teacher what it can take at once and the budget allows."""
        while self.passed and len(self.crew.flying) < 2 * self.teacher.concurrency:
            one = self.passed.popleft()
            number = one.row.number
            known = self.known.pop(number, None)
            if known is not None and known.task_id == one.row.task_id:
                self._answered(one, known.lesson)
                continue
            if self.stopped:
                continue  # no row: a build with a larger budget goes on with it
            assignment = self._assignment(one)
            tokens = self.teacher.most_tokens(assignment)
            budget = self.settings.budget_tokens
            if budget and self.spent + self.crew.reserved + tokens > budget:
                self.passed.appendleft(one)
                if self.crew.flying:
                    return
                self.stopped = f"the budget of {budget} tokens: the next answer may not fit"
                continue
            self.taught[number] = one
            self.crew.hand_out(number, assignment, tokens)

    def _assignment(self, one: _Open) -> Assignment:
        s = self.settings
        task_number, sample = divmod(one.row.number, s.samples)
        return Assignment(one.draft.task, s.backend, s.gpu, principle_of(task_number, sample), sample, s.seed)

    def _collect(self, wait_s: float = 0.0) -> None:
        """Take lessons that are back; answers are on their way to the disk before anything else happens."""
        for number, lesson in self.crew.collect(wait_s):
            one = self.taught.pop(number)
            if isinstance(lesson, TeacherDown):
                self._down(one, str(lesson))
                continue
            if isinstance(lesson, Exception):
                raise lesson
            self.failures = 0
            self.answers.add(Answer(number, one.row.task_id, lesson))
            self.spent += lesson.tokens
            self._answered(one, lesson)

    def _down(self, one: _Open, detail: str) -> None:
        self.failures += 1
        self._add(dataclasses.replace(one.row, refusal="infra:teacher", detail=detail, seconds=one.seconds))
        if self.failures >= FAILURES_IN_A_ROW:
            raise InfrastructureError(f"{self.failures} lessons in a row failed, what was done is kept: {detail}")

    def _answered(self, one: _Open, lesson: Lesson) -> None:
        one.lesson = lesson
        one.seconds["teach"] = lesson.seconds
        if lesson.refusal:
            self._add(_with_lesson(one, refusal=f"teacher:{lesson.refusal}", detail=lesson.detail))
        else:
            self.ready.append(one)

    # Verdicts

    def _judge(self) -> None:
        batch = [self.ready.popleft() for _ in range(len(self.ready))]
        jobs = [(o.draft.task, Candidate(o.lesson.code, self.settings.backend)) for o in batch if o.lesson]
        for index, verdict in self.keck.judge(jobs):
            batch[index].seconds["judge"] = verdict.judged_s
            self._add(_with_verdict(batch[index], verdict))
            self._collect()
            self._hand_out()

    def _add(self, row: CorpusRow) -> None:
        self.log.add(row)
        self.rows[row.number] = row
        self.missing.discard(row.number)
        self.known.pop(row.number, None)
        self.made += 1
        self._progress()

    def _progress(self, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self.said < SAY_EVERY_S:
            return
        self.said = now
        elapsed = max(now - self.begun, 1e-9)
        self.sessions.add(_Session(self.session, round(elapsed, 3), self.made))
        kept, rate = sum(row.kept for row in self.rows.values()), self.made / elapsed
        parts = [f"{len(self.rows)}/{self.settings.count} rows, {kept} kept, {rate:.2f} rows/s"]
        if self.missing and rate:
            parts.append(_duration(len(self.missing) / rate) + " left")
        if self.spent:
            budget = f" of {self.settings.budget_tokens}" if self.settings.budget_tokens else ""
            parts.append(f"{self.spent}{budget} tokens")
        if last and self.stopped:
            parts.append(f"stopped by {self.stopped}")
        self.say(", ".join(parts))


def _with_lesson(one: _Open, **changes: Any) -> CorpusRow:
    lesson = one.lesson or Lesson(refusal="none")
    return dataclasses.replace(
        one.row, principle=lesson.principle, reasoning=lesson.reasoning, kernel=lesson.code,
        prompt_tokens=lesson.prompt_tokens, completion_tokens=lesson.completion_tokens,
        seconds={stage: round(s, 4) for stage, s in one.seconds.items()}, **changes,
    )  # fmt: skip


def _with_verdict(one: _Open, verdict: Verdict) -> CorpusRow:
    judged = {"device": verdict.device, "rung": verdict.rung or ""}
    if verdict.status is Status.CORRECT:
        basis = verdict.timing.basis.value if verdict.timing else ""
        return _with_lesson(one, **judged, speedup=verdict.speedup, basis=basis)
    refusal = "infra:keck" if verdict.status is Status.INFRA_ERROR else f"verdict:{verdict.status.value}"
    return _with_lesson(one, **judged, refusal=refusal, detail=verdict.reason)


def _duration(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.1f} min"
