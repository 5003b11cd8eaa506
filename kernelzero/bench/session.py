"""What `kernelzero bench` does once its options are read: samples, verdicts, second verdicts, summary and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelzero.bench.again import KERNELBENCH, TORCH_COMPILE, Again, judge_again
from kernelzero.bench.baselines import Write, WritingSampler, reference_sampler
from kernelzero.bench.files import PassFiles, names_of, write_whole
from kernelzero.bench.imported import Imported, keep_samples, read_samples
from kernelzero.bench.metered import MeteredEndpoint, ProgressLine
from kernelzero.bench.run import How, check_tasks, judge_tasks, run_bench
from kernelzero.bench.scores import full_summary, read_pass
from kernelzero.bench.tables import markdown
from kernelzero.errors import UsageError
from kernelzero.metrics import MixedError
from kernelzero.policy.base import Sampler
from kernelzero.records import Backend, Sampling, Task

LABEL = "bench"
PROFILES = ("paper", "kernelbench", "both")
BASELINES = ("eager", "torch.compile")
_USUAL_N, _CHUNK_TASKS = 10, 32


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command."""

    model: str
    samples: Path | None
    tasks: Sequence[Task]
    backend: Backend
    n: int | None
    sampling: Sampling
    run: Path
    device: str
    workers: int | None
    timeout_s: float | None
    profile: str
    policy: str
    baselines: tuple[str, ...]
    concurrency: int
    prices: tuple[float, float] | None
    """Per million prompt tokens and output tokens."""
    model_device: str | None

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise UsageError(f"--profile {self.profile!r}: {', '.join(PROFILES)}")
        unknown = [b for b in self.baselines if b not in BASELINES]
        if unknown or "eager" not in self.baselines:
            raise UsageError("--baseline: eager, or eager,torch.compile")
        if len(self.baselines) > 1 and self.device == "cpu":
            raise UsageError("--baseline torch.compile: times are measured on a GPU only (--device cuda)")

    @property
    def first_profile(self) -> str:
        """The tolerances of the first verdicts."""
        return "kernelbench" if self.profile == "kernelbench" else "paper"

    @property
    def usage_file(self) -> Path:
        """Where an endpoint's tokens are counted."""
        return self.run / "bench" / f"{LABEL}.usage.jsonl"


def run_session(
    options: Options, writers: Mapping[str, Write], say: Callable[[str], None], again: str
) -> dict[str, Any]:
    """Do it all; the summary.

    Args:
        writers: models by name that are functions, e.g. the rulebook.
        again: the command that was given, which judges again what has no verdict.

    Raises:
        UsageError, InfrastructureError.
    """
    tell = ProgressLine(say)
    if options.samples is not None:
        n = _judge_imported(options, read_samples(options.samples, options.tasks), tell, say)
    else:
        n = options.n or _USUAL_N
        _sample_and_judge(options, n, writers, tell)
    files = PassFiles(options.run / "bench", LABEL, n, options.backend, options.sampling)
    if options.profile == "both":
        _second(options, files, KERNELBENCH, tell, profile="kernelbench")
    if "torch.compile" in options.baselines:
        _second(options, files, TORCH_COMPILE, tell, baseline="torch.compile")
    try:
        summary = full_summary(read_pass(files.folder, LABEL, n, names_of(options.tasks)))
    except MixedError as error:
        raise UsageError(f"{files.folder}: {error}; judge on one device, into one run folder") from error
    if summary["usage"] and options.prices:
        summary["usage"]["cost"] = cost(summary["usage"], options.prices)
    write_whole(files.folder / f"{LABEL}.summary.json", summary)
    tables = markdown(summary, again)
    (files.folder / f"{LABEL}.md").write_text(tables, encoding="utf-8")
    say("\n" + tables)
    return summary


def cost(usage: Mapping[str, Any], prices: tuple[float, float]) -> float:
    """What the tokens cost, by prices per million prompt and output tokens, in their currency."""
    parts = zip((usage["prompt_tokens"], usage["completion_tokens"]), prices, strict=True)
    return sum(tokens * price / 1e6 for tokens, price in parts)


def _settings(options: Options, model: str) -> dict[str, Any]:
    return {
        "model_spec": model,
        "device": options.device,
        "profile": options.first_profile,
        "policy": options.policy,
        "timeout_s": options.timeout_s,
    }


def _keck(options: Options, **terms: str) -> Any:
    from kernelzero.keck import limits_for, open_keck

    limits = limits_for(options.device, options.timeout_s)
    chosen: dict[str, Any] = {"profile": options.first_profile, "policy": options.policy, **terms}
    return open_keck(options.device, options.workers, limits, **chosen)


def _judge_imported(options: Options, imported: Imported, tell: ProgressLine, say: Callable[[str], None]) -> int:
    n, tasks = options.n or imported.most, options.tasks
    check_tasks(tasks, n)
    if imported.left_out:
        say(f"{imported.left_out} samples of tasks that are not among those chosen are left out")
    without = len(tasks) - len(imported.by_task)
    if without:
        say(f"{without} of {len(tasks)} tasks have no sample; each counts as {n} failures")
    files = PassFiles(options.run / "bench", LABEL, n, options.backend, options.sampling)
    files.note_settings(tasks, {}, str(options.samples), _settings(options, "samples"))
    keep_samples(files, tasks, imported)
    with _keck(options) as keck:
        total = sum(min(n, len(group)) for group in imported.by_task.values())
        judge_tasks(files, tasks, keck, total, tell, keck)
    return n


def _sample_and_judge(options: Options, n: int, writers: Mapping[str, Write], tell: ProgressLine) -> None:
    sampler, how = _open_model(options, writers)
    try:
        with _keck(options) as keck:
            run_bench(
                options.tasks,
                sampler,
                keck,
                n=n,
                backend=options.backend,
                sampling=options.sampling,
                run_folder=options.run,
                label=LABEL,
                more=_settings(options, options.model),
                how=how,
                examiner=keck,
                progress=tell,
            )
    finally:
        sampler.close()


def _open_model(options: Options, writers: Mapping[str, Write]) -> tuple[Sampler, How]:
    """The sampler, and how it is best asked."""
    from kernelzero.policy import open_sampler

    model = options.model
    if model == "reference":
        return reference_sampler(options.backend), How(chunk_tasks=8)
    if model in writers:
        return WritingSampler(model, writers[model], options.backend), How(chunk_tasks=4)
    if model.startswith(("http://", "https://")):
        url, _, name = model.partition("#")
        if not name:
            raise UsageError(f"{model}: say which model to ask for, as in {url}#model")
        endpoint = MeteredEndpoint(url, name, options.usage_file, concurrency=options.concurrency)
        # One task a call, so that each is kept and judged as soon as it is there.
        return endpoint, How(chunk_tasks=1, draws_at_once=options.concurrency)
    sampler = open_sampler(model, device=options.model_device)
    how = How(chunk_tasks=max(1, min(_CHUNK_TASKS, _rows_at_once(options) // (options.n or _USUAL_N))))
    if options.device == "cpu" or not _shares_gpu(options):
        return sampler, how
    # What is timed must have the GPU to itself: first all samples, then all verdicts.
    return sampler, dataclasses.replace(how, overlap=False, after_drawing=sampler.close)


def _rows_at_once(options: Options) -> int:
    """How many rows a local model decodes together: larger calls would be no faster, and kept later."""
    import torch

    on_gpu = torch.cuda.is_available() and options.model_device != "cpu"
    return 256 if on_gpu else 64


def _shares_gpu(options: Options) -> bool:
    model = options.model_device or "cuda:0"
    return model.startswith("cuda") and (model.partition(":")[2] or "0") == (options.device.partition(":")[2] or "0")


def _second(options: Options, files: PassFiles, kind: Again, tell: ProgressLine, **terms: str) -> None:
    with _keck(options, **terms) as keck:
        judge_again(files, kind, options.tasks, keck, tell)
