"""Pairs of module and kernel from a corpus: our own, or what others publish as Parquet or JSONL.

A file has columns with code (`module`, `kernel`, perhaps `reasoning`, `apis`), or conversations (`prompt` and `answer`,
or `messages`), from which module, kernel and reasoning are read. Columns have the usual names or are named by the
user; "a.b" is the field b of a column a. Rows that give no pair are counted by reason, never guessed at.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.coder.extract import extract_kernel
from kernelzero.coldstart.prose import prose_before, thoughts_in
from kernelzero.errors import UsageError
from kernelzero.proposer.parse import parse_module
from kernelzero.records import Record

USUAL: dict[str, tuple[str, ...]] = {
    "module": ("module", "original_python_code", "py_code"),
    "kernel": ("kernel",),
    "reasoning": ("reasoning",),
    "apis": ("apis",),
    "prompt": ("prompt", "prompts"),
    "answer": ("answer", "completion", "response", "responses"),
    "messages": ("messages",),
}
"""Parts of a pair and the columns where they are looked for: ours, cudaLLM's (`prompts`, `responses`), Dr. Kernel's
(`messages`, `original_python_code`)."""
_FOREIGN_APIS = 3
"""Most APIs of a set that is made up for a foreign module; the paper's sets are pairs and triples."""


@dataclass(frozen=True)
class Example(Record):
    """One verified pair, or one that somebody says is."""

    module: str
    kernel: str
    reasoning: str = ""
    apis: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """What a corpus gave."""

    examples: list[Example]
    left_out: dict[str, int]
    """Rows that gave no pair, by reason."""


def load_examples(corpus: Path, columns: Mapping[str, str] | None = None) -> Loaded:
    """The pairs of a build's folder, a Parquet or a JSONL file.

    Args:
        columns: part → column, for the parts of `USUAL`.

    Raises:
        UsageError: there is no such corpus, it has none of the columns, or no row gives a pair.
    """
    chosen = dict(columns or {})
    if unknown := sorted(set(chosen) - set(USUAL)):
        raise UsageError(f"no part {unknown[0]!r} of a pair: say one of {', '.join(USUAL)}")
    examples, left_out = [], Counter[str]()
    for path in _files(corpus):
        named: dict[str, str] = {}
        for row in _rows(path):
            named = named or _columns(row, chosen, path)
            found = example_of({part: _at(row, column) for part, column in named.items()})
            if isinstance(found, Example):
                examples.append(found)
            else:
                left_out[found] += 1
    if not examples:
        why = ", ".join(f"{reason} ({n})" for reason, n in left_out.most_common(3)) or "it has no rows"
        raise UsageError(f"no pair of module and kernel in {corpus}: {why}")
    return Loaded(examples, dict(left_out.most_common()))


def example_of(parts: Mapping[str, Any]) -> Example | str:
    """One pair, or the reason why there is none."""
    asked, answered = _conversation(parts)
    module = parse_module(str(parts.get("module") or asked))
    kernel = extract_kernel(str(parts.get("kernel") or answered))
    if module.code is None:
        return f"module: {module.reason}"
    if kernel.code is None:
        return f"kernel: {kernel.reason}"
    reasoning = str(parts.get("reasoning") or prose_before(answered, kernel.code) or thoughts_in(answered))
    apis = parts.get("apis")
    return Example(module.code, kernel.code, reasoning, tuple(apis) if apis else _some_apis(module.code))


def _conversation(parts: Mapping[str, Any]) -> tuple[str, str]:
    """The last question and the last answer, as texts."""
    prompt, answer = parts.get("prompt") or "", parts.get("answer") or ""
    messages = parts.get("messages") or []
    asked = _last(messages, "user") or (prompt if isinstance(prompt, str) else _last(prompt, "user"))
    return asked, _last(messages, "assistant") or (answer if isinstance(answer, str) else _last(answer, "assistant"))


def _last(messages: Any, role: str) -> str:
    texts = [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == role]
    return str(texts[-1] or "") if texts else ""


def _some_apis(module: str) -> tuple[str, ...]:
    """A set of APIs for a module that nobody wrote for one: up to three that it calls, chosen by its content."""
    import random

    from kernelzero.coldstart.tasks import called
    from kernelzero.records import content_id

    names = called(module)
    chosen = random.Random(content_id(module)).sample(names, min(len(names), _FOREIGN_APIS))
    return tuple(sorted(chosen))


def _files(corpus: Path) -> list[Path]:
    if corpus.is_dir():
        found = sorted(corpus.glob("corpus-*.parquet")) or sorted(corpus.glob("*.parquet"))
        if not found:
            raise UsageError(f"no *.parquet in {corpus}; a build writes it at its end")
        return found
    if not corpus.is_file():
        raise UsageError(f"no such corpus: {corpus}")
    return [corpus]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path} is not JSONL, line {number}: {error}") from error
            if not isinstance(row, dict):
                raise UsageError(f"{path}, line {number}: a row is a JSON object")
            yield row


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path} is no Parquet file: {' '.join(str(error).split())[:200]}") from error
    for batch in file.iter_batches(batch_size=1024):
        yield from batch.to_pylist()


def _columns(row: Mapping[str, Any], chosen: Mapping[str, str], path: Path) -> dict[str, str]:
    """Part → column of a file, from its first row."""
    for part, column in chosen.items():
        if column.split(".")[0] not in row:
            raise UsageError(f"{path} has no column {column!r} for the {part}; it has {', '.join(sorted(row))}")
    usual = {part: next((n for n in names if n in row), "") for part, names in USUAL.items()}
    found = {part: column for part, column in {**usual, **chosen}.items() if column}
    asks, answers = {"module", "prompt", "messages"} & set(found), {"kernel", "answer", "messages"} & set(found)
    if not asks or not answers:
        raise UsageError(
            f"{path} has {', '.join(sorted(row))}: say which hold module and kernel, as in --column module=NAME"
        )
    return found


def _at(row: Mapping[str, Any], column: str) -> Any:
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def split(
    examples: Sequence[Example], held_out: int, key: Callable[[Example], Hashable], seed: int = 0
) -> tuple[list[Example], list[Example]]:
    """Training examples, and `held_out` with distinct keys of which none occurs in training.

    Args:
        key: what must not be in both parts, e.g. a module's normal form.
    """
    import random

    order = list(examples)
    random.Random(f"split {seed}").shuffle(order)
    test: dict[Hashable, Example] = {}
    for example in order:
        if len(test) < held_out:
            test.setdefault(key(example), example)
    return [example for example in order if key(example) not in test], list(test.values())
