"""Reads the corpus: tasks at their full size or at a small one, candidates with what is expected of them.

Small sizes are what the first line of a reference says (`# small: ROWS=13, COLUMNS=99`). They are odd on purpose, so
that masks and tails matter, and small enough for Triton's interpreter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kernelzero.records import Backend, Candidate, Task

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Entry:
    """One candidate of the corpus."""

    path: Path
    candidate: Candidate
    expect: frozenset[str]
    """Statuses that are right, e.g. {"correct"}."""

    @property
    def task(self) -> str:
        """Name of the task's folder."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """E.g. "softmax_rows/triton_one_block"."""
        return f"{self.task}/{self.path.stem}"


def task_names() -> list[str]:
    """Names of all tasks in alphabetical order."""
    return sorted(path.parent.name for path in HERE.glob("*/reference.py"))


def task(name: str, small: bool = False) -> Task:
    """The task of that name, at its small size if asked for."""
    source = (HERE / name / "reference.py").read_text(encoding="utf-8")
    return Task(_shrunk(source) if small else source, name=f"corpus/{name}")


def entries(backend: Backend | None = None) -> list[Entry]:
    """All candidates, or those of one backend, in alphabetical order."""
    kinds = [backend] if backend else list(Backend)
    paths = [path for kind in kinds for path in sorted(HERE.glob(f"*/{kind.value}_*.py"))]
    return [_entry(path) for path in paths]


def header(path: Path, key: str) -> str:
    """The value of `# key: value` among the comments at the top of a file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"# {key}: "):
            return line.removeprefix(f"# {key}: ").strip()
        if not line.startswith("#"):
            break
    raise ValueError(f"{path} has no line '# {key}: …' at its top")


def _entry(path: Path) -> Entry:
    backend = Backend(path.stem.split("_")[0])
    expect = frozenset(header(path, "expect").split("|"))
    return Entry(path, Candidate(path.read_text(encoding="utf-8"), backend), expect)


def _shrunk(source: str) -> str:
    first = source.splitlines()[0]
    for name, value in re.findall(r"(\w+)=(\d+)", first.removeprefix("# small: ")):
        source, count = re.subn(rf"^{name} = \d+", f"{name} = {value}", source, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{name} is set {count} times in the reference that says {first!r}")
    return source
