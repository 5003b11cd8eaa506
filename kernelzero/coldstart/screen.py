"""What a module has to pass before a teacher sees it: no benchmark task, no duplicate, and the gates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kernelzero.coldstart.forms import text_form
from kernelzero.coldstart.nearness import Excluder, count_operators
from kernelzero.coldstart.rows import CorpusRow
from kernelzero.coldstart.tasks import Draft
from kernelzero.keck import Keck
from kernelzero.proposer import gates
from kernelzero.records import ApiSet, GateReport, content_id

_NO_OWNERS = ("compose", "benchmark", "near", "duplicate", "gate:parse")


class Screen:
    """Text alone. Of two equal modules the one with the smaller number stays, in every call of a build.

    Args:
        rows: what earlier calls found out.
        samples: numbers of one module.
    """

    def __init__(self, excluder: Excluder, rows: Iterable[CorpusRow], samples: int) -> None:
        self._excluder, self._samples = excluder, samples
        self._owners = {_form(r.module): r.number // samples for r in rows if r.refusal not in _NO_OWNERS}

    def refusal(self, draft: Draft) -> tuple[str, str]:
        """(stage, detail) of what is against a module, ("", "") for nothing; call it in order of numbers."""
        if not draft.module:
            return "compose", draft.detail
        try:
            match, form = self._excluder.match(draft.module), _form(draft.module)
        except (SyntaxError, ValueError, RecursionError) as error:
            return "gate:parse", " ".join(str(error).split())
        if match:
            return match.kind, f"{match.name} ({match.nearness:.2f})"
        owner = self._owners.setdefault(form, draft.task_number)
        return ("duplicate", f"as number {owner * self._samples}") if owner != draft.task_number else ("", "")


def examined(keck: Keck, drafts: Sequence[Draft]) -> Iterator[tuple[int, GateReport]]:
    """The gates; modules that nobody wrote for their APIs need not call or need them."""
    asked = [i for i, draft in enumerate(drafts) if draft.asked]
    for position, report in gates.check(keck, [(ApiSet(drafts[i].apis), drafts[i].module) for i in asked]):
        yield asked[position], report
    others = [i for i, draft in enumerate(drafts) if not draft.asked]
    for position, report in keck.examine([(drafts[i].task, []) for i in others]):
        yield others[position], report


def operators_of(module: str) -> int:
    """Number of operators, 0 where it cannot be told."""
    try:
        return count_operators(module) if module else 0
    except (SyntaxError, ValueError, RecursionError):
        return 0


def _form(module: str) -> str:
    """The hash of a module's form: a corpus has tens of thousands."""
    return content_id(text_form(module))
