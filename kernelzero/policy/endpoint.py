"""Completions from any OpenAI-compatible endpoint: vLLM, llama.cpp, a provider.

Requests run side by side, are tried again on rate limits, server errors and time-outs, and end in one clear
InfrastructureError where that does not help. Seeds are passed on; whether they bind is up to the server.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from kernelzero.errors import InfrastructureError
from kernelzero.policy.base import Drawn, Progress, Style, tell_group
from kernelzero.records import Completion, Finish, Prompt, Sampling


class EndpointSampler:
    """Samples `model` behind `base_url`, e.g. "http://localhost:8000/v1". The key defaults to OPENAI_API_KEY."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        concurrency: int = 8,
        retries: int = 4,
        timeout_s: float = 600.0,
        style: Style = "full",
    ) -> None:
        import openai

        self.name = f"{base_url}#{model}"
        self.style: Style = style
        self._model, self._concurrency = model, concurrency
        # Local servers want no key, but the client insists on one.
        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        self._client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=retries, timeout=timeout_s)
        self._one_by_one = False

    def sample(
        self,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        progress: Progress | None = None,
        drawn: Drawn | None = None,
    ) -> list[list[Completion]]:
        """`n` completions of every prompt. Raises InfrastructureError when the endpoint fails for good."""
        groups: list[list[Completion]] = [[] for _ in prompts]
        if n < 1:
            return groups
        pool = ThreadPoolExecutor(self._concurrency)
        try:
            waiting = {pool.submit(self._group, prompt, n, sampling): i for i, prompt in enumerate(prompts)}
            for done, future in enumerate(as_completed(waiting), 1):
                groups[waiting[future]] = future.result()
                tell_group(drawn, waiting[future], groups[waiting[future]])
                if progress:
                    progress(done * n, len(prompts) * n)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return groups

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _group(self, prompt: Prompt, n: int, sampling: Sampling) -> list[Completion]:
        """`n` completions of one prompt: in one request where the server allows it, else in several."""
        completions: list[Completion] = []
        while len(completions) < n:
            wanted = 1 if self._one_by_one else n - len(completions)
            got = self._request(prompt, wanted, sampling, offset=len(completions))
            # A server that gives fewer choices than asked for ignores `n`.
            self._one_by_one = self._one_by_one or len(got) < wanted
            completions += got[:wanted]
        return completions

    def _request(self, prompt: Prompt, n: int, sampling: Sampling, offset: int) -> list[Completion]:
        """One request; empty where the server refuses more than one choice."""
        import openai

        try:
            answer = self._client.chat.completions.create(**self._arguments(prompt, n, sampling, offset))
        except openai.BadRequestError as error:
            if n > 1:
                return []
            raise InfrastructureError(self._failure(error)) from error
        except (openai.OpenAIError, ValueError) as error:
            # ValueError: a success that is not JSON, as proxies give.
            raise InfrastructureError(self._failure(error)) from error
        completions = _completions(answer)
        if not completions:
            raise InfrastructureError(f"{self.name} answered without any choice")
        return completions

    def _arguments(self, prompt: Prompt, n: int, sampling: Sampling, offset: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self._model,
            "messages": list(prompt.messages),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if n > 1:
            arguments["n"] = n
        if sampling.seed is not None:
            arguments["seed"] = sampling.seed + offset
        return arguments

    def _failure(self, error: Exception) -> str:
        message = " ".join(str(error).split())
        return f"{self.name}: {message[:300] or type(error).__name__}"


def _completions(answer: Any) -> list[Completion]:
    choices = getattr(answer, "choices", None) or []
    texts = [choice.message.content or "" for choice in choices]
    usage = getattr(answer, "usage", None)
    tokens = apportion(usage.completion_tokens if usage else 0, [len(text) for text in texts])
    ends = [Finish.LENGTH if choice.finish_reason == "length" else Finish.STOP for choice in choices]
    return [Completion(*parts) for parts in zip(texts, tokens, ends, strict=True)]


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split a count by weights so that the parts add up: usage counts all choices of a request together."""
    if not weights:
        return []
    whole = sum(weights)
    shares = [total * w / whole if whole else total / len(weights) for w in weights]
    parts = [int(share) for share in shares]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - shares[i])
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts
