from __future__ import annotations

import random
from collections import Counter
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelzero.apis import draw, load_catalogue, reweight, sample_pool
from kernelzero.apis.sampler import draw_distinct
from kernelzero.errors import UsageError
from kernelzero.records import ApiSet

COMMON = sorted(load_catalogue().apis, key=lambda name: (-load_catalogue().count(name), name))


def check(pool: list[ApiSet], size: int, apis: set[str]) -> None:
    assert len(pool) == size == len({item.id for item in pool})
    assert Counter(len(item.apis) for item in pool) == {2: size // 2, 3: size // 2}
    assert {name for item in pool for name in item.apis} == apis


def test_the_papers_pool() -> None:
    pool = sample_pool(load_catalogue())
    check(pool, 4000, set(load_catalogue().apis))
    assert pool == sample_pool(load_catalogue(), 4000, seed=0)
    assert pool != sample_pool(load_catalogue(), seed=1)


def test_the_pool_of_a_seed_is_this_one_on_every_machine() -> None:
    pool = sample_pool(load_catalogue(), 4, seed=3, apis=["nn.Linear", "F.relu", "torch.sum", "nn.Conv2d"])
    assert [item.apis for item in pool] == [
        ("nn.Conv2d", "nn.Linear", "torch.nn.functional.relu"),
        ("nn.Linear", "torch.nn.functional.relu"),
        ("nn.Linear", "torch.nn.functional.relu", "torch.sum"),
        ("nn.Conv2d", "nn.Linear"),
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 60), st.integers(1, 150), st.integers(0, 2**32))
def test_any_universe_and_size_gives_a_sound_pool_or_one_clear_line(apis: int, half: int, seed: int) -> None:
    names = random.Random(seed).sample(COMMON, apis)
    possible = apis <= 5 * half and half <= min(comb(apis, 2), comb(apis, 3))
    if possible:
        check(sample_pool(load_catalogue(), 2 * half, seed, names), 2 * half, set(names))
    else:
        with pytest.raises(UsageError):
            sample_pool(load_catalogue(), 2 * half, seed, names)


def test_the_smallest_pool_that_can_cover_everything_does() -> None:
    apis = set(load_catalogue().apis)
    size = 2 * -(-len(apis) // 5)
    check(sample_pool(load_catalogue(), size), size, apis)


def test_frequent_companions_are_drawn_more_often() -> None:
    names = [*COMMON[:30], *COMMON[-30:]]
    uses = Counter(name for item in sample_pool(load_catalogue(), 400, apis=names) for name in item.apis)
    assert sum(uses[name] for name in names[:30]) > 3 * sum(uses[name] for name in names[30:])


@pytest.mark.parametrize(("size", "names", "says"), [
    (3, COMMON[:9], "even"), (0, COMMON[:9], "even"), (1000, COMMON[:10], "only 90 distinct"),
    (2, COMMON[:9], "ask for 4 or more"), (2, COMMON[:2], "only 0"), (2, ["nn.Nothing"], r"nn\.Nothing"),
])  # fmt: skip
def test_impossible_pools_are_usage_errors(size: int, names: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sample_pool(load_catalogue(), size, apis=names)


def test_a_phase_draws_distinct_sets_and_failed_ones_more_often() -> None:
    pool = sample_pool(load_catalogue(), 200, apis=COMMON[:40])
    failed = {item.id for item in pool[:50]}
    weights = reweight(pool, {item.id: 0.0 if item.id in failed else 1.0 for item in pool})
    drawn = [draw(pool, 40, weights, seed) for seed in range(50)]
    assert all(len({item.id for item in phase}) == 40 for phase in drawn)
    share = sum(item.id in failed for phase in drawn for item in phase) / (50 * 40)
    assert 0.45 < share < 0.65  # a quarter of the sets with four times the weight; without replacement a bit below 4/7
    assert draw(pool, 40, weights, 7) == draw(pool, 40, weights, 7)
    assert len(draw(pool, 200, weights)) == 200
    assert len(draw(pool, 5)) == 5
    with pytest.raises(UsageError, match="200 distinct"):
        draw(pool, 201)


def test_reweighting_follows_its_formula() -> None:
    pool = [ApiSet(("nn.Linear", name)) for name in ("nn.ReLU", "nn.GELU", "nn.Tanh", "nn.SiLU")]
    rates = {pool[0].id: 0.0, pool[1].id: 0.5, pool[2].id: 1.0, "gone": 0.3}
    assert list(reweight(pool, rates, boost=2.0).values()) == [3.0, 2.0, 1.0, 1.0]
    assert set(reweight(pool, {}).values()) == {1.0}
    for rates, boost in (({"x": 1.5}, 1.0), ({"x": float("nan")}, 1.0), ({}, -1.0)):
        with pytest.raises(ValueError, match="solve rate"):
            reweight(pool, rates, boost)
    with pytest.raises(ValueError, match="greater than 0"):
        draw(pool, 1, {pool[0].id: 0.0})


def test_first_draws_follow_the_weights() -> None:
    items = [("a",), ("b",)]
    first = Counter(draw_distinct(items, [3, 1], 2, random.Random(seed))[0] for seed in range(1000))
    assert 700 < first[("a",)] < 800
