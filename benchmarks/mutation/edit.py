"""One change of a source text, and the mutant that it makes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from kernelzero.records import Backend


@dataclass(frozen=True)
class Edit:
    """Replace source[start:end] by `text`."""

    operator: str
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """The changed source."""
        return source[: self.start] + self.text + source[self.end :]


@dataclass(frozen=True)
class Mutant:
    """A correct candidate with one fault put in."""

    task: str
    base: str
    """Name of the candidate that it was made from, e.g. "softmax_rows/triton_one_block"."""
    backend: Backend
    operator: str
    source: str
    line: int
    """Line of the change, counted from 1."""
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The change in one line each."""
        return f"- {self.before.strip()}\n+ {self.after.strip()}"


def mutant(task: str, base: str, backend: Backend, source: str, edit: Edit) -> Mutant:
    """Apply an edit and note the lines that differ."""
    changed = edit.apply(source)
    old, new = source.splitlines(), changed.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    first, last = blocks[0], blocks[-1]
    before, after = old[first[1] : last[2]], new[first[3] : last[4]]
    return Mutant(task, base, backend, edit.operator, changed, first[1] + 1, " / ".join(before), " / ".join(after))
