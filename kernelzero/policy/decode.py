"""Batched decoding of a transformers causal language model, made for many short samples on few cores.

Against `model.generate` it reads each distinct prompt once however many samples are drawn from it, keeps keys and
values in buffers that grow by halves instead of being copied at every token, and drops rows as they finish. Not
covered: beam search, penalties, models that are not decoder-only. Imports torch: import this module late.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_KEEP_ABOVE = 0.8
"""Share of live rows at which finished ones are dropped: dropping copies the cache, keeping costs idle rows."""


@dataclass(frozen=True)
class Draw:
    """How the next token is drawn."""

    temperature: float
    top_p: float
    generator: torch.Generator


@dataclass(frozen=True)
class Row:
    """One sample."""

    ids: list[int]
    """Token ids, without the end token."""
    ended: bool
    """Whether it ended by itself."""
    logps: list[float]
    """Log-probability of each token under the distribution that it was drawn from, the end token's last where the row
    ended; empty where the decoder does not say."""


OnRow = Callable[[int, Row], None]
"""Called with the row's number and the row."""


class GrowingLayer(DynamicLayer):
    """A cache layer whose `keys` and `values` are views of larger buffers, shapes (batch, heads, length, head size)."""

    _buffers: tuple[torch.Tensor, ...]
    _length: int

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Append the new states in place and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._length, self._buffers = 0, (key_states[:, :, :0], value_states[:, :, :0])
        end = self._length + key_states.shape[2]
        if end > self._buffers[0].shape[2]:
            self._buffers = tuple(self._grown(buffer, end) for buffer in self._buffers)
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, self._length : end] = new
        self._length = end
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the given rows, in the given order; a row may be taken several times."""
        self._buffers = tuple(buffer.index_select(0, indices) for buffer in self._buffers)
        self.keys, self.values = (buffer[:, :, : self._length] for buffer in self._buffers)

    def _grown(self, buffer: torch.Tensor, needed: int) -> torch.Tensor:
        batch, heads, _, size = buffer.shape
        larger = buffer.new_empty(batch, heads, needed + max(64, needed // 2), size)
        larger[:, :, : self._length] = buffer[:, :, : self._length]
        return larger


def empty_cache(model: Any) -> Any:
    """A cache for the model: growing buffers for ordinary attention, what transformers chooses for anything else."""
    cache = DynamicCache(config=model.config)
    if cache.layers and all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [GrowingLayer() for _ in cache.layers]
    return cache


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout, and with a cache: gradient checkpointing silently drops it in training mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    copies: int,
    *,
    max_tokens: int,
    end_ids: Sequence[int],
    pad_id: int,
    draw: Draw,
    on_row: OnRow = lambda number, row: None,
) -> list[Row]:
    """`copies` samples of every prompt; row p * copies + c is sample c of prompt p.

    `on_row` is called once a row: as soon as it has ended, or at the end.
    """
    # no_grad, not inference_mode: a model in training may keep a tensor made here and need it for its next backward.
    with evaluating(model):
        state = _Rows(model, prompts, copies, max_tokens, end_ids, pad_id)
        logits = state.read_prompts()
        for step in range(max_tokens):
            for number in state.append(*_draw(logits, draw)):
                on_row(number, state.results[number])
            if not state.live or step == max_tokens - 1:
                break
            logits = state.advance()
    for number in state.cut_off():
        on_row(number, state.results[number])
    return [state.results[number] for number in range(len(prompts) * copies)]


class _Rows:
    """The rows still being written: their cache, mask and last token, and the texts of all rows so far."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], copies: int, longest: int, end_ids: Sequence[int],
        pad_id: int,
    ) -> None:  # fmt: skip
        self._model, self._copies, self._device = model, copies, model.device
        # Newer versions of transformers call this argument "cache"; adapters hide the signature.
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        cache_name = "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
        self._cache = empty_cache(model)
        self._cached = {cache_name: self._cache}
        length = max(len(prompt) for prompt in prompts)
        padded = [[pad_id] * (length - len(prompt)) + list(prompt) for prompt in prompts]
        self._ids = torch.tensor(padded, device=self._device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        self._mask = torch.arange(length, device=self._device) >= length - lengths[:, None]
        self._end_ids = torch.tensor(sorted(end_ids), dtype=torch.long, device=self._device)
        total = len(prompts) * copies
        self._rows = torch.arange(total, device=self._device)
        self._alive = torch.ones(total, dtype=torch.bool, device=self._device)
        self._texts = torch.empty(total, longest, dtype=torch.long, device=self._device)
        self._logps = torch.empty(total, longest, dtype=torch.float32, device=self._device)
        self._written, self.live = 0, total
        self.results: dict[int, Row] = {}

    def read_prompts(self) -> torch.Tensor:
        """Read every distinct prompt once, then repeat; next-token logits of shape (rows, vocabulary)."""
        positions = (self._mask.long().cumsum(1) - 1).clamp(min=0)
        logits = self._forward(self._ids, positions)
        rows = torch.arange(len(self._ids), device=self._device).repeat_interleave(self._copies)
        self._select(rows)
        self._positions = positions[rows, -1:]
        return logits[rows]

    def append(self, tokens: torch.Tensor, logps: torch.Tensor) -> list[int]:
        """Take the drawn tokens and their log-probabilities, shapes (rows,); the numbers of the rows that ended."""
        self._texts[self._rows, self._written], self._logps[self._rows, self._written] = tokens, logps
        self._written += 1
        self._ids = tokens[:, None]
        ends = torch.isin(tokens, self._end_ids) & self._alive
        self._alive &= ~ends
        live = int(self._alive.sum())
        if live == self.live:
            return []
        self.live = live
        return self._take(self._rows[ends], ended=True)

    def cut_off(self) -> list[int]:
        """Take the rows that have not ended as they are; their numbers."""
        return self._take(self._rows[self._alive], ended=False)

    def advance(self) -> torch.Tensor:
        """Logits for the token after the ones just taken; finished rows are dropped when they have become many."""
        if self.live < _KEEP_ABOVE * len(self._rows):
            keep = self._alive.nonzero()[:, 0]
            self._select(keep)
            self._rows, self._ids, self._positions = self._rows[keep], self._ids[keep], self._positions[keep]
            self._alive = self._alive[keep]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        self._positions = self._positions + 1
        return self._forward(self._ids, self._positions)

    def _take(self, rows: torch.Tensor, ended: bool) -> list[int]:
        numbers: list[int] = rows.tolist()
        texts, logps = (kept[rows, : self._written].tolist() for kept in (self._texts, self._logps))
        for number, text, values in zip(numbers, texts, logps, strict=True):
            self.results[number] = Row(text[:-1] if ended else text, ended, values)
        return numbers

    def _select(self, rows: torch.Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self._mask = self._mask[rows]

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            **self._cached,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()


def _draw(logits: torch.Tensor, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and their log-probabilities, both of shape (rows,), for logits of shape (rows, vocabulary)."""
    if draw.temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, torch.zeros_like(tokens, dtype=torch.float32)
    probabilities = torch.softmax(logits / draw.temperature, -1)
    if draw.top_p < 1:
        probabilities = nucleus(probabilities, draw.top_p)
    # By inverting the cumulative distribution: one random number a row instead of multinomial's one a token.
    cumulative = probabilities.double().cumsum(-1)
    shape, device = (len(logits), 1), logits.device
    uniform = torch.rand(shape, dtype=torch.float64, device=device, generator=draw.generator) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, uniform, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    drawn = probabilities.gather(1, tokens[:, None])[:, 0]
    return tokens, (drawn / cumulative[:, -1]).log().float()


def nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero all but the smallest set of most probable tokens that together reach `top_p` (Holtzman et al., 2020)."""
    ordered, order = probabilities.sort(-1, descending=True)
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0)
    return torch.zeros_like(probabilities).scatter(-1, order, ordered)


def decode_static(
    model: Any,
    prompts: Sequence[Sequence[int]],
    copies: int,
    *,
    max_tokens: int,
    end_ids: Sequence[int],
    pad_id: int,
    draw: Draw,
) -> list[Row]:
    """As `decode`, by `model.generate` with a static cache, which transformers compiles on a GPU."""
    length = max(len(prompt) for prompt in prompts)
    rows = [prompt for prompt in prompts for _ in range(copies)]
    ids = torch.tensor([[pad_id] * (length - len(row)) + list(row) for row in rows], device=model.device)
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows], device=model.device)
    how: dict[str, Any] = {"do_sample": False}
    if draw.temperature > 0:
        how = {"do_sample": True, "temperature": draw.temperature, "top_p": draw.top_p, "top_k": 0}
    ends = list(end_ids) or None
    devices = [model.device] if model.device.type == "cuda" else []
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(int(torch.randint(2**31, (), generator=draw.generator, device=model.device)))
        written = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            eos_token_id=ends,
            pad_token_id=pad_id,
            cache_implementation="static",
            **how,
        )
    return [_until_end(row, set(end_ids)) for row in written[:, length:].tolist()]


def _until_end(tokens: list[int], ends: set[int]) -> Row:
    end = next((i for i, token in enumerate(tokens) if token in ends), None)
    return Row(tokens, False, []) if end is None else Row(tokens[:end], True, [])
