"""One benchmark pass: sample every task n times, one shot, have Keck judge the answers, summarise.

Drawing and judging overlap: the samples of the first tasks are judged while the next are drawn. Everything is kept as
it comes (`files.py`), so a killed pass goes on where it was and a later call with a larger n adds samples. A sample
that got an infrastructure error is judged again by the next call. What this does not do: several turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kernelzero.bench.drawing import Drawing
from kernelzero.bench.files import PassFiles, Waiting, latest_attempts, names_of
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.metrics import summarise
from kernelzero.policy.base import Sampler
from kernelzero.records import Backend, Candidate, Completion, GateReport, Prompt, Sampling, Status, Task, Verdict

__all__ = ["Judge", "Progress", "extracted", "judge_tasks", "latest_attempts", "run_bench"]

Progress = Callable[[str, int, int], None]
"""Called with the phase ("sample" or "judge"), the number done and the total; from several threads."""


class Judge(Protocol):
    """What is needed of Keck: verdicts with the index of their job, as they finish."""

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """One verdict a job, in any order."""
        ...


class Examiner(Protocol):
    """What is needed of Keck to look at the tasks themselves."""

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        """One report a job, in any order."""
        ...


@dataclasses.dataclass(frozen=True)
class How:
    """How a pass is worked through; nothing here changes a number."""

    chunk_tasks: int = 32
    """Tasks sampled by one call of the sampler."""
    draws_at_once: int = 1
    """Calls of the sampler side by side; its `sample` has to allow that."""
    overlap: bool = True
    """Whether judging begins before the drawing has ended; not where both would share one GPU."""
    after_drawing: Callable[[], None] = lambda: None
    """Called before judging where they do not overlap, e.g. to free the GPU."""


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
    more: Mapping[str, Any] | None = None,
    chunk_tasks: int = 32,
    how: How | None = None,
    examiner: Examiner | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Sample and judge what is still missing; the summary of all samples (`kernelzero.metrics.summarise`).

    Args:
        n: samples a task.
        make_prompt: the Coder's own prompt in the sampler's style if not given.
        about, more: what else must be the same to go on (`PassFiles.note_settings`), e.g. the checkpoint's content.
        chunk_tasks: as in `How`, which replaces it.
        examiner: looks at the tasks themselves before their samples are judged.

    Raises:
        UsageError: the label was used before with something else, two tasks are equal, or the model gives nothing.
    """
    check_tasks(tasks, n)
    how = how or How(chunk_tasks)
    tell = progress or (lambda *_: None)
    files = PassFiles(Path(run_folder) / "bench", label, n, backend, sampling)
    files.note_settings(tasks, {"style": sampler.style, **(about or {})}, sampler.name, more)
    make_prompt = make_prompt or _prompt_maker(backend, sampler)
    drawing = Drawing(files, sampler, make_prompt, tell, chunk_tasks=how.chunk_tasks, at_once=how.draws_at_once)
    drawing.start(tasks)
    try:
        for batch in drawing.ready(wait_for_all=not how.overlap):
            if not how.overlap:
                how.after_drawing()
            judge_tasks(files, batch, keck, len(tasks) * n, tell, examiner)
    except InfrastructureError as error:
        if drawing.drawn == 0 and drawing.failed:
            raise UsageError(f"the model gives no answer: {error}") from error
        raise
    finally:
        drawing.stop()
    return summarise(latest_attempts(files.attempts.by_key.values(), tasks, n), n=n, names=names_of(tasks))


def judge_tasks(
    files: PassFiles, tasks: Sequence[Task], keck: Judge, total: int, tell: Progress, examiner: Examiner | None = None
) -> None:
    """Judge every sample without a verdict, or with one that says nothing about it."""
    if examiner is not None:
        _examine(files, tasks, examiner)
    jobs = []
    for one in (waiting for task in tasks for waiting in files.unjudged(task)):
        candidate, reason = _candidate(one, files.backend)
        if candidate is None:
            files.record(one, None, _no_code(reason, files.backend))
        else:
            jobs.append((one, candidate))
    done = files.judged()
    unanswered = dict(enumerate(jobs))
    verdicts = keck.judge([(one.task, candidate) for one, candidate in jobs], timed=True) if jobs else iter(())
    for position, verdict in verdicts:
        one, candidate = unanswered.pop(position)
        files.record(one, candidate, verdict)
        done += 1
        tell("judge", min(done, total), total)
    for one, candidate in unanswered.values():
        nothing = Verdict(Status.INFRA_ERROR, "Keck gave no verdict", "not judged", files.backend)
        files.record(one, candidate, nothing)
    tell("judge", min(files.judged(), total), total)


def _examine(files: PassFiles, tasks: Sequence[Task], examiner: Examiner) -> None:
    """What Keck says of the tasks that it was not asked about yet; what it cannot say is asked again next time."""
    new = [task for task in tasks if task.id not in files.tasks.by_key]
    for position, report in examiner.examine([(task, ()) for task in new]) if new else ():
        if report.valid is not None:
            row = {"key": new[position].id, "task": new[position].name, "work_ms": report.work_ms}
            files.tasks.append([{**row, "valid": report.valid, "gate": report.gate, "reason": report.reason}])


def check_tasks(tasks: Sequence[Task], n: int) -> None:
    """Raises UsageError where there is nothing to do, or two tasks are one."""
    if n < 1:
        raise UsageError(f"a benchmark needs at least one sample a task, not {n}")
    if not tasks:
        raise UsageError("a benchmark needs at least one task")
    if len({task.id for task in tasks}) < len(tasks):
        raise UsageError("two tasks of the benchmark have the same source")


def extracted(completion: Completion, backend: Backend) -> tuple[Candidate | None, str]:
    """The kernel in an answer, or why there is none."""
    from kernelzero.coder.extract import extract_kernel

    extraction = extract_kernel(completion.text, completion.finish)
    return (None if extraction.code is None else Candidate(extraction.code, backend)), extraction.reason


def _candidate(one: Waiting, backend: Backend) -> tuple[Candidate | None, str]:
    if not one.is_code:
        return extracted(one.completion, backend)
    if not one.completion.text.strip():
        return None, "the sample is empty"
    return Candidate(one.completion.text, backend), ""


def _prompt_maker(backend: Backend, sampler: Sampler) -> Callable[[Task], Prompt]:
    from kernelzero.coder.prompt import coder_prompt

    return lambda task: coder_prompt(task, backend, sampler.style)


def _no_code(reason: str, backend: Backend) -> Verdict:
    """An answer without code cannot be built: a failure of the model, judged on no device."""
    line = " ".join(reason.split())
    return Verdict(Status.COMPILE_ERROR, f"no code: {line}", device="not judged", backend=backend)
