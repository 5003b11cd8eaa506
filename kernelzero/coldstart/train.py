"""Supervised fine-tuning of Coder or Proposer on a corpus, stopped by what the model can do.

    OUT/train.json             what was asked for; a training goes on only with the same
    OUT/checkpoints/           of the trainer; one that is not complete is not used
    OUT/evals.jsonl            held-out loss, and held-out solve rate or rate of valid modules, at each interval
    OUT/best, then OUT/model   the best weights so far, and at the end; adapters are merged

Run it with `accelerate launch` for several processes. Sharded weights (FSDP, ZeRO-3) cannot be sampled while they are
trained; there the loss has to stop it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelzero.coldstart.nearness import Excluder
from kernelzero.coldstart.pairs import Example, load_examples, split
from kernelzero.coldstart.rates import Questions, prompt_of
from kernelzero.coldstart.watch import Watch, complete_checkpoint
from kernelzero.config import TrainingConfig, first_difference
from kernelzero.errors import UsageError
from kernelzero.keck import Keck
from kernelzero.policy.base import Style
from kernelzero.records import Backend, Role
from kernelzero.runfolder import RunFolder
from kernelzero.training.sft import SftSettings

Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainSettings:
    """One fine-tuning."""

    role: Role
    sft: SftSettings
    style: Style = "full"
    """How the model is prompted from now on."""
    reasoning: bool = True
    """Whether a Coder in the full style learns to reason before it writes."""
    backend: Backend = Backend.TRITON
    gpu: str = "NVIDIA H200"
    held_out: int = 64
    """Examples that are not trained on; loss and rate are measured on them."""
    patience: int = 3
    """Measurements without a better rate after which training stops; while the rate is 0 it goes on."""
    stop_on: str = "rate"
    """"rate", or "loss" to measure no rate."""
    max_tokens: int = 0
    """Longest answer when the rate is measured; 0: twice the longest held-out one."""
    training: TrainingConfig = field(default_factory=TrainingConfig)


def train(
    corpus: Path,
    model: str,
    out: Path,
    settings: TrainSettings,
    open_keck: Callable[[], Keck],
    *,
    columns: Mapping[str, str] | None = None,
    excluder: Excluder | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Fine-tune `model`, or go on with it; the facts of `result.json`.

    Args:
        corpus: A build's folder, a Parquet or a JSONL file.
        model: A folder or hub id.
        open_keck: Called when a rate is measured, in the first process.
        columns: As `load_examples`.
        excluder: Examples that are or are near a benchmark task are left out.

    Raises:
        UsageError: Corpus or model cannot be used, or `out` holds another training.
    """
    from accelerate import PartialState

    state = PartialState(cpu=settings.training.device == "cpu")
    say = say if state.is_main_process else lambda _: None
    run = RunFolder(out)
    done = run.read_json("result.json")
    asked = {"model": model, "corpus": str(corpus), **_plain(settings)}
    if state.is_main_process:
        _same_training(run, asked)
    if done is not None:
        say(f"{out / 'model'}: trained already; nothing to do")
        return dict(done)
    training, held_out, facts = prepare(corpus, settings, columns, excluder)
    say(f"{len(training)} examples to learn from, {len(held_out)} held out; {facts}")
    if not training:
        raise UsageError(f"{corpus} has no example left to learn from; hold out fewer")
    if not state.is_main_process:
        return _run(model, out, settings, training, held_out, open_keck, say)
    with run.locked():
        result = {**facts, **_run(model, out, settings, training, held_out, open_keck, say)}
        run.write_json("result.json", result)
    return result


def prepare(
    corpus: Path, settings: TrainSettings, columns: Mapping[str, str] | None, excluder: Excluder | None
) -> tuple[list[Example], list[Example], dict[str, Any]]:
    """Examples to learn from, examples held out, and how many rows gave none."""
    loaded = load_examples(corpus, columns)
    examples = loaded.examples
    if settings.role is Role.PROPOSER:
        examples = [e for e in {e.module: e for e in examples}.values() if e.apis]
    clean = [e for e in examples if excluder is None or not _matches(excluder, e.module)]
    key = _apis if settings.role is Role.PROPOSER else _form
    training, held_out = split(clean, settings.held_out, key, settings.sft.seed)
    facts = {
        "left_out": loaded.left_out, "benchmark": len(examples) - len(clean), "learnt_from": len(training),
        "held_out": len(held_out),
    }  # fmt: skip
    return training, held_out, facts


def messages(example: Example, settings: TrainSettings) -> dict[str, list[dict[str, str]]]:
    """One pair of chat messages."""
    prompt = prompt_of(settings.role, example, settings.style, settings.backend, settings.gpu)
    code = (example.kernel if settings.role is Role.CODER else example.module).strip() + "\n"
    if settings.style == "full":
        why = example.reasoning.strip() if settings.reasoning and settings.role is Role.CODER else ""
        code = (f"{why}\n\n" if why else "") + f"```python\n{code}```\n"
    return {"prompt": list(prompt.messages), "completion": [{"role": "assistant", "content": code}]}


def _run(
    model: str, out: Path, settings: TrainSettings, training: Sequence[Example], held_out: Sequence[Example],
    open_keck: Callable[[], Keck], say: Say,
) -> dict[str, Any]:  # fmt: skip
    from kernelzero.training.sft import sft_trainer

    started = time.monotonic()
    asked = [messages(example, settings) for example in held_out]
    pairs = [messages(example, settings) for example in training]
    trainer = sft_trainer(model, pairs, out / "checkpoints", settings.sft, settings.training, held_out=asked)
    questions = None
    if settings.stop_on == "rate":
        _require_whole_weights(trainer)
        longest = max(len(trainer.processing_class(p["completion"][0]["content"])["input_ids"]) for p in asked)
        questions = Questions(
            settings.role, held_out, settings.style, settings.backend, settings.gpu,
            settings.max_tokens or 2 * longest,
        )  # fmt: skip
    checkpoint = complete_checkpoint(out / "checkpoints")
    watch = Watch(trainer, out, questions, open_keck, settings.patience, checkpoint, say)
    trainer.add_callback(watch)
    trainer.args.eval_on_start = checkpoint is None
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.is_world_process_zero():
        _finish(model, out, settings)
    best = watch.best
    return {
        "model": str(out / "model"), "steps": trainer.state.global_step, "stopped_early": watch.stopped,
        "best": best, "evals": watch.rows, "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def _require_whole_weights(trainer: Any) -> None:
    stage = getattr(getattr(trainer.accelerator.state, "deepspeed_plugin", None), "zero_stage", 0)
    if trainer.is_fsdp_enabled or stage == 3:
        raise UsageError("weights that are sharded over processes cannot be sampled: say --stop-on loss")


def _finish(model: str, out: Path, settings: TrainSettings) -> None:
    """Turn the best weights into a model folder that everything can open."""
    from kernelzero.policy.profile import write_profile

    best, final = out / "best", out / "model"
    if best.is_dir():
        shutil.rmtree(final, ignore_errors=True)
        if settings.training.lora is not None:
            _merge(model, best, settings.training)
        write_profile(best, settings.style, settings.role)
        os.replace(best, final)


def _merge(model: str, best: Path, training: TrainingConfig) -> None:
    """Replace adapters by whole weights."""
    import peft
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from kernelzero.training.models import weights_dtype

    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=weights_dtype(training))
    tokenizer = AutoTokenizer.from_pretrained(str(best))
    whole: Any = peft.PeftModel.from_pretrained(base, str(best)).merge_and_unload()
    merged = best.with_name("merged")
    shutil.rmtree(merged, ignore_errors=True)
    whole.save_pretrained(str(merged))
    tokenizer.save_pretrained(str(merged))
    shutil.rmtree(best)
    os.replace(merged, best)


def _same_training(run: RunFolder, asked: dict[str, Any]) -> None:
    before = run.read_json("train.json")
    if before is not None and (difference := first_difference(asked, before)):
        raise UsageError(f"{run.path} holds another training: {difference}; choose another folder")
    run.write_json("train.json", asked)


def _plain(settings: TrainSettings) -> dict[str, Any]:
    """The settings as JSON gives them back."""
    fields = {**vars(settings), "sft": dataclasses.asdict(settings.sft), "training": settings.training.model_dump()}
    return dict(json.loads(json.dumps(fields, default=str)))


def _matches(excluder: Excluder, module: str) -> bool:
    try:
        return excluder.match(module) is not None
    except (SyntaxError, ValueError, RecursionError):
        return False


def _apis(example: Example) -> tuple[str, ...]:
    return example.apis


def _form(example: Example) -> str:
    from kernelzero.normalise import normalised

    try:
        return normalised(example.module)
    except (SyntaxError, ValueError, RecursionError):
        return example.module
