"""Completions from vLLM on a GPU of this machine: a model folder, a hub id, or the folder of a low-rank adapter.

vLLM's engine runs in a process of its own, so that `close` gives back all of the GPU's memory that it took. Each sample
is a request of its own: vLLM hands out the samples of one request only when the last of them has ended. Finish reasons
and token counts are exact, as in `policy.hf`. Not covered: several GPUs, use an endpoint for that.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.policy.base import Drawn, Progress, Style
from kernelzero.policy.hf import TOKENIZER_FILES, check_folder, first_line, render
from kernelzero.policy.profile import prompt_style
from kernelzero.records import Completion, Finish, Prompt, Sampling

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The adapter ranks that vLLM can be started with; a smaller adapter fits into a larger one."""
_UNSUPPORTED = ("modules_to_save", "use_dora", "rank_pattern", "alpha_pattern")
"""Settings of an adapter that vLLM refuses or, worse, ignores."""
_GIB = 1 << 30


@dataclass(frozen=True)
class _Source:
    """Where the parts of a model lie: folders or hub ids."""

    model: str
    tokenizer: str
    adapter: str | None = None
    rank: int = 0


class VllmSampler:
    """Samples a model through vLLM, with its prefix cache on, so that n samples read their prompt once.

    `gpu_memory_utilization` is the share of the card, 0 to 1, that weights and cache take together; `batch_size` counts
    the samples drawn at once and is vLLM's own choice by default. With a seed every sample has its own, made of
    `sampling.seed` and its place; logits still depend a little on which samples share a batch, so two runs can differ
    where two tokens are equally likely. One call at a time. Raises UsageError for a model that cannot be loaded, a
    missing GPU and too little memory, InfrastructureError when the engine dies.
    """

    def __init__(
        self,
        source: str | Path,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | None = None,
        *,
        style: Style | None = None,
        gpu_memory_utilization: float = 0.9,
    ) -> None:
        _check_machine(device)
        self.name = str(source)
        self.style: Style = style or prompt_style(source)
        parts = _find(self.name)
        self._tokenizer, self._end_ids, own_context = _read(parts, self.name)
        self._engine = _start(parts, self.name, dtype or "bfloat16", batch_size, gpu_memory_utilization)
        try:
            self._lora = _load_adapter(self._engine, parts)
        except UsageError:
            self.close()
            raise
        self._own_context = own_context
        self._context = min(own_context, self._engine.model_config.max_model_len)
        self._waiting: dict[str, tuple[int, int]] = {}
        self._requests, self._asleep = 0, False

    def sample(
        self,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        progress: Progress | None = None,
        drawn: Drawn | None = None,
    ) -> list[list[Completion]]:
        """`n` completions of every prompt. A prompt that fills the whole context gets empty, cut-off completions."""
        found: dict[tuple[int, int], Completion] = {}
        for prompt, number, completion in self._draw(prompts, n, sampling):
            found[prompt, number] = completion
            if drawn:
                drawn(prompt, number, completion)
            if progress:
                progress(len(found), len(prompts) * n)
        return [[found[prompt, number] for number in range(n)] for prompt in range(len(prompts))]

    def sample_stream(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Each completion with its prompt's number as soon as it has ended; closing the iterator drops the rest."""
        for prompt, _, completion in self._draw(prompts, n, sampling):
            yield prompt, completion

    def sleep(self) -> None:
        """Give the GPU's memory back for a while. The weights move to main memory, the cache is dropped."""
        self._check_idle()
        if not self._asleep:
            self._engine.sleep(level=1)
            self._asleep = True

    def wake(self) -> None:
        """Take the memory again after `sleep`; sampling does it by itself."""
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def close(self) -> None:
        """End the engine's process, and with it all memory that it held."""
        if self._engine is not None:
            self._engine.engine_core.shutdown()
        self._engine = self._tokenizer = None

    def _draw(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        """Every completion with the numbers of its prompt and of the sample, in the order in which they end."""
        from vllm.v1.engine.exceptions import EngineDeadError

        self._check_idle()
        encoded = [self._encode(prompt) for prompt in prompts]
        self._check_context(max((len(ids) for ids in encoded), default=0), sampling)
        try:
            self.wake()
            for prompt, ids in enumerate(encoded):
                for number in range(n):
                    self._request(ids, prompt, number, sampling)
            yield from self._without_room(encoded, n, sampling)
            while self._waiting:
                for output in self._engine.step():
                    if place := self._waiting.pop(output.request_id, None):
                        yield *place, self._completion(output.outputs[0])
        except EngineDeadError as error:
            self._waiting.clear()
            raise InfrastructureError(f"{self.name}: vLLM's engine died, its own lines above say why") from error
        finally:
            if self._waiting and self._engine is not None:
                self._engine.abort_request(list(self._waiting))
            self._waiting.clear()

    def _request(self, ids: list[int], prompt: int, number: int, sampling: Sampling) -> None:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        room = self._room(ids, sampling)
        if room < 1:
            return
        how = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=room,
            seed=_seed(sampling.seed, prompt, number),
            stop_token_ids=self._end_ids,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._requests += 1
        name = str(self._requests)
        self._engine.add_request(name, tokens_input(ids), how, lora_request=self._lora)
        self._waiting[name] = (prompt, number)

    def _without_room(
        self, encoded: Sequence[list[int]], n: int, sampling: Sampling
    ) -> Iterator[tuple[int, int, Completion]]:
        for prompt, ids in enumerate(encoded):
            if self._room(ids, sampling) < 1:
                yield from ((prompt, number, Completion("", 0, Finish.LENGTH)) for number in range(n))

    def _room(self, ids: Sequence[int], sampling: Sampling) -> int:
        return min(sampling.max_tokens, self._context - len(ids))

    def _encode(self, prompt: Prompt) -> list[int]:
        text = render(self._tokenizer, prompt)
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        blank = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id, 0)
        return ids or [next(i for i in blank if i is not None)]

    def _completion(self, output: Any) -> Completion:
        if output.finish_reason not in ("stop", "length"):
            raise InfrastructureError(f"{self.name}: vLLM gave up a request ({output.finish_reason})")
        ids, stopped = list(output.token_ids), output.finish_reason == "stop"
        if stopped and ids and ids[-1] in self._end_ids:
            ids.pop()
        # Tidying up spaces would change the program.
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return Completion(text, len(ids), Finish.STOP if stopped else Finish.LENGTH)

    def _check_idle(self) -> None:
        if self._waiting:
            raise RuntimeError("this sampler is still drawing: use up or close the open stream first")

    def _check_context(self, longest: int, sampling: Sampling) -> None:
        """vLLM shortens the context to what fits into memory; completions cut by that would look like the model's."""
        wanted = min(longest + sampling.max_tokens, self._own_context)
        if self._context < wanted:
            raise UsageError(
                f"{self.name}: prompt and answer take up to {wanted} tokens, and vLLM has room for "
                f"{self._context}: raise gpu_memory_utilization, or lower max_tokens"
            )


def vllm_can_run(device: str | None = None) -> bool:
    """Whether vLLM is installed and has a GPU to run on."""
    if (device or "cuda") != "cuda" or importlib.util.find_spec("vllm") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _check_machine(device: str | None) -> None:
    """Whether vLLM can run, without importing it, which takes seconds."""
    if importlib.util.find_spec("vllm") is None:
        raise UsageError("vLLM is not installed: pip install kernelzero[vllm]")
    if (device or "cuda") != "cuda":
        raise UsageError(
            f"vLLM cannot run on device {device}: use the GPU that CUDA_VISIBLE_DEVICES names, or transformers"
        )
    if not vllm_can_run(device):
        raise UsageError("vLLM needs a CUDA GPU, and this machine has none: use the engine transformers")


def _find(source: str) -> _Source:
    """The parts of a model folder, a hub id, or an adapter's folder."""
    folder = Path(source).expanduser()
    if not (folder / "adapter_config.json").is_file() or (folder / "config.json").is_file():
        check_folder(source)
        place = str(folder) if folder.is_dir() else source
        return _Source(place, place)
    base, rank = _read_adapter(folder)
    check_folder(base)
    base = str(Path(base).expanduser()) if Path(base).expanduser().is_dir() else base
    own_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
    return _Source(base, str(folder) if own_tokenizer else base, str(folder.resolve()), rank)


def _read_adapter(folder: Path) -> tuple[str, int]:
    """Base model and rank of a peft adapter."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        base, rank = str(settings["base_model_name_or_path"]), int(settings["r"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / 'adapter_config.json'} does not name a base model and a rank") from error
    odd = [name for name in _UNSUPPORTED if settings.get(name)]
    odd += ["bias"] if settings.get("bias", "none") != "none" else []
    if odd or rank > _RANKS[-1]:
        what = ", ".join(odd) or f"rank {rank}"
        raise UsageError(f"vLLM cannot apply adapter {folder} ({what}): merge it into its base model first")
    return base, rank


def _read(parts: _Source, name: str) -> tuple[Any, list[int], int]:
    """Tokenizer, all tokens that end an answer, and the model's context in tokens."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(parts.tokenizer)
        config = AutoConfig.from_pretrained(parts.model)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"cannot load model {name}: {first_line(error)}") from error
    try:
        generation = GenerationConfig.from_pretrained(parts.model)
    except OSError:
        # The file is optional.
        generation = GenerationConfig.from_model_config(config)
    configured = generation.eos_token_id
    ids = configured if isinstance(configured, list | tuple) else [configured]
    ends = sorted({i for i in [*ids, tokenizer.eos_token_id] if i is not None})
    return tokenizer, ends, getattr(config, "max_position_embeddings", None) or 1 << 30


def _start(parts: _Source, name: str, dtype: str, batch_size: int | None, share: float) -> Any:
    """The engine, in a process of its own."""
    if not 0 < share <= 1:
        raise UsageError(f"gpu_memory_utilization is {share}, expected a share of the card above 0 and up to 1")
    # A fork of a process that has looked for GPUs cannot use them.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import EngineArgs, LLMEngine
    from vllm.usage.usage_lib import UsageContext

    options: dict[str, Any] = {"model": parts.model, "tokenizer": parts.tokenizer, "dtype": dtype}
    # The longest context that fits; what a call needs is checked at the call.
    options |= {"gpu_memory_utilization": share, "max_model_len": -1, "enable_prefix_caching": True}
    options |= {"enable_sleep_mode": True, "disable_log_stats": True}
    if batch_size:
        options["max_num_seqs"] = batch_size
    if parts.adapter:
        rank = next(rank for rank in _RANKS if rank >= parts.rank)
        options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    try:
        # Training beside us may have told vLLM, by the environment, to stay inside this process.
        return LLMEngine.from_engine_args(
            EngineArgs(**options), usage_context=UsageContext.LLM_CLASS, enable_multiprocessing=True
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"vLLM cannot load model {name}: {first_line(error)}") from error
    except RuntimeError as error:
        raise UsageError(_why_not_started(name, share)) from error


def _why_not_started(name: str, share: float) -> str:
    """vLLM's process only logs its reason; too little memory can be seen from here."""
    import torch

    free, total = torch.cuda.mem_get_info()
    if free < share * total:
        return (
            f"too little GPU memory for {name}: gpu_memory_utilization = {share:g} asks for {share * total / _GIB:.1f} "
            f"GiB and {free / _GIB:.1f} are free: lower it, or end what else uses the GPU"
        )
    return (
        f"vLLM cannot load model {name}, its own lines above say why; if memory ran out, raise gpu_memory_utilization"
    )


def _load_adapter(engine: Any, parts: _Source) -> Any:
    """The request that has the adapter applied, which is loaded now; None without one."""
    if parts.adapter is None:
        return None
    from vllm.lora.request import LoRARequest

    request = LoRARequest("adapter", 1, parts.adapter)
    try:
        engine.add_lora(request)
    except Exception as error:
        # What vLLM raises for every failure in its own process.
        raise UsageError(f"vLLM cannot apply adapter {parts.adapter}: {first_line(error)}") from error
    return request


def _seed(seed: int | None, prompt: int, number: int) -> int | None:
    """A seed of 63 bits for one sample: neighbouring samples and neighbouring seeds have nothing in common."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed} {prompt} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
