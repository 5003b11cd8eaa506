"""How alike the modules of one step are: whether a Proposer has collapsed, told before a benchmark tells it.

From the syntax tree alone: nothing is run, and hostile text is welcome. A text that does not parse, or has no class
`Model` with a `forward` of its own, is no module and is left out of all figures: validity counts those.

The skeleton of a module is what is left of its dataflow when names, constants and shapes are gone: APIs and operators
in order of evaluation, each with the number of tensors that it is given. As names are gone, so is which tensor goes
where: `relu(x) + y` and `relu(y) + x` share a skeleton. The normal form (`kernelzero.normalise`) keeps the wiring
and drops the spelling of operators: `nn.ReLU` and `F.relu` are one there and two here.

Not covered: the inside of classes and functions that the file defines, and of lists of layers. There it counts which
APIs are called how often, not how they are put together.
"""

from __future__ import annotations

import ast
import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelzero.apis.names import called_apis, canonical
from kernelzero.apis.operators import is_candidate
from kernelzero.normalise import OPERATOR_LABELS, Dataflow, Node, dataflow, normalised
from kernelzero.records import ApiSet

_ENDS = ("input", "parameter", "output")
_OF_TORCH = ("torch.", "nn.", "F.", ".")
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_SOMETHING = "call"
"""The label of what the flow does not see into: a class, function, list or variable of the file's own."""


def watch(sources: Sequence[str], api_sets: Sequence[ApiSet]) -> dict[str, float | None]:
    """The figures of a step's row: `distinct`, `api_entropy` and `top_skeleton`, in 0..1, None for no modules.

    Args:
        sources: Every module that the Proposer wrote in the step, valid or not.
        api_sets: The API sets that it was asked for; how often one is given does not matter.
    """
    return {
        "distinct": distinct_share(sources),
        "api_entropy": api_entropy(sources, api_sets),
        "top_skeleton": top_skeleton_share(sources),
    }


def distinct_share(sources: Iterable[str]) -> float | None:
    """Distinct normal forms over modules: 1 where no two apply the same chain of operators; None for no modules."""
    forms = [normalised(source) for source in sources if _read(source) is not None]
    return len(set(forms)) / len(forms) if forms else None


def top_skeleton_share(sources: Iterable[str]) -> float | None:
    """The share of n modules that have the commonest skeleton, from 1/n, all different, to 1; None for no modules."""
    counts = Counter(found for found in map(skeleton, sources) if found is not None)
    return max(counts.values()) / counts.total() if counts else None


def api_entropy(sources: Iterable[str], api_sets: Iterable[ApiSet]) -> float | None:
    """How evenly the modules spread over APIs: `min(1, H / ln(number of distinct APIs asked for))`.

    H is the Shannon entropy of p(a), the share of API a among all pairs of a module and an API that it uses. An API
    counts once a module, for one that repeats it says no more. All operator APIs count, not those asked for alone: the
    gates see to it that a valid module uses its set, so a habit shows in what it adds.

    Divided by what was asked for, not by what was used: a Proposer that writes `nn.Linear` and `torch.relu` whatever
    it is asked for uses its two APIs evenly and must not get 1. And a step of few API sets is not marked down for
    being small. Whoever adds many different APIs can have more entropy than the sets alone; that is cut to 1. APIs
    are asked for unevenly, common ones more often, so doing just as told gives somewhat less than 1.

    Returns:
        In 0..1; 0 where the modules use one API or none, except that 1 is given where one was asked for and is used;
        None for no modules or no API sets.
    """
    modules = [found for found in map(_read, sources) if found is not None]
    asked = {api for api_set in api_sets for api in api_set.apis}
    if not modules or not asked:
        return None
    counts = Counter(api for module in modules for api in module.apis)
    if len(asked) == 1:
        return 1.0 if asked <= set(counts) else 0.0
    total = counts.total()
    entropy = math.fsum(n / total * math.log(total / n) for n in counts.values())
    return min(1.0, entropy / math.log(len(asked)))


def skeleton(source: str) -> str | None:
    """The skeleton of a module, e.g. "inputs/2 nn.Linear torch.add/2 .mean"; None where the source is no module.

    Modules that differ only in sizes, constants and the names of variables have the same one. Hostile text does not
    raise.
    """
    module = _read(source)
    return None if module is None else module.skeleton


@dataclass(frozen=True)
class _Module:
    skeleton: str
    apis: frozenset[str]
    """Operator APIs that it uses, by the catalogue's names."""


@functools.lru_cache(maxsize=8192)
def _read(source: str) -> _Module | None:
    try:
        flow = dataflow(source)
        labels = [_label(node) for node in flow.nodes if node.op not in _ENDS]
        called = _called(source) if _SOMETHING in labels else {}
        normalised(source)  # what has no normal form is no module either
    except _UNREADABLE:
        return None
    apis = {canonical(label) for label in labels if not label.startswith(".")} | set(called)
    behind = ["|", *(_counted(api, n) for api, n in sorted(called.items()))] if called else []
    return _Module(" ".join([*_tokens(flow), *behind]), frozenset(filter(is_candidate, apis)))


def _tokens(flow: Dataflow) -> list[str]:
    inputs = sum(node.op == "input" for node in flow.nodes)
    steps = [_counted(_label(node), len(node.inputs)) for node in flow.nodes if node.op not in _ENDS]
    return [f"inputs/{inputs}", *steps, *flow.control]


def _label(node: Node) -> str:
    """An operator's name as the source spells it; names that the source chose itself are erased."""
    known = node.label.startswith(_OF_TORCH) or node.label in OPERATOR_LABELS
    return node.label if known else _SOMETHING


def _called(source: str) -> dict[str, int]:
    """Operator APIs called anywhere in the file, with the number of calls."""
    return {api: len(calls) for api, calls in called_apis(ast.parse(source)).items() if is_candidate(api)}


def _counted(name: str, number: int) -> str:
    return name if number == 1 else f"{name}/{number}"
