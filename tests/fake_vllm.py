"""The part of vLLM that KernelZero uses, on a CPU: a real model, decoded a token a step, by the rules of vLLM 0.22.

`Vllm(monkeypatch)` puts it in the place of the package and keeps what it was asked to do.
"""

from __future__ import annotations

import enum
import sys
import types
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class EngineDeadError(Exception):
    """The engine's process has ended."""


class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class UsageContext(enum.StrEnum):
    LLM_CLASS = "LLM_CLASS"


@dataclass
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = 16
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}.")
        if self.temperature == 0 and self.n > 1:
            raise ValueError(f"n must be 1 when using greedy sampling, got {self.n}.")
        self.seed = None if self.seed == -1 else self.seed


@dataclass
class EngineArgs:
    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    gpu_memory_utilization: float = 0.92
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    enable_prefix_caching: bool | None = None
    enable_sleep_mode: bool = False
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    disable_log_stats: bool = False


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None


@dataclass
class RequestOutput:
    request_id: str
    outputs: list[CompletionOutput]
    finished: bool


@dataclass
class Running:
    """A request under way."""

    name: str
    prompt: list[int]
    how: SamplingParams
    lora: LoRARequest | None
    generator: torch.Generator
    written: list[int] = field(default_factory=list)


class EngineCore:
    def __init__(self) -> None:
        self.dead = False

    def shutdown(self, timeout: float | None = None) -> None:
        self.dead = True


class LLMEngine:
    """Requests in, tokens out; what a real engine would wait for for ever is an assertion here."""

    vllm: Vllm

    def __init__(self, args: EngineArgs) -> None:
        self.args, self.engine_core = args, EngineCore()
        self.asleep, self.aborted, self.steps = False, list[str](), 0
        self.requests: list[Running] = []
        self.loras: dict[int, Any] = {}
        self._network = AutoModelForCausalLM.from_pretrained(args.model).eval()
        self._end = AutoTokenizer.from_pretrained(args.tokenizer or args.model).eos_token_id
        own = self._network.config.max_position_embeddings
        assert args.max_model_len in (-1, None)
        self.model_config = types.SimpleNamespace(max_model_len=min(own, self.vllm.fits))
        self._queue: list[Running] = []

    @classmethod
    def from_engine_args(
        cls, engine_args: EngineArgs, usage_context: UsageContext, enable_multiprocessing: bool = False
    ) -> LLMEngine:
        assert enable_multiprocessing, "only a process of its own gives all memory back"
        if cls.vllm.fails:
            raise cls.vllm.fails
        cls.vllm.engines.append(cls(engine_args))
        return cls.vllm.engines[-1]

    def add_lora(self, lora_request: LoRARequest) -> bool:
        import peft

        assert self.args.enable_lora
        if not (Path(lora_request.lora_path) / "adapter_model.safetensors").is_file():
            raise Exception("Call to add_lora method failed: Loading lora failed\nNo adapter found")
        base = AutoModelForCausalLM.from_pretrained(self.args.model)
        self.loras[lora_request.lora_int_id] = peft.PeftModel.from_pretrained(
            base, lora_request.lora_path, torch_device="cpu"
        ).eval()
        return True

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams, lora_request: Any = None) -> str:
        self._check_alive()
        ids = prompt["prompt_token_ids"]
        assert prompt["type"] == "token" and isinstance(request_id, str) and params.n == 1
        if not ids or len(ids) >= self.model_config.max_model_len:
            raise ValueError(f"The decoder prompt (length {len(ids)}) is empty or too long")
        generator = torch.Generator()
        generator.seed() if params.seed is None else generator.manual_seed(params.seed)
        self.requests.append(Running(request_id, list(ids), params, lora_request, generator))
        self._queue.append(self.requests[-1])
        return f"{request_id}-1234abcd"

    def step(self) -> list[RequestOutput]:
        self._check_alive()
        assert self._queue, "a real engine would wait here for ever"
        assert not self.asleep, "a real engine would wait here for ever"
        self.steps += 1
        outputs = []
        batch = self._queue[: self.args.max_num_seqs or 256]
        for running, logits in self._forward(batch):
            reason = self._advance(running, logits)
            if reason is None:
                continue
            self._queue.remove(running)
            assert running.how.output_kind is RequestOutputKind.FINAL_ONLY and not running.how.detokenize
            output = CompletionOutput(0, "", running.written, self.vllm.reason or reason)
            outputs.append(RequestOutput(running.name, [output], True))
        return outputs

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        self._queue = [running for running in self._queue if running.name not in request_ids]

    def sleep(self, level: int = 1) -> None:
        assert self.args.enable_sleep_mode and level == 1 and not self._queue
        self.asleep = True

    def wake_up(self) -> None:
        self.asleep = False

    def _check_alive(self) -> None:
        if self.engine_core.dead or self.steps >= self.vllm.dies_at:
            raise EngineDeadError("EngineCore encountered an issue. See stack trace (above) for the root cause.")

    @torch.no_grad()
    def _forward(self, batch: list[Running]) -> list[tuple[Running, torch.Tensor]]:
        """The next token's logits; texts of one length go together, so that nothing is padded."""
        groups: dict[tuple[int, int], list[Running]] = {}
        for running in batch:
            kind = running.lora.lora_int_id if running.lora else 0
            groups.setdefault((kind, len(running.prompt) + len(running.written)), []).append(running)
        found = []
        for (kind, _), rows in groups.items():
            network = self.loras[kind] if kind else self._network
            ids = torch.tensor([running.prompt + running.written for running in rows])
            found += list(zip(rows, network(input_ids=ids, logits_to_keep=1).logits[:, -1], strict=True))
        return found

    def _advance(self, running: Running, logits: torch.Tensor) -> str | None:
        """Draw one token; why the request ended by it, in the order in which vLLM looks."""
        if running.how.temperature:
            probabilities = torch.softmax(logits / running.how.temperature, -1)
            logits = probabilities / torch.empty_like(probabilities).exponential_(generator=running.generator)
        running.written.append(int(logits.argmax()))
        if running.written[-1] in [self._end, *(running.how.stop_token_ids or ())]:
            return "stop"
        full = len(running.prompt) + len(running.written) >= self.model_config.max_model_len
        return "length" if full or len(running.written) >= (running.how.max_tokens or 1 << 30) else None


class Vllm:
    """The installed fake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engines: list[LLMEngine] = []
        self.fits = 1 << 30
        """Tokens of context for which there is memory."""
        self.fails: Exception | None = None
        """What the start of an engine raises."""
        self.dies_at = 1 << 30
        """The step at which the engine's process dies."""
        self.reason: str | None = None
        """A finish reason in the place of the true one."""
        engine = type("LLMEngine", (LLMEngine,), {"vllm": self})
        names: dict[str, dict[str, Any]] = {
            "vllm": {"EngineArgs": EngineArgs, "LLMEngine": engine, "SamplingParams": SamplingParams},
            "vllm.inputs": {"tokens_input": lambda ids: {"type": "token", "prompt_token_ids": ids}},
            "vllm.sampling_params": {"RequestOutputKind": RequestOutputKind},
            "vllm.lora": {},
            "vllm.lora.request": {"LoRARequest": LoRARequest},
            "vllm.usage": {},
            "vllm.usage.usage_lib": {"UsageContext": UsageContext},
            "vllm.v1": {},
            "vllm.v1.engine": {},
            "vllm.v1.engine.exceptions": {"EngineDeadError": EngineDeadError},
        }
        for name, content in names.items():
            module = types.ModuleType(name)
            module.__spec__, module.__path__ = ModuleSpec(name, None, is_package=True), []
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
