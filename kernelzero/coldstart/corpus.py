"""Pairs of module and kernel from the composer and the rulebook, each verified by Keck before it is kept.

    draw API sets → compose → gates → write kernel → verdict → corpus.jsonl

The file is append-only and every row has the number it was drawn with, so an interrupted build goes on where it was.
Nothing that is a benchmark task by its normalised syntax tree is kept. Refusals are counted, never hidden.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.keck import Keck
from kernelzero.normalise import normalised
from kernelzero.proposer import gates
from kernelzero.records import ApiSet, Candidate, Record, Status, Task

Progress = Callable[[int, int], None]
"""Called with (draws done, draws in all)."""
CHUNK = 512


@dataclass(frozen=True)
class Pair(Record):
    """A verified pair, or the reason why a draw gave none."""

    number: int
    apis: tuple[str, ...]
    module: str = ""
    kernel: str = ""
    refusal: str = ""
    """"" for a verified pair, else the stage that did: compose, duplicate, benchmark, gate:…, write, verdict:…"""
    detail: str = ""
    speedup: float | None = None


def build_corpus(
    path: Path,
    draws: int,
    keck: Keck,
    *,
    benchmark: Sequence[Task] = (),
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[Pair]:
    """Draw `draws` API sets and keep what is verified.

    Args:
        path: JSONL that is appended to; rows that it already has are not made again.
        benchmark: tasks that must not be in the corpus.
        workers: processes that compose and write.

    Returns:
        All rows of the file, refusals too.
    """
    rows = read_corpus(path)
    done = {row.number for row in rows}
    seen = {normalised_with_numbers(row.module) for row in rows if row.module}
    forbidden = {normalised(task.source) for task in benchmark}
    missing = [n for n in range(draws) if n not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers) as pool, path.open("a", encoding="utf-8") as file:
        for start in range(0, len(missing), CHUNK):
            numbers = missing[start : start + CHUNK]
            drafts = list(pool.map(_draft, [(seed, n) for n in numbers], chunksize=8))
            for row in _verified(drafts, keck, forbidden, seen):
                rows.append(row)
                file.write(json.dumps(row.to_json()) + "\n")
            file.flush()
            if progress:
                progress(len(done) + start + len(numbers), draws)
    return rows


def read_corpus(path: Path) -> list[Pair]:
    """Rows of a corpus file; an unfinished last line is dropped from the file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [Pair.from_json(json.loads(line)) for line in whole.splitlines()]


def yield_of(rows: Sequence[Pair]) -> dict[str, int]:
    """How many draws ended how: "verified" and the refusals by stage."""
    return dict(Counter(row.refusal or "verified" for row in rows).most_common())


def draw_set(seed: int, number: int) -> ApiSet:
    """The API set of one draw: half pairs, half triples, of what the composer knows."""
    from kernelzero.proposer.composer import SUPPORTED_APIS

    rng = random.Random(f"{seed} {number}")
    return ApiSet(tuple(rng.sample(SUPPORTED_APIS, 2 + number % 2)))


def _draft(job: tuple[int, int]) -> Pair:
    """Compose a module and write its kernel; runs in a worker process, on trusted text only."""
    from kernelzero.coldstart.rulebook import VARIANTS, CannotWrite, write_kernel
    from kernelzero.proposer.composer import CannotCompose, compose

    seed, number = job
    api_set = draw_set(seed, number)
    try:
        task = compose(api_set, number)
    except CannotCompose as error:
        return Pair(number, api_set.apis, refusal="compose", detail=str(error))
    try:
        kernel = write_kernel(task, variant=random.Random(f"variant {seed} {number}").randrange(VARIANTS))
    except CannotWrite as error:
        return Pair(number, api_set.apis, task.source, refusal="write", detail=str(error))
    return Pair(number, api_set.apis, task.source, kernel)


def _verified(drafts: Sequence[Pair], keck: Keck, forbidden: set[str], seen: set[str]) -> Iterator[Pair]:
    """The drafts in order, with the first reason against each."""
    rows = {draft.number: _duplicate_or_benchmark(draft, forbidden, seen) for draft in drafts}
    open_ = [row for row in rows.values() if not row.refusal]
    for index, report in gates.check(keck, [(ApiSet(row.apis), row.module) for row in open_]):
        if not report.valid:
            rows[open_[index].number] = _refused(open_[index], f"gate:{report.gate}", report.reason)
    open_ = [row for row in rows.values() if not row.refusal]
    for index, verdict in keck.judge([(Task(row.module), Candidate(row.kernel)) for row in open_]):
        row = open_[index]
        if verdict.status is Status.CORRECT:
            rows[row.number] = Pair(**{**vars(row), "speedup": verdict.speedup})
        else:
            rows[row.number] = _refused(row, f"verdict:{verdict.status}", verdict.reason)
    return iter(rows.values())


def _duplicate_or_benchmark(draft: Pair, forbidden: set[str], seen: set[str]) -> Pair:
    if draft.refusal:
        return draft
    if normalised(draft.module) in forbidden:
        return _refused(draft, "benchmark", "the module is a benchmark task")
    form = normalised_with_numbers(draft.module)
    if form in seen:
        return _refused(draft, "duplicate", "the module was drawn before")
    seen.add(form)
    return draft


def normalised_with_numbers(source: str) -> str:
    """Identity of a module's text up to formatting; shapes count."""
    import ast

    return ast.dump(ast.parse(source))


def _refused(row: Pair, refusal: str, detail: str) -> Pair:
    return Pair(**{**vars(row), "refusal": refusal, "detail": detail})


def verified(rows: Sequence[Pair]) -> list[Pair]:
    """The rows that are pairs."""
    return [row for row in rows if not row.refusal]


def pairs_for(rows: Sequence[Pair], role: Any) -> list[dict[str, Any]]:
    """Training pairs of chat messages for a role, in the compact style.

    Args:
        role: records.Role.
    """
    from kernelzero.coder.prompt import coder_prompt
    from kernelzero.proposer.prompt import proposer_prompt
    from kernelzero.records import Backend, Role

    pairs = []
    for row in verified(rows):
        if role is Role.CODER:
            prompt, answer = coder_prompt(Task(row.module), Backend.TRITON, "compact"), row.kernel
        else:
            prompt, answer = proposer_prompt(ApiSet(row.apis), "compact"), row.module
        completion = [{"role": "assistant", "content": answer.strip() + "\n"}]
        pairs.append({"prompt": list(prompt.messages), "completion": completion})
    return pairs
