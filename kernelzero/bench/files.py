"""The files of one benchmark pass, and what is still missing in them.

<run folder>/bench/<label>.json               what was asked: tasks, n, backend, sampling, terms
<run folder>/bench/<label>.samples.jsonl      every completion, before it is judged
<run folder>/bench/<label>.jsonl              every attempt with its verdict; the last row of a sample counts
<run folder>/bench/<label>.tasks.jsonl        what Keck found out about each task itself
<run folder>/bench/<label>.<again>.jsonl      second verdicts, by other tolerances or against another baseline
<run folder>/bench/<label>.usage.jsonl        tokens of every request to an endpoint
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelzero import runfolder
from kernelzero.bench.categories import category
from kernelzero.bench.rows import Rows
from kernelzero.errors import UsageError
from kernelzero.records import Attempt, Backend, Candidate, Completion, Sampling, Status, Task, Verdict

UNJUDGEABLE = ("runs", "time", "finite", "deterministic")
"""Gates behind which Keck may be unable to judge anything: the reference has no answer to compare with."""


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A sample that waits for its verdict, and the key that its row will have."""

    task: Task
    index: int
    key: str
    completion: Completion
    is_code: bool
    """Whether the text is the kernel itself, not an answer that holds one."""


@dataclasses.dataclass
class PassFiles:
    """The rows of one pass."""

    folder: Path
    label: str
    n: int
    backend: Backend
    sampling: Sampling

    def __post_init__(self) -> None:
        self.samples = Rows(self.folder / f"{self.label}.samples.jsonl")
        self.attempts = Rows(self.folder / f"{self.label}.jsonl")
        self.tasks = Rows(self.folder / f"{self.label}.tasks.jsonl")

    def note_settings(
        self, tasks: Sequence[Task], about: Mapping[str, Any], model: str, more: Mapping[str, Any] | None = None
    ) -> None:
        """Refuse to go on with other settings; tasks and samples may be added.

        about, more: what has to stay the same; `more` is not compared with a pass that did not note it.

        Raises:
            UsageError: the pass was begun with something else.
        """
        path = self.folder / f"{self.label}.json"
        more = dict(more or {})
        fixed = {"backend": self.backend.value, "sampling": self.sampling.to_json(), "about": dict(about)}
        old = read_settings(path) or {**fixed, **more}
        for key, value in {**fixed, **more}.items():
            if key in old and old[key] != value:
                raise UsageError(f"{path} was begun with {key} {old[key]}, not {value}: use another label or folder")
        kinds = {task.id: category(task.source) for task in tasks}
        asked = {
            "n": max(self.n, old.get("n", 0)),
            "tasks": {**old.get("tasks", {}), **names_of(tasks)},
            "categories": {**old.get("categories", {}), **kinds},
        }
        write_whole(path, {**fixed, **more, "model": model, **asked})

    def missing_from(self, task: Task) -> int:
        """The first sample of the task that is not drawn yet; n where all are."""
        return next(i for i in range(self.n + 1) if i == self.n or sample_key(task, i) not in self.samples.by_key)

    def add_samples(self, task: Task, first: int, completions: Iterable[Completion]) -> None:
        """Keep the completions as samples `first`, `first + 1`, … of the task."""
        self.samples.append(
            {"key": sample_key(task, i), "task_id": task.id, "sample": i, "completion": completion.to_json()}
            for i, completion in enumerate(completions, first)
        )

    def unjudged(self, task: Task) -> list[Waiting]:
        """Samples that are drawn and have no verdict, or one that says nothing about them."""
        found = []
        for index in range(self.n):
            row, key = self.samples.by_key.get(sample_key(task, index)), self.free_key(task, index)
            if row is not None and key is not None:
                completion = Completion.from_json(row["completion"])
                found.append(Waiting(task, index, key, completion, bool(row.get("code"))))
        return found

    def free_key(self, task: Task, index: int) -> str | None:
        """The key for a new attempt, None where there is a verdict already, or never will be one."""
        key, again = sample_key(task, index), 0
        while (row := self.attempts.by_key.get(key)) is not None:
            if row["verdict"]["status"] != Status.INFRA_ERROR.value or self.cannot_be_judged(task):
                return None
            again += 1
            key = f"{sample_key(task, index)}#{again}"
        return key

    def cannot_be_judged(self, task: Task) -> bool:
        """Whether Keck found that the task's own reference has no answer here."""
        row = self.tasks.by_key.get(task.id)
        return row is not None and row["gate"] in UNJUDGEABLE

    def record(self, one: Waiting, candidate: Candidate | None, verdict: Verdict) -> None:
        """Keep a verdict."""
        attempt = Attempt(one.task.id, one.completion, candidate, verdict)
        self.attempts.append([{"key": one.key, "task": one.task.name, "sample": one.index, **attempt.to_json()}])

    def sampled(self) -> int:
        """Number of samples drawn, of all tasks that the pass ever had."""
        return len(self.samples.by_key)

    def judged(self) -> int:
        """Number of samples that were judged at least once."""
        return len({(row["task_id"], row["sample"]) for row in self.attempts.by_key.values()})


def read_settings(path: Path) -> dict[str, Any] | None:
    """What a pass was begun with; None where it was not. Raises UsageError for a file that is no JSON object."""
    settings = runfolder.read_json(path)
    if settings is not None and not isinstance(settings, dict):
        raise UsageError(f"{path} holds no settings of a benchmark")
    return settings


def latest_attempts(rows: Iterable[Mapping[str, Any]], tasks: Sequence[Task], n: int) -> list[Attempt]:
    """The last attempt of each of the first n samples of the given tasks."""
    wanted = names_of(tasks)
    last = {(row["task_id"], row["sample"]): row for row in rows if row["task_id"] in wanted and row["sample"] < n}
    return [Attempt.from_json(dict(row)) for row in last.values()]


def sample_key(task: Task, index: int) -> str:
    """The key of a sample's row."""
    return f"{task.id}/{index}"


def names_of(tasks: Sequence[Task]) -> dict[str, str]:
    """Task id → name for people."""
    return {task.id: task.name or task.id for task in tasks}


def write_whole(path: Path, data: Any) -> None:
    """Write a JSON file whole or not at all."""
    runfolder.write_whole(path, json.dumps(data, indent=1) + "\n")
