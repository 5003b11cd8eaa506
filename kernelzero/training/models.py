"""Opening a model folder for training, with errors that a person can act on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelzero.config import LoraConfig, TrainingConfig
from kernelzero.errors import UsageError


def load_tokenizer(model_path: str) -> Any:
    """The tokenizer of a model, padding on the left, with a chat template and a padding token.

    Raises:
        UsageError: There is no tokenizer, or it has no chat template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"no tokenizer can be loaded from {model_path}: {_first_line(error)}") from error
    if tokenizer.chat_template is None:
        raise UsageError(f"the tokenizer of {model_path} has no chat template")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_model(model_path: str) -> None:
    """Raise UsageError unless a model's configuration, and in a folder its weights, are there."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(model_path)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"no model can be loaded from {model_path}: {_first_line(error)}") from error
    folder = Path(model_path)
    if folder.is_dir() and not any(next(folder.glob(f"*.{kind}"), None) for kind in ("safetensors", "bin")):
        raise UsageError(f"model folder {model_path} has no weights")


def weights_dtype(training: TrainingConfig) -> str:
    """The dtype that weights are kept and updated in."""
    return "bfloat16" if training.precision == "bfloat16" else "float32"


def adapter(lora: LoraConfig | None) -> Any:
    """The peft configuration for low-rank adapters, or None for all weights."""
    if lora is None:
        return None
    import peft

    return peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
