"""The row of a corpus: a verified kernel, or the reason why a number gave none. JSONL while it grows, then Parquet.

OUT/answers.jsonl      what the teacher said, before it is judged
OUT/rows.jsonl         one row a number; a later row of a number replaces earlier ones
OUT/corpus-*.parquet   the rows that were kept, by number
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from kernelzero.coldstart.teachers.base import Lesson
from kernelzero.records import Record
from kernelzero.runfolder import read_rows, repair

ROWS, ANSWERS = "rows.jsonl", "answers.jsonl"
PARQUET_COLUMNS: tuple[tuple[str, str], ...] = (
    ("number", "int64"), ("task_id", "string"), ("module", "string"), ("apis", "list"), ("backend", "string"),
    ("principle", "string"), ("reasoning", "string"), ("kernel", "string"), ("speedup", "double"), ("basis", "string"),
    ("device", "string"), ("rung", "string"), ("teacher", "string"), ("seed", "int64"), ("operators", "int64"),
    ("prompt_tokens", "int64"), ("completion_tokens", "int64"),
)  # fmt: skip


@dataclass(frozen=True)
class CorpusRow(Record):
    """One number of a build and what became of it."""

    number: int
    task_id: str = ""
    module: str = ""
    apis: tuple[str, ...] = ()
    backend: str = "triton"
    principle: str = ""
    reasoning: str = ""
    kernel: str = ""
    refusal: str = ""
    """"" for a verified kernel, else the stage that refused: "compose", "benchmark", "near", "duplicate", "gate:…",
    "teacher:…", "verdict:…"; "infra:…" says nothing about the row, which is tried again by the next build."""
    detail: str = ""
    speedup: float | None = None
    """Reference time over the kernel's."""
    basis: str = ""
    """"measured" or "modelled"."""
    device: str = ""
    """Where the verdict was given."""
    rung: str = ""
    """How a CUDA extension was built."""
    teacher: str = ""
    seed: int = 0
    operators: int = 0
    """Operators of the module, views and copies not counted."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Where time went: "draw", "gate", "teach", "judge"."""

    @property
    def kept(self) -> bool:
        """Whether it is a verified kernel."""
        return not self.refusal

    @property
    def final(self) -> bool:
        """Whether another try would give the same."""
        return not self.refusal.startswith("infra:")


@dataclass(frozen=True)
class Answer(Record):
    """A lesson as it came, with what it was for."""

    number: int
    task_id: str
    lesson: Lesson


class Log:
    """An append-only JSONL file; a row is on its way to the disk when `add` returns."""

    def __init__(self, path: Path) -> None:
        repair(path)
        self._file: TextIO = path.open("a", encoding="utf-8", errors="surrogatepass")

    def add(self, record: Record) -> None:
        """Append one row."""
        self._file.write(json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Wait for the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def load_rows(folder: Path) -> dict[int, CorpusRow]:
    """The newest row of every number, in order of numbers."""
    rows = {row.number: row for row in map(CorpusRow.from_json, read_rows(folder / ROWS))}
    return dict(sorted(rows.items()))


def load_answers(folder: Path) -> list[Answer]:
    """All answers that were ever given, those that were given twice too: both were paid for."""
    return [Answer.from_json(row) for row in read_rows(folder / ANSWERS)]


def corpus_of(rows: Iterable[CorpusRow]) -> list[CorpusRow]:
    """The rows with kernels that are written no second time for the same module, by number.

    Names, comments and layout make no difference between two kernels.
    """
    from kernelzero.coldstart.forms import text_form

    kept: dict[tuple[str, str], CorpusRow] = {}
    for row in sorted(rows, key=lambda row: row.number):
        if row.kept:
            kept.setdefault((text_form(row.module), text_form(row.kernel)), row)
    return list(kept.values())


def write_parquet(rows: Sequence[CorpusRow], path: Path) -> None:
    """Write rows, whole or not at all; texts are compressed with zstd."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {
        "int64": pa.int64(), "double": pa.float64(), "string": pa.string(), "list": pa.list_(pa.string()),
    }  # fmt: skip
    schema = pa.schema([(name, types[kind]) for name, kind in PARQUET_COLUMNS])
    data = [{name: getattr(row, name) for name, _ in PARQUET_COLUMNS} for row in rows]
    table = pa.Table.from_pylist([{**d, "apis": list(d["apis"])} for d in data], schema=schema)
    new = path.with_name(path.name + ".new")
    pq.write_table(table, new, compression="zstd", row_group_size=4096)
    os.replace(new, path)
