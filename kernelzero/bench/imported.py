"""Samples that were generated elsewhere: a JSONL file, or a run folder of KernelBench's own scripts.

JSONL, one sample a line: the task as "task" (its name, or the name's last part) or as "level" and "problem_id"; "code"
(a Python file with ModelNew) or "text" (a model's answer); optional "sample_id", "tokens", "finish" ("stop", "length").
KernelBench's folder: level_1_problem_3_sample_0_kernel.py. Both are read as text; nothing is run.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelzero.bench.builtin import level_of
from kernelzero.bench.files import PassFiles, sample_key
from kernelzero.errors import UsageError
from kernelzero.records import Completion, Finish, Task

_KERNEL_FILE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")


@dataclasses.dataclass(frozen=True)
class Foreign:
    """One sample as its file has it."""

    where: str
    name: str | None
    level: int | None
    problem: int | None
    sample: int | None
    text: str
    is_code: bool
    tokens: int
    finish: Finish


@dataclasses.dataclass(frozen=True)
class Imported:
    """Samples by task, in the order of their ids."""

    by_task: dict[str, list[Foreign]]
    """Task id → its samples."""
    left_out: int
    """Samples of tasks that are not among those chosen."""

    @property
    def most(self) -> int:
        """The largest number of samples of one task."""
        return max(map(len, self.by_task.values()))


def read_samples(path: Path, tasks: Sequence[Task]) -> Imported:
    """The samples for the tasks.

    Raises:
        UsageError: the file cannot be read, a line is no sample, two have one id, or none is for these tasks.
    """
    if not path.exists():
        raise UsageError(f"no such samples: {path}")
    found = list(_from_folder(path) if path.is_dir() else _from_lines(path))
    if not found:
        raise UsageError(f"{path} holds no samples")
    names, problems = _by_name(tasks), _by_problem(tasks)
    by_task: dict[str, list[Foreign]] = defaultdict(list)
    left_out: list[Foreign] = []
    for one in found:
        task = names.get(one.name) if one.name is not None else problems.get((one.level, one.problem))
        if task is None:
            left_out.append(one)
        else:
            by_task[task.id].append(one)
    if not by_task:
        first = left_out[0]
        wanted = first.name if first.name is not None else f"level {first.level} problem {first.problem}"
        raise UsageError(f"{first.where}: {wanted} is none of the {len(tasks)} tasks, nor is any other")
    return Imported({task_id: _ordered(group) for task_id, group in by_task.items()}, len(left_out))


def keep_samples(files: PassFiles, tasks: Sequence[Task], imported: Imported) -> None:
    """Put the first n samples of each task into the pass; those that it has must be the same.

    Raises:
        UsageError: a sample that the pass has says something else now.
    """
    for task in tasks:
        new = []
        for index, one in enumerate(imported.by_task.get(task.id, [])[: files.n]):
            completion = Completion(one.text, one.tokens, one.finish)
            key = sample_key(task, index)
            row = {"key": key, "task_id": task.id, "sample": index, "completion": completion.to_json()}
            old = files.samples.by_key.get(key)
            if old is not None and old["completion"]["text"] != one.text:
                raise UsageError(f"{one.where} is not what {files.folder} was begun with: use another run folder")
            new.append({**row, "code": True} if one.is_code else row)
        files.samples.append(new)


def _from_folder(folder: Path) -> Iterator[Foreign]:
    for path in sorted(folder.rglob("*_kernel.py")):
        match = _KERNEL_FILE.fullmatch(path.name)
        if match:
            level, problem, sample = map(int, match.groups())
            text = path.read_text(encoding="utf-8", errors="replace")
            yield Foreign(str(path), None, level, problem, sample, text, True, 0, Finish.STOP)


def _from_lines(path: Path) -> Iterator[Foreign]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _sample(f"{path}:{number}", line)


def _sample(where: str, line: str) -> Foreign:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: a line has to be a JSON object")
    code, text = row.get("code"), row.get("text")
    if not isinstance(code if code is not None else text, str):
        raise UsageError(f'{where}: a sample needs "code" or "text"')
    name = row.get("task", row.get("name"))
    level, problem = _number(where, row, "level"), _number(where, row, "problem_id")
    if not isinstance(name, str) and (level is None or problem is None):
        raise UsageError(f'{where}: a sample needs "task", or "level" and "problem_id"')
    finish = Finish.LENGTH if row.get("finish") == "length" else Finish.STOP
    sample, tokens = _number(where, row, "sample_id"), _number(where, row, "tokens") or 0
    body = code if code is not None else text
    known_name = name if isinstance(name, str) else None
    return Foreign(where, known_name, level, problem, sample, str(body), code is not None, tokens, finish)


def _number(where: str, row: Mapping[str, Any], key: str) -> int | None:
    value = row.get(key)
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {key} {value!r} is no number") from None


def _ordered(samples: list[Foreign]) -> list[Foreign]:
    """By id; samples without one keep their order, after the others."""
    known = sorted((s for s in samples if s.sample is not None), key=lambda s: s.sample or 0)
    for first, second in itertools.pairwise(known):
        if first.sample == second.sample:
            raise UsageError(f"{second.where}: sample {second.sample} was there before, in {first.where}")
    return known + [s for s in samples if s.sample is None]


def _by_name(tasks: Sequence[Task]) -> dict[str | None, Task]:
    """Full names, and last parts where only one task has them; with and without ".py"."""
    named: dict[str | None, Task] = {}
    last: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        last[task.name.rsplit("/", 1)[-1]].append(task)
    for short, group in last.items():
        if len(group) == 1:
            named |= {short: group[0], f"{short}.py": group[0]}
    for task in tasks:
        named |= {task.name: task, f"{task.name}.py": task, task.id: task}
    return named


def _by_problem(tasks: Sequence[Task]) -> dict[tuple[int | None, int | None], Task]:
    """(level, number at the beginning of the file's name) → task, as KernelBench numbers its problems."""
    found: dict[tuple[int | None, int | None], Task] = {}
    for task in tasks:
        number = re.match(r"(\d+)_", task.name.rsplit("/", 1)[-1])
        if number:
            found[level_of(task.name), int(number[1])] = task
    return found
