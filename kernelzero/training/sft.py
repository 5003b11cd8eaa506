"""Supervised fine-tuning of either role from pairs of prompt and completion; TRL's `SFTTrainer`, loss on the
completion only.

Not covered: which pairs are worth learning from (coldstart filters them).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.config import TrainingConfig
from kernelzero.errors import UsageError
from kernelzero.training.models import adapter, check_model, load_tokenizer, weights_dtype


@dataclass(frozen=True)
class SftSettings:
    """The numbers of one fine-tuning; all ours."""

    steps: int = 0
    """Optimizer steps; 0: by epochs."""
    epochs: float = 1.0
    batch: int = 32
    """Pairs a step, over all passes."""
    lr: float = 1e-5
    schedule: str = "cosine"
    warmup_steps: int = 0
    max_length: int = 4096
    """Tokens of prompt and completion; longer pairs are left out, not cut."""
    seed: int = 0
    packing: bool = False
    """Fill rows of `max_length` tokens with whole pairs, none of which sees another; a batch counts rows then."""
    attention: str = ""
    """Attention of transformers, e.g. "flash_attention_2"; "": the model's usual one."""
    eval_every: int = 0
    """Steps between measurements of the held-out loss, with a checkpoint after each; 0: neither."""


Pairs = Sequence[dict[str, list[dict[str, str]]]]
"""Chat messages of prompts and completions."""


def train_sft(
    model_path: str,
    data: str | Path | Pairs,
    output_dir: str | Path,
    settings: SftSettings | None = None,
    training: TrainingConfig | None = None,
    callbacks: Sequence[Any] = (),
) -> Path:
    """Fine-tune a model and save it, with its tokenizer, to `output_dir`.

    Args:
        model_path: A folder or hub id.
        data: JSONL or parquet with `prompt` and `completion`, each a text or a list of chat messages; or such pairs.
        output_dir: Where the model goes.
        settings: The numbers.
        training: How the machine is used.
        callbacks: transformers callbacks.

    Raises:
        UsageError: The data or the model cannot be read.
    """
    trainer = sft_trainer(model_path, data, output_dir, settings, training, callbacks)
    trainer.train()
    trainer.save_model(str(output_dir))
    trainer.processing_class.save_pretrained(str(output_dir))
    return Path(output_dir)


def sft_trainer(
    model_path: str,
    data: str | Path | Pairs,
    output_dir: str | Path,
    settings: SftSettings | None = None,
    training: TrainingConfig | None = None,
    callbacks: Sequence[Any] = (),
    held_out: Pairs = (),
) -> Any:
    """The trainer of `train_sft`, ready to train; it measures the loss on `held_out` every `eval_every` steps."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTTrainer

    settings, training = settings or SftSettings(), training or TrainingConfig()
    pairs = read_pairs(data) if isinstance(data, str | Path) else list(data)
    check_model(model_path)
    tokenizer = load_tokenizer(model_path)
    pairs = [pair for pair in pairs if _length(tokenizer, pair) <= settings.max_length]
    if not pairs:
        where = f"every pair of {data}" if isinstance(data, str | Path) else "every pair"
        raise UsageError(f"{where} is longer than {settings.max_length} tokens")
    measured = [pair for pair in held_out if _length(tokenizer, pair) <= settings.max_length]
    if settings.eval_every and not measured:
        raise UsageError(f"no held-out pair of at most {settings.max_length} tokens to measure the loss on")
    trainer = SFTTrainer(
        model=model_path,
        args=_arguments(settings, training, output_dir),
        train_dataset=Dataset.from_list(pairs),
        eval_dataset=Dataset.from_list(measured) if settings.eval_every else None,
        processing_class=tokenizer,
        peft_config=adapter(training.lora),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def read_pairs(data: str | Path) -> list[dict[str, list[dict[str, str]]]]:
    """Pairs of chat messages from a JSONL or parquet file.

    Raises:
        UsageError: The file is missing or a row has no prompt or completion.
    """
    path = Path(data)
    if not path.is_file():
        raise UsageError(f"there is no file of pairs {path}")
    rows = _parquet(path) if path.suffix == ".parquet" else _jsonl(path)
    pairs = [_pair(row, f"{path}, row {number}") for number, row in enumerate(rows, 1)]
    if not pairs:
        raise UsageError(f"{path} has no pairs")
    return pairs


def _jsonl(path: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is not JSONL: {error}") from error


def _parquet(path: Path) -> list[Any]:
    from datasets import Dataset

    return Dataset.from_parquet(str(path)).to_list()


def _pair(row: Any, where: str) -> dict[str, list[dict[str, str]]]:
    if not isinstance(row, dict) or not row.get("prompt") or not row.get("completion"):
        raise UsageError(f"{where}: a pair has a prompt and a completion")
    return {"prompt": _messages(row["prompt"], "user"), "completion": _messages(row["completion"], "assistant")}


def _messages(value: Any, role: str) -> list[dict[str, str]]:
    return [{"role": role, "content": value}] if isinstance(value, str) else list(value)


def _length(tokenizer: Any, pair: dict[str, list[dict[str, str]]]) -> int:
    text = tokenizer.apply_chat_template(pair["prompt"] + pair["completion"], tokenize=False)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _arguments(settings: SftSettings, training: TrainingConfig, output_dir: str | Path) -> Any:
    from accelerate import PartialState
    from trl import SFTConfig

    processes = PartialState(cpu=training.device == "cpu").num_processes
    if settings.batch % processes:
        raise UsageError(f"a batch of {settings.batch} cannot be shared by {processes} processes")
    share = settings.batch // processes
    per_pass = max(size for size in range(1, training.rows_per_device + 1) if share % size == 0)
    attention = {"attn_implementation": settings.attention} if settings.attention else {}
    measured = "steps" if settings.eval_every else "no"
    return SFTConfig(
        output_dir=str(output_dir),
        max_steps=settings.steps or -1,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=per_pass,
        per_device_eval_batch_size=per_pass,
        gradient_accumulation_steps=share // per_pass,
        learning_rate=settings.lr,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup_steps,
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_length=settings.max_length if settings.packing else None,
        completion_only_loss=True,
        packing=settings.packing,
        eval_packing=False,
        model_init_kwargs={"dtype": weights_dtype(training), **attention},
        bf16=training.precision == "mixed",
        gradient_checkpointing=training.gradient_checkpointing,
        use_cpu=training.device == "cpu",
        dataloader_pin_memory=False,
        seed=settings.seed,
        eval_strategy=measured,
        save_strategy=measured,
        eval_steps=settings.eval_every or None,
        save_steps=settings.eval_every or 500,
        save_total_limit=2,
        logging_steps=10,
        report_to=list(training.report_to),
        disable_tqdm=True,
    )
