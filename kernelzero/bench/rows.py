"""An append-only JSONL file with one keyed row an event: survives a kill at any moment, never holds a key twice.

A line cut off by a kill is dropped when the file is opened again. One process a file is assumed, of any threads.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelzero.errors import UsageError


class Rows:
    """The rows of a file, by key in the order of writing, and the way to add more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.by_key: dict[str, dict[str, Any]] = {}
        rows, length = _parsed(path)
        if path.exists() and path.stat().st_size > length:
            os.truncate(path, length)
        for row in rows:
            self.by_key.setdefault(row["key"], row)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write the rows whose keys are new, in one write, so that a kill leaves at most one line torn."""
        with self._lock:
            new = {row["key"]: row for row in rows if row["key"] not in self.by_key}
            text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in new.values())
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
            self.by_key.update(new)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, without one that a kill cut off; none where there is no file.

    Raises:
        UsageError: a line is no JSON.
    """
    return _parsed(path)[0]


def _parsed(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows, and the length in bytes of their lines."""
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    try:
        return [json.loads(line) for line in whole.splitlines() if line.strip()], len(whole)
    except ValueError as error:
        raise UsageError(f"{path} holds a line that is no JSON: {error}") from error
