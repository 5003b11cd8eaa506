"""Completions from a local transformers model: a folder, a hub id, or weights already in memory.

Batches are formed by prompt length, the longest first; each is decoded by `policy.decode`. Finish reasons and token
counts are exact: any of the model's end tokens is an end. Not covered: several GPUs, use an endpoint for that.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelzero.errors import UsageError
from kernelzero.policy.base import Drawn, Progress, Style
from kernelzero.policy.profile import prompt_style
from kernelzero.records import Completion, Finish, Prompt, Sampling

if TYPE_CHECKING:
    from kernelzero.policy.decode import OnRow, Row

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_ROWS_ON_CPU, _ROWS_ON_GPU = 64, 256


@dataclass(frozen=True)
class _Batch:
    """Prompts of similar length, all sampled equally often."""

    indices: list[int]
    copies: int

    @property
    def rows(self) -> int:
        return len(self.indices) * self.copies


class TransformersSampler:
    """Samples a transformers causal language model.

    `source` is a folder, a hub id, or a pair (model, tokenizer) whose weights are used as they are at each call, so a
    model in training can be sampled. `batch_size` counts rows. With `static_cache` transformers' compiled decoding is
    used: many times faster for large models on a GPU, after half a minute of compiling for every new shape.
    Raises UsageError for a source that cannot be loaded.
    """

    def __init__(
        self,
        source: str | Path | tuple[Any, Any],
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | None = None,
        *,
        style: Style | None = None,
        static_cache: bool = False,
    ) -> None:
        if isinstance(source, tuple):
            self._model, self._tokenizer = source
            self.name = getattr(self._model, "name_or_path", "") or "in memory"
            self.style: Style = style or "full"
        else:
            self.name = str(source)
            self.style = style or prompt_style(source)
            self._model, self._tokenizer = load(str(source), device, dtype)
        on_cpu = self._model.device.type == "cpu"
        self._batch_size = batch_size or (_ROWS_ON_CPU if on_cpu else _ROWS_ON_GPU)
        self._static_cache = static_cache

    def sample(
        self,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        progress: Progress | None = None,
        drawn: Drawn | None = None,
    ) -> list[list[Completion]]:
        """`n` completions of every prompt. A prompt that fills the whole context gets empty, cut-off completions."""
        encoded = [self._encode(prompt) for prompt in prompts]
        groups: list[list[Completion]] = [[] for _ in prompts]
        generator = self._generator(sampling.seed)
        count = _Counter(progress, len(prompts) * n)
        for batch in _batches([len(ids) for ids in encoded], n, self._batch_size):
            found: dict[int, Completion] = {}
            begun = {i: len(groups[i]) for i in batch.indices}

            def on_row(number: int, row: Row, batch: _Batch = batch, found: Any = found, begun: Any = begun) -> None:
                found[number] = self._completion(row)
                prompt = batch.indices[number // batch.copies]
                if drawn:
                    drawn(prompt, begun[prompt] + number % batch.copies, found[number])
                count.one_more()

            self._decode([encoded[i] for i in batch.indices], batch.copies, sampling, generator, on_row)
            for number in range(batch.rows):
                groups[batch.indices[number // batch.copies]].append(found[number])
        return groups

    def close(self) -> None:
        """Free the weights, unless somebody else holds them too."""
        import torch

        self._model = self._tokenizer = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _encode(self, prompt: Prompt) -> list[int]:
        text = render(self._tokenizer, prompt)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) or [self._pad_id]

    def _decode(self, prompts: list[list[int]], copies: int, sampling: Sampling, generator: Any, on_row: OnRow) -> None:
        from kernelzero.policy.decode import Draw, Row, decode, decode_static

        max_tokens = min(sampling.max_tokens, self._context - max(len(ids) for ids in prompts))
        draw = Draw(sampling.temperature, sampling.top_p, generator)
        limits: dict[str, Any] = {"max_tokens": max_tokens, "end_ids": self._end_ids, "pad_id": self._pad_id}
        if max_tokens >= 1 and not self._static_cache:
            decode(self._model, prompts, copies, draw=draw, on_row=on_row, **limits)
            return
        rows = [Row([], False, [])] * (len(prompts) * copies)
        if max_tokens >= 1:
            rows = decode_static(self._model, prompts, copies, draw=draw, **limits)
        for number, row in enumerate(rows):
            on_row(number, row)

    def _completion(self, row: Row) -> Completion:
        # Tidying up spaces would change the program.
        text = self._tokenizer.decode(row.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return Completion(text, len(row.ids), Finish.STOP if row.ended else Finish.LENGTH)

    def _generator(self, seed: int | None) -> Any:
        import torch

        generator = torch.Generator(device=self._model.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return generator

    @property
    def _end_ids(self) -> list[int]:
        configured = self._model.generation_config.eos_token_id
        ids = configured if isinstance(configured, list | tuple) else [configured]
        return sorted({i for i in [*ids, self._tokenizer.eos_token_id] if i is not None})

    @property
    def _pad_id(self) -> int:
        candidates = [self._tokenizer.pad_token_id, self._tokenizer.eos_token_id, 0]
        return next(i for i in candidates if i is not None)

    @property
    def _context(self) -> int:
        return getattr(self._model.config, "max_position_embeddings", None) or 1 << 30


def load(source: str, device: str | None = None, dtype: str | None = None) -> tuple[Any, Any]:
    """Model and tokenizer of a folder or hub id, float32 on a CPU, bfloat16 on a GPU unless said otherwise."""
    check_folder(source)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device {device}: this machine has no CUDA GPU")
    kind = getattr(torch, dtype) if dtype else (torch.float32 if device == "cpu" else torch.bfloat16)
    place = str(Path(source).expanduser()) if Path(source).expanduser().is_dir() else source
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
        model: Any = AutoModelForCausalLM.from_pretrained(place, dtype=kind)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        # What transformers raises for an unknown id, a broken file and an architecture it does not know.
        raise UsageError(f"cannot load model {source}: {first_line(error)}") from error
    return model.to(device).eval(), tokenizer


def check_folder(source: str) -> None:
    """Say what is missing from a folder before transformers does in ten lines."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if folder.exists():
            raise UsageError(f"not a model folder: {source}")
        if source.startswith(("/", ".", "~")) or source.count("/") > 1 or source.endswith("/") or not source:
            raise UsageError(f"no such model folder: {source}")
        return
    if (folder / "adapter_config.json").is_file():  # transformers loads its base model, and then the adapter
        return
    if not (folder / "config.json").is_file():
        raise UsageError(f"model folder {source} has no config.json")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise UsageError(f"model folder {source} has no tokenizer")
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        raise UsageError(f"model folder {source} has no weights")


def render(tokenizer: Any, prompt: Prompt) -> str:
    """The prompt as the model reads it, by its chat template; without one the messages below each other."""
    if not tokenizer.chat_template:
        return "\n\n".join(message["content"] for message in prompt.messages) + "\n\n"
    return tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, tokenize=False)


def _batches(lengths: Sequence[int], n: int, rows: int) -> Iterator[_Batch]:
    """Cut the work into batches of at most `rows` rows, the longest prompts first: memory runs out early or never."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    per_batch = max(1, rows // max(n, 1))
    for start in range(0, len(order), per_batch):
        for first in range(0, n, rows):
            yield _Batch(order[start : start + per_batch], min(rows, n - first))


class _Counter:
    """Counts completions for `progress`, a step at a time."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def one_more(self) -> None:
        self._done += 1
        if self._progress:
            self._progress(self._done, self._total)


def first_line(error: Exception) -> str:
    """The first line of an error that says anything."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
