"""`kernelzero coldstart …`: a corpus of verified kernels, and supervised fine-tuning on it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelzero.errors import UsageError
from kernelzero.records import Backend, Role

app = typer.Typer(no_args_is_help=True, help="The cold start: a verified corpus, and fine-tuning on it.")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@app.command("build")
def build_command(
    out: Annotated[Path, typer.Argument(help="Folder of the corpus; an interrupted build goes on in it.")],
    teacher: Annotated[str, typer.Option(help="rulebook, or an endpoint as http://host:8000/v1#model.")] = "rulebook",
    backend: Annotated[Backend, typer.Option(help="Language of the kernels.")] = Backend.TRITON,
    device: Annotated[str, typer.Option(help="Where Keck judges: cpu, cuda or cuda:N.")] = "cpu",
    keck_url: Annotated[str, typer.Option("--keck", help="Judge at a `kernelzero serve` instead.")] = "",
    count: Annotated[int, typer.Option(help="Modules times samples; of a folder all if not given.", min=0)] = 0,
    tasks: Annotated[Path | None, typer.Option(help="Folder of modules instead of the composer; trusted ones.")] = None,
    dialect: Annotated[str, typer.Option(help="Of the composer: all, or nano for what the nano models know.")] = "all",
    sizes: Annotated[str, typer.Option(help="Of composed modules: small, or gpu; gpu if Keck judges on one.")] = "",
    samples: Annotated[int, typer.Option(help="Kernels asked for each module, principle by principle.", min=1)] = 1,
    exclude: Annotated[list[Path] | None, typer.Option(help="Folder of benchmark tasks; may be repeated.")] = None,
    gpu: Annotated[str, typer.Option(help="GPU that the teacher is told to write for.")] = "NVIDIA H200",
    seed: Annotated[int, typer.Option(help="The same seed gives the same modules.", min=0)] = 0,
    workers: Annotated[int | None, typer.Option(help="Judges, and processes; one a processor.", min=1)] = None,
    budget_tokens: Annotated[int, typer.Option(help="Most tokens of an endpoint, all calls; 0: no end.", min=0)] = 0,
    concurrency: Annotated[int, typer.Option(help="Requests to an endpoint side by side.", min=1)] = 32,
    max_tokens: Annotated[int, typer.Option(help="Longest answer of an endpoint.", min=1)] = 16_384,
    temperature: Annotated[float, typer.Option(help="Of an endpoint.", min=0)] = 1.0,
    request_timeout: Annotated[float, typer.Option(help="Seconds for one answer of an endpoint.", min=0.1)] = 1800.0,
) -> None:
    """Build a corpus of verified kernels; the card's facts on standard output."""
    from kernelzero.bench import builtin_tasks, load_tasks
    from kernelzero.coldstart.build import BuildSettings, build, keck_seed
    from kernelzero.coldstart.nearness import Excluder
    from kernelzero.coldstart.tasks import Composed, Dialect, Folder, Source
    from kernelzero.coldstart.teachers import open_teacher
    from kernelzero.coldstart.workers import open_pool
    from kernelzero.records import content_id

    if backend is Backend.CUDA and device == "cpu" and not keck_url:
        raise UsageError("CUDA kernels cannot be judged on a CPU: say --device cuda, or --keck URL")
    sizes = sizes or ("small" if device == "cpu" and not keck_url else "gpu")
    _one_of("--dialect", dialect, ("all", "nano"))
    _one_of("--sizes", sizes, ("small", "gpu"))
    forbidden = [*builtin_tasks(), *(task for folder in exclude or [] for task in load_tasks(folder))]
    workers = workers or len(os.sched_getaffinity(0))
    folder = Folder(tasks) if tasks else None
    if not count and folder is None:
        raise UsageError("say how many modules: --count N")
    settings = BuildSettings(
        count=count or (len(folder.tasks) * samples if folder else 0), backend=backend, device=keck_url or device,
        gpu=gpu, samples=samples, seed=seed, budget_tokens=budget_tokens,
    )  # fmt: skip
    about: dict[str, Any] = {"excluded": f"{len(forbidden)} tasks, {content_id(*(t.source for t in forbidden))}"}
    if teacher != "rulebook":
        about |= {"max_tokens": max_tokens, "temperature": temperature}
    teaching = open_teacher(
        teacher, workers=workers, concurrency=concurrency, max_tokens=max_tokens, temperature=temperature,
        timeout_s=request_timeout,
    )  # fmt: skip
    with open_pool(workers) as pool, _keck(device, keck_url, workers, keck_seed(out)) as keck:
        try:
            source: Source = folder or Composed(seed, pool, Dialect(dialect, "gpu" if sizes == "gpu" else "small"))
            facts = build(out, source, teaching, keck, settings, Excluder(forbidden), about=about, say=_say)
        finally:
            teaching.close()
    _say(f"{out / 'card.md'}: {facts['corpus']} kernels")
    print(json.dumps(facts, indent=1))


@app.command("train")
def train_command(
    role: Annotated[Role, typer.Option(help="Who is trained.")],
    corpus: Annotated[Path, typer.Option(help="Folder of a build, or a Parquet or JSONL file of pairs.")],
    model: Annotated[str, typer.Option(help="Folder, hub id, or nano:coder / nano:proposer.")],
    out: Annotated[Path, typer.Option(help="Folder of the training; an interrupted one goes on in it.")],
    column: Annotated[list[str] | None, typer.Option(help="PART=COLUMN of a foreign file; may be repeated.")] = None,
    exclude: Annotated[list[Path] | None, typer.Option(help="Folder of benchmark tasks; may be repeated.")] = None,
    style: Annotated[str, typer.Option(help="Prompts: full or compact; the model's own if not given.")] = "",
    reasoning: Annotated[bool, typer.Option(help="A Coder in the full style reasons before it writes.")] = True,
    backend: Annotated[Backend, typer.Option(help="Language of the kernels.")] = Backend.TRITON,
    gpu: Annotated[str, typer.Option(help="GPU that the prompts name.")] = "NVIDIA H200",
    steps: Annotated[int, typer.Option(help="Optimizer steps; 0: by epochs.", min=0)] = 0,
    epochs: Annotated[float, typer.Option(help="Passes over the corpus.", min=0)] = 1.0,
    batch: Annotated[int, typer.Option(help="Pairs a step, rows with packing; over all GPUs.", min=1)] = 32,
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0)] = 1e-5,
    warmup: Annotated[int, typer.Option(help="Steps until the learning rate is reached.", min=0)] = 0,
    max_length: Annotated[int, typer.Option(help="Tokens of a pair; longer ones are left out.", min=1)] = 4096,
    packing: Annotated[bool, typer.Option(help="Fill rows with whole pairs.")] = False,
    attention: Annotated[str, typer.Option(help="E.g. flash_attention_2; the model's own if not given.")] = "",
    lora: Annotated[int, typer.Option(help="Rank of adapters; 0: all weights.", min=0)] = 0,
    precision: Annotated[str, typer.Option(help="float32, mixed or bfloat16.")] = "mixed",
    rows: Annotated[int, typer.Option(help="Most rows of one pass on one GPU.", min=1)] = 8,
    checkpointing: Annotated[bool, typer.Option(help="Less memory, a third more time.")] = False,
    device: Annotated[str, typer.Option(help="Of the trainer: auto or cpu.")] = "auto",
    every: Annotated[int, typer.Option(help="Steps between measurements and checkpoints.", min=1)] = 100,
    held_out: Annotated[int, typer.Option(help="Examples to measure on.", min=1)] = 64,
    patience: Annotated[int, typer.Option(help="Measurements without progress before it stops.", min=1)] = 3,
    stop_on: Annotated[str, typer.Option(help="rate (by Keck), or loss.")] = "rate",
    max_tokens: Annotated[int, typer.Option(help="Longest answer measured; 0: twice the longest.", min=0)] = 0,
    judge: Annotated[str, typer.Option(help="Where Keck judges: cpu, cuda or cuda:N.")] = "cpu",
    workers: Annotated[int | None, typer.Option(help="Judges; one a processor.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of split and order.", min=0)] = 0,
) -> None:
    """Fine-tune Coder or Proposer on a corpus, until it does no better; the result on standard output."""
    from typing import get_args

    from kernelzero.bench import builtin_tasks, load_tasks
    from kernelzero.coldstart.nearness import Excluder
    from kernelzero.config import LoraConfig, TrainingConfig
    from kernelzero.policy import Style, nano_path, prompt_style
    from kernelzero.training.sft import SftSettings

    _one_of("--stop-on", stop_on, ("rate", "loss"))
    _one_of("--style", style, ("", *get_args(Style)))
    _one_of("--precision", precision, ("float32", "mixed", "bfloat16"))
    _one_of("--device", device, ("auto", "cpu"))
    if backend is Backend.CUDA and judge == "cpu" and stop_on == "rate" and role is Role.CODER:
        raise UsageError("CUDA kernels cannot be judged on a CPU: say --judge cuda, or --stop-on loss")
    columns = dict(_column(text) for text in column or [])
    if not corpus.exists():
        raise UsageError(f"no such corpus: {corpus}")
    path = str(nano_path(model.removeprefix("nano:"))) if model.startswith("nano:") else model
    sft = SftSettings(
        steps=steps, epochs=epochs, batch=batch, lr=lr, warmup_steps=warmup, max_length=max_length, seed=seed,
        packing=packing, attention=attention, eval_every=every,
    )  # fmt: skip
    hardware: dict[str, Any] = {
        "device": device, "precision": _precision(precision, device), "rows_per_device": rows,
        "gradient_checkpointing": checkpointing, "lora": LoraConfig(rank=lora, alpha=2 * lora) if lora else None,
    }  # fmt: skip
    _quiet()
    from kernelzero.coldstart.train import TrainSettings, train

    prompted: Style = prompt_style(path) if not style else "compact" if style == "compact" else "full"
    settings = TrainSettings(
        role, sft, prompted, reasoning, backend, gpu, held_out, patience, stop_on, max_tokens,
        TrainingConfig(**hardware),
    )  # fmt: skip
    forbidden = [*builtin_tasks(), *(task for folder in exclude or [] for task in load_tasks(folder))]
    opened: list[Any] = []

    def open_judges() -> Any:
        from kernelzero.keck import open_keck

        if not opened:
            opened.append(open_keck(judge, workers))
        return opened[0]

    try:
        result = train(
            corpus, path, out, settings, open_judges, columns=columns, excluder=Excluder(forbidden), say=_say
        )
    finally:
        for keck in opened:
            keck.close()
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(result, indent=1))


def _quiet() -> None:
    """Keep the bars and deprecation notices of the libraries underneath off the screen."""
    import warnings

    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)


def _column(text: str) -> tuple[str, str]:
    part, found, column = text.partition("=")
    if not found or not column:
        raise UsageError(f"--column {text}: say PART=COLUMN, as in module=py_code")
    return part, column


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{option} {value}: say {' or '.join(a for a in allowed if a)}")


def _precision(asked: str, device: str) -> str:
    """Mixed precision is for GPUs."""
    import torch

    on_cpu = device == "cpu" or not torch.cuda.is_available()
    return "float32" if on_cpu and asked == "mixed" else asked


def _keck(device: str, url: str, workers: int, seed: int) -> Any:
    import contextlib

    from kernelzero.keck import open_keck

    if url:
        from kernelzero.keck.serve.remote import RemoteKeck

        return contextlib.closing(RemoteKeck(url))
    return open_keck(device, workers, seed=seed)
