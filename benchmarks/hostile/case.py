"""One hostile candidate, and the tasks of the corpus that it can be sent to."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "corpus"))

import read

from kernelzero.records import Candidate


@dataclass(frozen=True)
class Hostile:
    """A candidate that takes any inputs and does harm before it could be right."""

    name: str
    candidate: Candidate
    expect: frozenset[str]
    """Statuses that are right."""


def hosts() -> list[str]:
    """Tasks without weights whose inputs are float32: whatever the task, the harm is what is judged."""
    return [name for name in read.task_names() if _is_host(read.task(name).source)]


def _is_host(source: str) -> bool:
    return not re.search(r"def __init__|float16|bfloat16|\.half\(|randint|bool", source)
