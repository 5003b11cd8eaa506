"""An append-only JSONL file with one keyed row an event: survives a kill at any moment, never holds a key twice.

A line cut off by a kill is dropped when the file is opened again. One writer a file is assumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelzero.errors import UsageError


class Rows:
    """The rows of a file, by key in the order of writing, and the way to add more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.by_key: dict[str, dict[str, Any]] = {}
        for row in _read(path):
            self.by_key.setdefault(row["key"], row)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write the rows whose keys are new, in one write, so that a kill leaves at most one line torn."""
        new = [row for row in rows if row["key"] not in self.by_key]
        self.by_key.update({row["key"]: row for row in new})
        text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in new)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    try:
        return [json.loads(line) for line in whole.splitlines() if line.strip()]
    except ValueError as error:
        raise UsageError(f"{path} holds a line that is no JSON: {error}") from error
