"""Real stand-ins for the things outside a run: a tiny model, a Keck that judges by the text, a sampler without a model.

None of them draws random numbers of its own: equal input, equal answer, in every process.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelzero.config import Config, parse_config
from kernelzero.judging import Services
from kernelzero.policy.base import tell_group
from kernelzero.records import (
    ApiSet,
    Basis,
    Candidate,
    Completion,
    Extraction,
    Finish,
    GateReport,
    Prompt,
    Sampling,
    Status,
    Task,
    Timing,
    Verdict,
)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def number_of(*parts: str) -> int:
    """A number from texts, the same on every machine."""
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:4], "little")


def make_tiny_model(folder: Path, seed: int = 0, second_eos: str = "<|endoftext|>") -> Path:
    """A random Qwen2 of one layer with a byte-level tokenizer, saved to a folder; about 30 thousand weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
    raw = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(second_eos)]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class FakeKeck:
    """Judges by the text: a hash of task and candidate decides, so groups come out mixed.

    A source that contains a status's name gets that status.
    """

    def __init__(self) -> None:
        self.judged = 0
        self.gated = 0

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """Verdicts, last job first: whoever relies on order fails."""
        for i, (task, candidate) in reversed(list(enumerate(jobs))):
            self.judged += 1
            yield i, self._verdict(task, candidate, timed)

    def gate(self, jobs: Sequence[tuple[ApiSet, str]]) -> Iterator[tuple[int, GateReport]]:
        """Three of four modules are valid."""
        for i, (api_set, source) in reversed(list(enumerate(jobs))):
            self.gated += 1
            if "infra_error" in source:
                yield i, GateReport(None, "run", "the judge was not to be had")
            elif number_of(api_set.id, source) % 4:
                yield i, GateReport(True, "", "valid")
            else:
                yield i, GateReport(False, "run", "refused by a fake")

    def _verdict(self, task: Task, candidate: Candidate, timed: bool) -> Verdict:
        number = number_of(task.source, candidate.source)
        named = next((s for s in Status if s.value in candidate.source and s is not Status.CORRECT), None)
        status = named or (Status.CORRECT if number % 2 else Status.INCORRECT)
        timing = None
        if timed and status is Status.CORRECT:
            speedup = 1.0 + number % 7 / 10
            timing = Timing(Basis.MODELLED, speedup, 1.0, speedup, speedup, speedup)
        return Verdict(status, "judged by a fake", "fake", candidate.backend, timing, timed)


class FakeSampler:
    """Answers without a model: text from a hash of prompt, number and seed, always ended by itself."""

    style = "compact"

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.closed = False

    def sample(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Any = None, drawn: Any = None
    ) -> list[list[Completion]]:
        """n completions a prompt."""
        groups = [[self._completion(prompt, i, sampling) for i in range(n)] for prompt in prompts]
        for number, group in enumerate(groups):
            tell_group(drawn, number, group)
        return groups

    def close(self) -> None:
        """Remembered, nothing to let go of."""
        self.closed = True

    def _completion(self, prompt: Prompt, i: int, sampling: Sampling) -> Completion:
        text = f"kernel {number_of(str(prompt.messages), str(i), str(sampling.seed))}"
        return Completion(text, len(text), Finish.STOP)


def read_anything(text: str, finish: Finish) -> Extraction:
    """Any answer but an empty one is code."""
    return Extraction(text, "") if text.strip() else Extraction(None, "the answer is empty")


def fake_services(model_path: str, keck: FakeKeck | None = None, **changes: Any) -> Services:
    """Services without Keck, prompts or a partner's model; the models that learn are real ones."""
    keck = keck or FakeKeck()
    apis = [f"torch.api_{i}" for i in range(12)]
    given: dict[str, Any] = {
        "keck": keck,
        "gate": keck.gate,
        "open_sampler": FakeSampler,
        "resolve_model": lambda name: model_path,
        "style_of": lambda path: "compact",
        "proposer_prompt": lambda api_set, style: Prompt(({"role": "user", "content": " ".join(api_set.apis)},)),
        "coder_prompt": lambda task, backend, style: Prompt(({"role": "user", "content": task.source[:40]},)),
        "read_module": read_anything,
        "read_kernel": read_anything,
        "api_pool": lambda size, seed: [ApiSet(pair) for pair in itertools.combinations(apis, 2)][:size],
        "benchmark": None,
    }
    return Services(**{**given, **changes})


def tiny_config(folder: Path, **sections: Any) -> Config:
    """Two rounds of two steps a role, a second or two each."""
    role = {"model": "tiny", "steps": 2, "max_tokens": 6, "lr": 1e-3}
    data: dict[str, Any] = {
        "run": {"name": "tiny", "folder": str(folder)},
        "rounds": {"count": 2},
        "proposer": {**role, "api_sets_per_step": 2, "group": 2, "coder_samples": 3},
        "coder": {**role, "modules_per_step": 2, "group": 3},
        "training": {"device": "cpu", "rows_per_device": 8, "mask_truncated": False},
    }
    for name, changes in sections.items():
        data[name] = {**data.get(name, {}), **changes}
    return parse_config(data)
