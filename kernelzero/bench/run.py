"""One benchmark pass: sample every task n times, one shot, have Keck judge the answers, summarise.

Everything is kept as it comes, so a killed pass goes on where it was and a later call with a larger n adds samples:

    <run folder>/bench/<label>.json           what was asked: tasks, n, backend, sampling
    <run folder>/bench/<label>.samples.jsonl  every completion, before it is judged
    <run folder>/bench/<label>.jsonl          every attempt with its verdict; a later row of a sample replaces earlier

A sample that got an infrastructure error is judged again by the next call. What this does not do: several turns.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kernelzero.bench.rows import Rows
from kernelzero.errors import UsageError
from kernelzero.metrics import summarise
from kernelzero.policy.base import Sampler
from kernelzero.records import (
    Attempt,
    Backend,
    Candidate,
    Completion,
    Prompt,
    Sampling,
    Status,
    Task,
    Verdict,
    content_id,
)

Progress = Callable[[str, int, int], None]
"""Called with the phase ("sample" or "judge"), the number done and the total."""


class Judge(Protocol):
    """What is needed of Keck: verdicts with the index of their job, as they finish."""

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """One verdict a job, in any order."""
        ...


def run_bench(
    tasks: Sequence[Task],
    sampler: Sampler,
    keck: Judge,
    *,
    n: int,
    backend: Backend,
    sampling: Sampling,
    run_folder: Path | str,
    label: str = "bench",
    make_prompt: Callable[[Task], Prompt] | None = None,
    about: Mapping[str, Any] | None = None,
    chunk_tasks: int = 32,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Sample and judge what is still missing; the summary of all samples (`kernelzero.metrics.summarise`).

    n: samples a task. make_prompt: the Coder's own prompt in the sampler's style if not given. about: what else must be
    the same to go on, e.g. the checkpoint's content. chunk_tasks: tasks sampled at once before they are judged. Raises
    UsageError where the label was used before with another backend, sampling or `about`, and for equal tasks.
    """
    _check(tasks, n)
    pass_ = _Pass(Path(run_folder) / "bench", label, n, backend, sampling, progress or (lambda *_: None))
    pass_.note_settings(tasks, {"style": sampler.style, **(about or {})}, sampler.name)
    make_prompt = make_prompt or _prompt_maker(backend, sampler)
    total = len(tasks) * n
    for start in range(0, len(tasks), chunk_tasks):
        chunk = tasks[start : start + chunk_tasks]
        pass_.sample(chunk, sampler, make_prompt, total)
        pass_.judge(chunk, keck, total)
    return summarise(latest_attempts(pass_.attempts.by_key.values(), tasks, n), n=n, names=_names(tasks))


def latest_attempts(rows: Iterable[Mapping[str, Any]], tasks: Sequence[Task], n: int) -> list[Attempt]:
    """The last attempt of each of the first n samples of the given tasks."""
    wanted = _names(tasks)
    last = {(row["task_id"], row["sample"]): row for row in rows if row["task_id"] in wanted and row["sample"] < n}
    return [Attempt.from_json(dict(row)) for row in last.values()]


@dataclasses.dataclass(frozen=True)
class _Waiting:
    """A sample that waits for its verdict, and the key that its row will have."""

    task: Task
    index: int
    key: str
    completion: Completion


@dataclasses.dataclass
class _Pass:
    """The files of one pass and what is still missing in them."""

    folder: Path
    label: str
    n: int
    backend: Backend
    sampling: Sampling
    progress: Progress

    def __post_init__(self) -> None:
        self.samples = Rows(self.folder / f"{self.label}.samples.jsonl")
        self.attempts = Rows(self.folder / f"{self.label}.jsonl")

    def note_settings(self, tasks: Sequence[Task], about: Mapping[str, Any], model: str) -> None:
        """Refuse to go on with other settings; tasks and samples may be added."""
        path = self.folder / f"{self.label}.json"
        fixed: dict[str, Any] = {"backend": self.backend.value, "sampling": self.sampling.to_json()}
        fixed["about"] = dict(about)
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else fixed
        for key, value in fixed.items():
            if old[key] != value:
                raise UsageError(f"{path} was begun with {key} {old[key]}, not {value}: use another label or folder")
        asked = {"n": max(self.n, old.get("n", 0)), "tasks": {**old.get("tasks", {}), **_names(tasks)}}
        _write_whole(path, {**fixed, "model": model, **asked})

    def sample(
        self, chunk: Sequence[Task], sampler: Sampler, make_prompt: Callable[[Task], Prompt], total: int
    ) -> None:
        """Draw the missing samples; tasks that lack equally many are drawn together."""
        missing: dict[int, list[Task]] = {}
        for task in chunk:
            first = next(i for i in range(self.n + 1) if i == self.n or _key(task, i) not in self.samples.by_key)
            if first < self.n:
                missing.setdefault(first, []).append(task)
        for first, group in sorted(missing.items()):
            self.draw(group, first, sampler, make_prompt, total)

    def draw(
        self, group: Sequence[Task], first: int, sampler: Sampler, make_prompt: Callable[[Task], Prompt], total: int
    ) -> None:
        """Samples `first` to n of every task of the group, in one call."""
        prompts, done = [make_prompt(task) for task in group], self.count(self.samples)
        sampling = self.seeded(group, first)
        drawn = sampler.sample(
            prompts, self.n - first, sampling, lambda new, _: self.progress("sample", done + new, total)
        )
        for task, completions in zip(group, drawn, strict=True):
            self.samples.append(self.sample_row(task, first + i, c) for i, c in enumerate(completions))
        self.progress("sample", self.count(self.samples), total)

    def seeded(self, group: Sequence[Task], first: int) -> Sampling:
        """A seed of its own for every draw: added samples must not repeat the first ones."""
        if self.sampling.seed is None:
            return self.sampling
        text = content_id(str(self.sampling.seed), str(first), *(task.id for task in group))
        return dataclasses.replace(self.sampling, seed=int(text, 16) % 2**31)

    def sample_row(self, task: Task, index: int, completion: Completion) -> dict[str, Any]:
        return {"key": _key(task, index), "task_id": task.id, "sample": index, "completion": completion.to_json()}

    def judge(self, chunk: Sequence[Task], keck: Judge, total: int) -> None:
        """Judge every sample without a verdict, or with one that says nothing about it."""
        waiting = [_Waiting(t, i, key, self.completion(t, i)) for t in chunk for i, key in self.unjudged(t)]
        jobs = []
        for one in waiting:
            candidate, reason = _candidate(one.completion, self.backend)
            if candidate is None:
                self.record(one, None, _no_code(reason, self.backend))
            else:
                jobs.append((one, candidate))
        unanswered = dict(enumerate(jobs))
        verdicts = keck.judge([(one.task, candidate) for one, candidate in jobs], timed=True) if jobs else iter(())
        for position, verdict in verdicts:
            self.record(*unanswered.pop(position), verdict)
            self.progress("judge", self.count(self.attempts), total)
        for one, candidate in unanswered.values():
            self.record(one, candidate, Verdict(Status.INFRA_ERROR, "Keck gave no verdict", "not judged", self.backend))

    def completion(self, task: Task, index: int) -> Completion:
        return Completion.from_json(self.samples.by_key[_key(task, index)]["completion"])

    def unjudged(self, task: Task) -> list[tuple[int, str]]:
        keys = [(index, self.free_key(task, index)) for index in range(self.n)]
        return [(index, key) for index, key in keys if key is not None]

    def free_key(self, task: Task, index: int) -> str | None:
        """The key for a new attempt, None where there is a verdict already."""
        key, again = _key(task, index), 0
        while (row := self.attempts.by_key.get(key)) is not None:
            if row["verdict"]["status"] != Status.INFRA_ERROR.value:
                return None
            again += 1
            key = f"{_key(task, index)}#{again}"
        return key

    def record(self, one: _Waiting, candidate: Candidate | None, verdict: Verdict) -> None:
        attempt = Attempt(one.task.id, one.completion, candidate, verdict)
        self.attempts.append([{"key": one.key, "task": one.task.name, "sample": one.index, **attempt.to_json()}])

    def count(self, rows: Rows) -> int:
        return len({(row["task_id"], row["sample"]) for row in rows.by_key.values()})


def _check(tasks: Sequence[Task], n: int) -> None:
    if n < 1:
        raise UsageError(f"a benchmark needs at least one sample a task, not {n}")
    if not tasks:
        raise UsageError("a benchmark needs at least one task")
    if len({task.id for task in tasks}) < len(tasks):
        raise UsageError("two tasks of the benchmark have the same source")


def _key(task: Task, index: int) -> str:
    return f"{task.id}/{index}"


def _names(tasks: Sequence[Task]) -> dict[str, str]:
    return {task.id: task.name or task.id for task in tasks}


def _prompt_maker(backend: Backend, sampler: Sampler) -> Callable[[Task], Prompt]:
    from kernelzero.coder.prompt import coder_prompt

    return lambda task: coder_prompt(task, backend, sampler.style)


def _candidate(completion: Completion, backend: Backend) -> tuple[Candidate | None, str]:
    from kernelzero.coder.extract import extract_kernel

    extraction = extract_kernel(completion.text, completion.finish)
    return (None if extraction.code is None else Candidate(extraction.code, backend)), extraction.reason


def _no_code(reason: str, backend: Backend) -> Verdict:
    """An answer without code cannot be built: a failure of the model, judged on no device."""
    line = " ".join(reason.split())
    return Verdict(Status.COMPILE_ERROR, f"no code: {line}", device="not judged", backend=backend)


def _write_whole(path: Path, data: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".json.new")
    temporary.write_text(json.dumps(data, indent=1), encoding="utf-8")
    os.replace(temporary, path)
