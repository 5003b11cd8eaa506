"""Whether a module is a benchmark task, exactly or nearly, by its syntax alone; nothing is run.

Exactly: the normal forms are equal (`kernelzero.normalise`: operators over tensors; names, numbers, shapes and the
spelling of operators dropped).

Nearly: views, copies and parameters are taken out of the dataflow, operators are left as nodes. Counted are the
n-grams along it, n = 1, 2, 3: every operator, every "result of a goes into b", every a → b → c; inputs and the output
count as operators of that name. Nearness is the number of n-grams in common over the number in either (a Jaccard index
of multisets), 0 to 1. A module is near a task when nearness is at least `SAME_OPERATORS` and both have the same
multiset of operators, or at least `ANY_OPERATORS` whatever they have. So a task with its operands swapped, a
transposition more, a bias less or one link moved is near; a task of three operators with a fourth behind it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kernelzero.normalise import Node, dataflow, normalised
from kernelzero.records import Task

SAME_OPERATORS = 0.6
ANY_OPERATORS = 0.75
ENDS = ("input", "output")
_PLUMBING = {
    "parameter", "getitem", "tuple", "view", "reshape", "flatten", "unflatten", "contiguous", "unsqueeze", "squeeze",
    "t", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "expand", "expandas", "broadcastto", "clone",
    "detach", "identity", "to", "float", "dropout", "atleast2d", "atleast3d",
}  # fmt: skip
Gram = tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """The benchmark task that a module is, or is near."""

    kind: str
    """"benchmark" or "near"."""
    name: str
    nearness: float


class Excluder:
    """Tells whether modules are among the given tasks; the tasks may be hostile text."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._exact: dict[str, str] = {}
        self._grams: list[tuple[str, Counter[Gram], int, Counter[Gram]]] = []
        for task in tasks:
            name = task.name or task.id
            self._exact.setdefault(normalised(task.source), name)
            counts = grams(task.source)
            self._grams.append((name, counts, counts.total(), operators(counts)))

    def match(self, source: str) -> Match | None:
        """The task that a module is, else the nearest one that it is near, else None.

        Raises SyntaxError or ValueError where the source is no module.
        """
        same = self._exact.get(normalised(source))
        if same is not None:
            return Match("benchmark", same, 1.0)
        counts = grams(source)
        size, mine = counts.total(), operators(counts)
        best: Match | None = None
        for name, theirs, total, used in self._grams:
            limit = SAME_OPERATORS if mine == used else ANY_OPERATORS
            if min(size, total) < limit * max(size, total):
                continue
            found = jaccard(counts, theirs)
            if found >= limit and (best is None or found > best.nearness):
                best = Match("near", name, found)
        return best


def jaccard(a: Counter[Gram], b: Counter[Gram]) -> float:
    """Common elements over all elements of two multisets; 0 for two empty ones."""
    common = sum(min(count, b[gram]) for gram, count in a.items())
    return common / (a.total() + b.total() - common or 1)


def operators(counts: Counter[Gram]) -> Counter[Gram]:
    """The operators among the n-grams, without inputs and output."""
    return Counter({gram: n for gram, n in counts.items() if len(gram) == 1 and gram[0] not in ENDS})


def count_operators(source: str) -> int:
    """Number of operators of a module, views and copies not counted."""
    return operators(grams(source)).total()


@lru_cache(maxsize=65536)
def grams(source: str) -> Counter[Gram]:
    """The n-grams of a module's dataflow, n = 1, 2, 3."""
    nodes = dataflow(source).nodes
    feeds = _feeds(nodes)
    counts: Counter[Gram] = Counter()
    for node in nodes:
        if node.op in _PLUMBING:
            continue
        counts[(node.op,)] += 1
        for before in feeds[node.id]:
            counts[(before.op, node.op)] += 1
            counts.update((first.op, before.op, node.op) for first in feeds[before.id])
    return counts


def _feeds(nodes: Sequence[Node]) -> dict[int, list[Node]]:
    """For each node the distinct nodes whose results reach it, through views and copies; parameters end there."""
    feeds: dict[int, list[Node]] = {}
    for node in nodes:  # in order of evaluation, so what comes in is known already
        found: dict[int, Node] = {}
        for number in node.inputs:
            before = nodes[number]
            found.update({n.id: n for n in (feeds[number] if before.op in _PLUMBING else [before])})
        feeds[node.id] = list(found.values())
    return feeds
