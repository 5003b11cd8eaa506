"""The rule-based composer: a runnable PyTorch module for a set of APIs, without any model.

There are two. `compose_module` knows `ALL_APIS` and writes graphs of one to about eight calls on values of one to five
dimensions, in several styles, in small and in a GPU's sizes. `compose` knows `SUPPORTED_APIS` and writes chains on rows
by columns, one operator a line: it is the dialect that the embedded nano models were trained on, and stays what it is.

Both draw an order of the set's APIs, shapes and now and then one more operator, write the module in KernelBench's
format, and keep the first draft in which every call matters and the numbers are well behaved (`trial`, `soundness`).
Both are deterministic for (set, seed).
"""

from __future__ import annotations

import random
from collections import Counter

from kernelzero.proposer.composer.chain import DoesNotFit, build
from kernelzero.proposer.composer.draft import DoesNotFit as NoPlace
from kernelzero.proposer.composer.families import OPS
from kernelzero.proposer.composer.plan import build as build_graph
from kernelzero.proposer.composer.sampler import draw_from
from kernelzero.proposer.composer.sizes import Sizes
from kernelzero.proposer.composer.soundness import flaw
from kernelzero.proposer.composer.steps import EXTRAS, STEPS
from kernelzero.proposer.composer.text import any_style, render
from kernelzero.proposer.composer.trial import flaw as flaw_of_graph
from kernelzero.records import ApiSet, Task

SUPPORTED_APIS: tuple[str, ...] = tuple(sorted(api for api in STEPS if api != "nn.Parameter"))
"""APIs that the composer can be asked for, by the catalogue's names; a parameter is no operator, it comes on top."""

ALL_APIS: tuple[str, ...] = tuple(sorted(OPS))
"""APIs that `compose_module` can be asked for, by the catalogue's names."""

_STRICT = 40
"""Drafts of whole modules of which every part of every input has to matter; the rest may look at a part."""
ATTEMPTS = 48
"""Drafts before a set is given up."""
_EXTRA = 0.3
_PATIENCE = (8, 28)
"""Drafts after which one, then two operators are put in between that keep neighbours from cancelling each other."""
_BETWEEN = ("torch.mul", "torch.add", "torch.sub", "nn.Linear", "torch.neg")

__all__ = ["ALL_APIS", "SUPPORTED_APIS", "CannotCompose", "compose", "compose_module", "draw"]


class CannotCompose(ValueError):
    """No sound module was found for the set; the message says why."""


def draw(seed: int, number: int) -> ApiSet:
    """The API set of one draw for a corpus: one to four of ALL_APIS, each equally often over many draws."""
    return draw_from(ALL_APIS, seed, number)


def compose_module(api_set: ApiSet, seed: int, sizes: Sizes = "small") -> Task:
    """A module that calls every API of the set; the same text for the same (set, seed, sizes).

    Args:
        sizes: "small" for Keck on a CPU, or "gpu" for the same module with a GPU's extents, which is not run here.

    Raises:
        CannotCompose: naming the APIs that are not known, or why no draft was sound.
    """
    unknown = [api for api in api_set.apis if api not in OPS]
    if unknown:
        raise CannotCompose(f"not in the composer: {', '.join(unknown)}")
    rng = random.Random(f"module {seed} {' '.join(api_set.apis)}")
    reasons: Counter[str] = Counter()
    for attempt in range(2 * ATTEMPTS):
        try:
            draft = build_graph(api_set.apis, rng)
        except NoPlace as error:
            reasons[str(error)] += 1
            continue
        style = any_style(rng)
        reason = flaw_of_graph(draft, everywhere=attempt < _STRICT)
        if not reason:
            return Task(render(draft, style, sizes), apis=api_set.apis)
        reasons[reason] += 1
    raise CannotCompose(f"{', '.join(api_set.apis)}: {reasons.most_common(1)[0][0]}")


def compose(api_set: ApiSet, seed: int) -> Task:
    """A module that calls every API of the set; the same text for the same (set, seed).

    Raises CannotCompose where an API is not supported or no draft is sound.
    """
    unknown = [api for api in api_set.apis if api not in SUPPORTED_APIS]
    if unknown:
        raise CannotCompose(f"not in the composer: {', '.join(unknown)}")
    rng = random.Random(f"{seed} {' '.join(api_set.apis)}")
    reason = ""
    for attempt in range(ATTEMPTS):
        try:
            chain = build(_order(list(api_set.apis), rng, sum(attempt >= p for p in _PATIENCE)), rng)
        except DoesNotFit as error:
            reason = str(error)
            continue
        reason = flaw(chain)
        if not reason:
            return Task(chain.render(), apis=api_set.apis)
    raise CannotCompose(f"{', '.join(api_set.apis)}: {reason}")


def _order(apis: list[str], rng: random.Random, between: int) -> list[str]:
    """A random order in which operators that end a chain come late, with some more operators than the set has."""
    free = [api for api in EXTRAS if api not in apis]
    if not between and len(apis) < 3 and rng.random() < _EXTRA:
        apis = [*apis, rng.choice(free)]
    order = sorted(apis, key=lambda api: _rank(api, rng))
    for api in rng.sample([api for api in _BETWEEN if api not in apis], between):
        order.insert(rng.randrange(len(order)), api)
    return order


def _rank(api: str, rng: random.Random) -> float:
    kind = STEPS[api].kind
    late = {"reduce": 0.6, "index": 9.0, "similarity": 1.0, "product": -0.5}.get(kind, 0.0)
    return rng.random() + late
