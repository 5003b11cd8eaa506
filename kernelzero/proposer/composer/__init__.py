"""The rule-based composer: a runnable PyTorch module for a set of APIs, without any model.

`compose` draws an order of the set's APIs, shapes and now and then one more operator, writes the module in
KernelBench's format, and keeps the first draft in which every line matters and the numbers are well behaved
(`soundness`). It is deterministic for (set, seed).

Covered: `SUPPORTED_APIS`, rows by columns, chains of one to about five lines with branches and several inputs.
Not covered yet: more than two dimensions, convolutions, pooling, layout changes.
"""

from __future__ import annotations

import random

from kernelzero.proposer.composer.chain import DoesNotFit, build
from kernelzero.proposer.composer.soundness import flaw
from kernelzero.proposer.composer.steps import EXTRAS, STEPS
from kernelzero.records import ApiSet, Task

SUPPORTED_APIS: tuple[str, ...] = tuple(sorted(api for api in STEPS if api != "nn.Parameter"))
"""APIs that the composer can be asked for, by the catalogue's names; a parameter is no operator, it comes on top."""

ATTEMPTS = 48
"""Drafts before a set is given up."""
_EXTRA = 0.3
_PATIENCE = (8, 28)
"""Drafts after which one, then two operators are put in between that keep neighbours from cancelling each other."""
_BETWEEN = ("torch.mul", "torch.add", "torch.sub", "nn.Linear", "torch.neg")

__all__ = ["SUPPORTED_APIS", "CannotCompose", "compose"]


class CannotCompose(ValueError):
    """No sound module was found for the set; the message says why."""


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
