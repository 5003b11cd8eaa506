"""Second verdicts on kernels that were judged already: by KernelBench's tolerances, or timed against torch.compile.

The two profiles of tolerances do not contain one another: the paper's is wider (1e-2 against 1e-4 in float32) but also
asks for inputs that `get_inputs` does not give. So what is wrong by one may be right by the other, and every kernel
that could be built is asked again, untimed; only answers without code, kernels that do not compile, and what this
device cannot judge keep their verdict. Against torch.compile only correct kernels are timed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kernelzero.bench.files import PassFiles, names_of
from kernelzero.bench.rows import Rows
from kernelzero.bench.run import Judge
from kernelzero.records import Attempt, Candidate, Status, Task, Verdict

Key = tuple[str, int]
"""Task id and number of the sample."""


@dataclasses.dataclass(frozen=True)
class Again:
    """One kind of second verdict."""

    name: str
    """Part of the file's name, "kernelbench" or "torch_compile"."""
    timed: bool
    keeps: frozenset[Status]
    """First verdicts that hold for the second question, too."""

    def asks(self, attempt: Attempt) -> bool:
        """Whether the kernel has to be judged again."""
        return attempt.candidate is not None and attempt.verdict.status not in self.keeps


KERNELBENCH = Again("kernelbench", False, frozenset({Status.COMPILE_ERROR, Status.UNSUPPORTED, Status.INFRA_ERROR}))
TORCH_COMPILE = Again("torch_compile", True, frozenset(Status) - {Status.CORRECT})


def judge_again(
    files: PassFiles,
    again: Again,
    tasks: Sequence[Task],
    keck: Judge,
    tell: Callable[[str, int, int], None],
) -> None:
    """Ask for what is missing of the second verdicts; those that say nothing are asked for again."""
    rows = rows_of(files, again)
    known, by_id = latest(rows.by_key.values()), {task.id: task for task in tasks}
    wanted = []
    for key, attempt in first_verdicts(files, tasks).items():
        old = known.get(key)
        if again.asks(attempt) and (old is None or old.status is Status.INFRA_ERROR):
            wanted.append((key, attempt.candidate))
    jobs = [(by_id[key[0]], candidate) for key, candidate in wanted if isinstance(candidate, Candidate)]
    verdicts = keck.judge(jobs, timed=again.timed) if jobs else iter(())
    for done, (position, verdict) in enumerate(verdicts, 1):
        (task_id, sample), _ = wanted[position]
        row = {"key": _free(rows, f"{task_id}/{sample}"), "task_id": task_id, "sample": sample}
        rows.append([{**row, "verdict": verdict.to_json()}])
        tell(again.name, done, len(jobs))


def rows_of(files: PassFiles, again: Again) -> Rows:
    """The file of the second verdicts."""
    return Rows(files.folder / f"{files.label}.{again.name}.jsonl")


def latest(rows: Iterable[Mapping[str, Any]]) -> dict[Key, Verdict]:
    """The last of the second verdicts on each sample."""
    return {(row["task_id"], row["sample"]): Verdict.from_json(row["verdict"]) for row in rows}


def first_verdicts(files: PassFiles, tasks: Sequence[Task]) -> dict[Key, Attempt]:
    """The last attempt of each of the first n samples of the tasks."""
    wanted = names_of(tasks)
    rows = [row for row in files.attempts.by_key.values() if row["task_id"] in wanted and row["sample"] < files.n]
    return {(row["task_id"], row["sample"]): Attempt.from_json(row) for row in rows}


def _free(rows: Rows, key: str) -> str:
    name, number = key, 0
    while name in rows.by_key:
        number += 1
        name = f"{key}#{number}"
    return name
