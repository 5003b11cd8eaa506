"""The report of a run: `summary.json` and a self-contained `report.html`, from the run folder and nothing else.

It runs no model and no module, so it can be made of a run that is killed, unfinished, or from another machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from kernelzero.errors import UsageError


def build_report(run_folder: Path | str, others: Sequence[Path | str] = ()) -> Path:
    """Write `summary.json` and `report.html` into the run folder; the path of the page.

    others: run folders to draw beside it in the trade-off of pass@1 and fast_1@1; they are only read.
    Raises UsageError where there is no run, or its folder cannot be written.
    """
    from kernelzero.report.facts import facts
    from kernelzero.report.page import page
    from kernelzero.report.reading import read_run
    from kernelzero.report.tradeoff import tradeoff_facts

    run = read_run(run_folder)
    found = {**facts(run), "tradeoff": tradeoff_facts(run, [read_run(other) for other in others])}
    target = run.folder / "report.html"
    _write_whole(run.folder / "summary.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    _write_whole(target, page(run, found))
    return target


def _write_whole(path: Path, text: str) -> None:
    """Never half a file, also where the disk is full or two reports are made at once."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Models may write lone surrogates, which no encoding holds.
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
