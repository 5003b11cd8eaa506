"""Draw API sets by co-occurrence: a pool that covers every candidate, and the sets of one phase from the pool.

The law, with n(a) classes that use a, n(a, b) that use both, and additive smoothing λ:

- weight of a pair: w(a, b) = n(a, b) + λ
- third API of a triple, given the pair: P(c | a, b) ∝ w(a, c) · w(b, c) / (n(c) + 1), that is a and b taken as
  independent given c
- a set is never drawn twice: a repeat is thrown away and drawn again

Coverage comes first: while an API is in no set, a set is drawn around it (partners ∝ w), so every pool of at least one
set an API, and tighter ones down to the arithmetic limit, covers its universe. Only integers, sums, products and
quotients enter the weights, and `random.Random` draws, so a seed gives the same pool on every machine.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, combinations
from math import comb

from kernelzero.apis.catalogue import Catalogue
from kernelzero.errors import UsageError
from kernelzero.records import ApiSet

SMOOTHING = 0.1
"""λ: a pair never seen weighs a tenth of a pair seen once."""
POOL_SIZE = 4000
BOOST = 3.0
"""A set whose modules the Coder never solves is drawn 1 + BOOST times as often as one that it always solves."""
_ENUMERABLE = 20_000
"""Up to this many triples in a universe, all are listed with their exact weights; above, repeats are redrawn."""

Names = tuple[str, ...]


def sample_pool(
    catalogue: Catalogue, size: int = POOL_SIZE, seed: int = 0, apis: Iterable[str] | None = None
) -> list[ApiSet]:
    """`size` distinct API sets, half pairs and half triples, that cover every API of the catalogue.

    `apis` restricts the universe to some of the catalogue's APIs. The order of the pool is random, so that any part of
    it is a fair sample. Source: the paper's 4,000 sets over 442 APIs.

    Raises:
        UsageError: `size` is odd or not positive, too small to cover the universe, or larger than the number of
            distinct sets that exist half and half; or a name of `apis` is not in the catalogue.
    """
    universe = catalogue if apis is None else catalogue.restrict(apis)
    half = _checked_half(len(universe.apis), size)
    law = _Law(universe, random.Random(f"api pool {seed}"))
    chosen = _cover(law, half)
    for length in (2, 3):
        missing = half - sum(len(names) == length for names in chosen)
        chosen |= dict.fromkeys(law.fill(length, missing, chosen))
    pool = [ApiSet(names) for names in sorted(chosen)]
    law.rng.shuffle(pool)
    return pool


def _checked_half(apis: int, size: int) -> int:
    """size / 2, where a pool of that size is possible."""
    if size < 2 or size % 2:
        raise UsageError(f"a pool is half pairs, half triples: its size is an even number of at least 2, not {size}")
    exist = 2 * min(comb(apis, 2), comb(apis, 3))
    if size > exist:
        raise UsageError(f"{size} API sets asked for, but {apis} APIs make only {exist} distinct ones, half and half")
    if 5 * (size // 2) < apis:
        needed = 2 * -(-apis // 5)
        raise UsageError(f"{size} API sets cannot cover {apis} APIs: ask for {needed} or more, or for fewer APIs")
    return size // 2


class _Law:
    """The co-occurrence law over one universe, with its random generator."""

    def __init__(self, universe: Catalogue, rng: random.Random) -> None:
        self.apis = universe.apis
        self.rng = rng
        self._count = [universe.count(name) + 1 for name in self.apis]
        index = {name: i for i, name in enumerate(self.apis)}
        self._rows = [[SMOOTHING] * len(self.apis) for _ in self.apis]
        for (a, b), n in universe.pairs.items():
            i, j = index[a], index[b]
            self._rows[i][j] = self._rows[j][i] = n + SMOOTHING
        for i, row in enumerate(self._rows):
            row[i] = 0.0
        self._thirds = lru_cache(maxsize=4096)(self._third_weights)

    def partner(self, members: Sequence[int], among: Sequence[int] | None = None) -> int:
        """One more API for one or two given ones, from `among` if given."""
        weights = self._rows[members[0]] if len(members) == 1 else self._thirds(*sorted(members))
        choices = [i for i in (range(len(self.apis)) if among is None else among) if i not in members]
        return self.rng.choices(choices, [weights[i] for i in choices])[0]

    def _third_weights(self, i: int, j: int) -> list[float]:
        return [a * b / n for a, b, n in zip(self._rows[i], self._rows[j], self._count, strict=True)]

    def names(self, members: Iterable[int]) -> Names:
        """The set's names in alphabetical order (as the universe's)."""
        return tuple(self.apis[i] for i in sorted(members))

    def fill(self, length: int, number: int, taken: Iterable[Names]) -> list[Names]:
        """`number` distinct sets of a length, none of them in `taken`."""
        seen = set(taken)
        if length == 2 or comb(len(self.apis), 3) <= _ENUMERABLE:
            listed = self._pair_weights() if length == 2 else self._triple_weights()
            left = {names: weight for names, weight in listed.items() if names not in seen}
            return draw_distinct(list(left), list(left.values()), number, self.rng)
        return self._redraw(number, seen)

    def _redraw(self, number: int, seen: set[Names]) -> list[Names]:
        pairs = list(combinations(range(len(self.apis)), 2))
        cumulative = list(accumulate(self._rows[i][j] for i, j in pairs))
        drawn: list[Names] = []
        while len(drawn) < number:
            pair = pairs[bisect(cumulative, self.rng.random() * cumulative[-1], hi=len(pairs) - 1)]
            names = self.names((*pair, self.partner(pair)))
            if names not in seen:
                seen.add(names)
                drawn.append(names)
        return drawn

    def _pair_weights(self) -> dict[Names, float]:
        return {self.names(pair): self._rows[pair[0]][pair[1]] for pair in combinations(range(len(self.apis)), 2)}

    def _triple_weights(self) -> dict[Names, float]:
        """P(a, b) · P(c | a, b), summed over which of the three comes third."""
        weights: dict[Names, float] = {}
        for i, j in combinations(range(len(self.apis)), 2):
            thirds = self._thirds(i, j)
            scale = self._rows[i][j] / sum(thirds)
            for k, weight in enumerate(thirds):
                if k not in (i, j):
                    names = self.names((i, j, k))
                    weights[names] = weights.get(names, 0.0) + scale * weight
        return weights


def _cover(law: _Law, half: int) -> dict[Names, None]:
    """Distinct sets, at most `half` of each length, that together hold every API.

    Each is drawn around an API that no earlier one holds, so none repeats. Where there are fewer sets left than APIs to
    cover, all members of a set are new ones, triples first.
    """
    order = list(range(len(law.apis)))
    law.rng.shuffle(order)
    uncovered = dict.fromkeys(order)
    left = {2: half, 3: half}
    chosen: dict[Names, None] = {}
    while uncovered:
        tight = len(uncovered) > left[2] + left[3]
        length = 3 if left[3] and (tight or left[3] >= left[2]) else 2
        members = [next(iter(uncovered))]
        while len(members) < length:
            fresh = [i for i in uncovered if i not in members]
            members.append(law.partner(members, fresh if tight and fresh else None))
        left[length] -= 1
        chosen[law.names(members)] = None
        for member in members:
            uncovered.pop(member, None)
    return chosen


def draw_distinct(items: Sequence[Names], weights: Sequence[float], number: int, rng: random.Random) -> list[Names]:
    """`number` distinct items, drawn one after another in proportion to their weights, in the order drawn."""
    return [items[i] for i in _distinct_indices(weights, number, rng)]


def _distinct_indices(weights: Sequence[float], number: int, rng: random.Random) -> list[int]:
    """Successive weighted sampling without replacement, in rounds: repeats are dropped, the rest drawn again."""
    drawn: dict[int, None] = {}
    while len(drawn) < number:
        left = [i for i in range(len(weights)) if i not in drawn]
        for i in rng.choices(left, [weights[i] for i in left], k=number - len(drawn)):
            drawn[i] = None
    return list(drawn)


def draw(
    pool: Sequence[ApiSet], n: int, weights: Mapping[str, float] | None = None, seed: int | str = 0
) -> list[ApiSet]:
    """`n` distinct sets of the pool for one phase, drawn by weight, in the order drawn.

    `weights` maps a set's id to its weight, greater than 0; a set that is not in it weighs 1.

    Raises:
        UsageError: the pool has fewer than `n` distinct sets.
        ValueError: a weight is not greater than 0 and finite.
    """
    distinct = list({item.id: item for item in pool}.values())
    if not 0 <= n <= len(distinct):
        raise UsageError(f"{n} API sets asked for, but the pool has {len(distinct)} distinct ones")
    values = [(weights or {}).get(item.id, 1.0) for item in distinct]
    if not all(0 < value < float("inf") for value in values):
        raise ValueError("the weight of an API set is greater than 0 and finite")
    return [distinct[i] for i in _distinct_indices(values, n, random.Random(f"api draw {seed}"))]


def reweight(pool: Sequence[ApiSet], solve_rates: Mapping[str, float], boost: float = BOOST) -> dict[str, float]:
    """Weights for the next round by set id: 1 + boost · (1 - p), p the Coder's solve rate on the set's modules.

    A set that is always solved weighs 1, one that is never solved 1 + boost; a set not yet tried weighs 1. Rates of
    sets that are not in the pool have no effect.

    Raises:
        ValueError: a rate outside [0, 1] or a negative boost.
    """
    if boost < 0 or not all(0.0 <= rate <= 1.0 for rate in solve_rates.values()):
        raise ValueError("a solve rate lies in [0, 1] and a boost is not negative")
    return {item.id: 1.0 + boost * (1.0 - solve_rates.get(item.id, 1.0)) for item in pool}
