"""Read and write counts files: gzipped JSON with `source`, `modules`, `api` [[name, n]] and `pairs` [[a, b, n]]."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelzero.errors import UsageError


def read_counts(path: Path | str) -> dict[str, Any]:
    """The JSON object of a counts file. UsageError if it is none."""
    try:
        table = json.loads(gzip.decompress(Path(path).read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(f"{path}: no counts file could be read ({error})") from error
    if not isinstance(table, dict) or not {"api", "pairs"} <= table.keys():
        raise UsageError(f"{path}: not a counts file, it has no 'api' and 'pairs'")
    return table


def write_counts(path: Path | str, table: Mapping[str, Any]) -> None:
    """Write a counts table as gzipped JSON, without a time stamp so that equal tables give equal files."""
    text = json.dumps(table, separators=(",", ":")) + "\n"
    try:
        Path(path).write_bytes(gzip.compress(text.encode(), mtime=0))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
