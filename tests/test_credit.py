from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelzero.credit import (
    correctness_aware_rewards,
    frontier_reward,
    group_advantages,
    penalised,
    repetition_penalties,
)

outcomes = st.lists(st.sampled_from([True, False, None]), max_size=10)
rewards = st.one_of(st.none(), st.integers(-100, 110).map(lambda n: n / 100))
clusters = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=16)
weights = st.floats(0, 1)
labelled = st.lists(st.tuples(rewards, st.sampled_from("abc")), max_size=16)


@pytest.mark.parametrize(
    ("given_outcomes", "valid", "expected"),
    [
        ([0, 0, 0, 0, 0], True, 0.0),
        ([1, 1, 1, 1, 1], True, 0.0),
        ([True, True, False, False, False], True, 0.8),
        ([True, False], True, 1.0),
        ([True, None, False, None], True, 1.0),
        ([], False, -1.0),
        ([True, True], False, -1.0),
        ([None, None], True, None),
        ([], True, None),
        ([True], None, None),
    ],
)
def test_frontier_reward_of_the_proposers_edge_cases(given_outcomes, valid, expected):
    reward = frontier_reward(given_outcomes, valid)
    assert reward is None if expected is None else reward == pytest.approx(expected)


@given(outcomes)
def test_a_valid_module_is_never_worse_than_an_invalid_one(given_outcomes):
    reward = frontier_reward(given_outcomes, True)
    assert reward is None or 0.0 <= reward <= 1.0


def test_speed_counts_only_from_alpha_on():
    assert correctness_aware_rewards([1, 1, 0, 0], [1.0, 3.0, 9.0, None]) == [1.0, 1.1, 0.0, 0.0]
    assert correctness_aware_rewards([1, 0, 0, 0], [3.0, 9.0, None, None]) == [1.0, 0.0, 0.0, 0.0]
    assert correctness_aware_rewards([1, 1], [1.0, 3.0], alpha=1.01) == [1.0, 1.0]
    assert correctness_aware_rewards([1, 1, 0, 0, 0], [1.0, 3.0, None, None, None], alpha=0)[1] == pytest.approx(1.1)


def test_the_speedup_is_normalised_over_the_correct_samples():
    assert correctness_aware_rewards([1, 1, 1], [1.0, 2.0, 3.0], beta=0.5) == [1.0, 1.25, 1.5]
    assert correctness_aware_rewards([1, 1], [2.0, 2.0]) == [1.0, 1.0]


@pytest.mark.parametrize("missing", [None, math.inf, -math.inf, math.nan])
def test_a_missing_speedup_is_no_bonus_and_no_extreme(missing):
    assert correctness_aware_rewards([1, 1, 1], [missing, 1.0, 2.0]) == [1.0, 1.0, 1.1]


def test_a_sample_without_an_outcome_has_no_reward_and_no_part_in_the_mean():
    given_rewards = correctness_aware_rewards([1, None, None, 0], [2.0, 9.0, None, None])
    assert given_rewards == [1.0, None, None, 0.0]
    assert correctness_aware_rewards([1, 1, None, None, 0], [1.0, 2.0, None, None, None])[1] == pytest.approx(1.1)


@given(st.lists(st.tuples(st.sampled_from([True, False, None]), st.one_of(st.none(), st.floats())), max_size=10))
def test_rewards_are_finite_whatever_the_speedups(samples):
    correct, speedups = [c for c, _ in samples], [s for _, s in samples]
    for c, reward in zip(correct, correctness_aware_rewards(correct, speedups), strict=True):
        assert (reward is None) == (c is None)
        assert reward is None or (0.0 <= reward <= 1.1 + 1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: correctness_aware_rewards([1], []),
        lambda: correctness_aware_rewards([1], [1.0], alpha=math.nan),
        lambda: correctness_aware_rewards([1], [1.0], beta=math.inf),
        lambda: correctness_aware_rewards([2], [1.0]),
        lambda: frontier_reward(["yes"], True),
        lambda: group_advantages([1.0], []),
        lambda: group_advantages([math.nan], ["a"]),
        lambda: group_advantages([math.inf], ["a"]),
        lambda: repetition_penalties(["a"], -0.1),
        lambda: repetition_penalties(["a"], 1.1),
        lambda: repetition_penalties(["a"], math.nan),
        lambda: penalised([1.0], []),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ValueError, match=r"."):
        call()


def test_a_failed_sample_is_masked_and_the_others_stay_finite():
    advantages = group_advantages([1.0, None, 0.0, 0.0], ["t"] * 4)
    assert advantages[1] is None
    assert advantages[0] == pytest.approx((2 / 3) / (math.sqrt(1 / 3) + 1e-4))
    assert advantages[2] == advantages[3] == pytest.approx((-1 / 3) / (math.sqrt(1 / 3) + 1e-4))


@pytest.mark.parametrize("equal", [[0.5] * 4, [0.1] * 5, [0.1 + 0.2, 0.3], [1.1] * 7, [-1.0] * 3, [0.7]])
def test_equal_rewards_give_exactly_zero(equal):
    assert group_advantages(equal, ["t"] * len(equal)) == [0.0] * len(equal)


def test_groups_are_formed_by_id():
    assert group_advantages([1.0] * 4 + [0.0] * 4, ["p1"] * 4 + ["p2"] * 4) == [0.0] * 8
    assert group_advantages([1.0, 0.0] * 4, ["p1", "p2"] * 4) == [0.0] * 8
    assert group_advantages([], []) == []


def test_all_masked():
    assert group_advantages([None, None], ["a", "a"]) == [None, None]


@given(labelled, st.randoms())
def test_the_order_of_samples_does_not_matter(samples, random):
    order = list(range(len(samples)))
    random.shuffle(order)
    plain = group_advantages([r for r, _ in samples], [g for _, g in samples])
    shuffled = group_advantages([samples[i][0] for i in order], [samples[i][1] for i in order])
    for place, i in enumerate(order):
        assert shuffled[place] == (None if plain[i] is None else pytest.approx(plain[i], abs=1e-9))


@given(labelled, st.integers(-5, 5))
def test_a_shift_of_all_rewards_changes_nothing(samples, shift):
    ids = [g for _, g in samples]
    plain = group_advantages([r for r, _ in samples], ids)
    shifted = group_advantages([None if r is None else r + shift for r, _ in samples], ids)
    assert [None if a is None else round(a, 6) + 0.0 for a in plain] == [
        None if a is None else pytest.approx(a, abs=2e-6) for a in shifted
    ]


@given(labelled)
def test_advantages_are_finite_and_sum_to_zero_in_every_group(samples):
    advantages = group_advantages([r for r, _ in samples], [g for _, g in samples])
    assert all(a is None or math.isfinite(a) for a in advantages)
    for group in "abc":
        members = [a for a, (_, g) in zip(advantages, samples, strict=True) if g == group and a is not None]
        assert math.fsum(members) == pytest.approx(0.0, abs=1e-9)


def test_penalties_on_plain_numbers():
    assert repetition_penalties(["a", "a", "b", None], 0.6) == pytest.approx([0.2, 0.2, 0.0, 0.0])
    assert repetition_penalties(["a"] * 4, 1.0) == [0.75] * 4
    assert repetition_penalties([], 1.0) == []
    assert penalised([0.8, None, -1.0], [0.2, 0.2, 0.0]) == pytest.approx([0.6, None, -1.0])


@given(clusters, weights)
def test_a_penalty_is_less_than_the_weight_and_nothing_for_those_alone_or_in_no_cluster(ids, weight):
    for cluster, penalty in zip(ids, repetition_penalties(ids, weight), strict=True):
        assert 0.0 <= penalty <= weight
        if cluster is None or ids.count(cluster) == 1:
            assert penalty == 0.0


@given(clusters)
def test_without_a_weight_rewards_stay_as_they_are(ids):
    rewards = [None if i % 3 else 0.1 * i for i in range(len(ids))]
    assert penalised(rewards, repetition_penalties(ids, 0.0)) == rewards


@given(clusters, weights)
def test_members_of_a_cluster_pay_alike_and_larger_clusters_pay_more(ids, weight):
    by_size = sorted((ids.count(c), p) for c, p in zip(ids, repetition_penalties(ids, weight), strict=True) if c)
    for (size, penalty), (next_size, next_penalty) in itertools.pairwise(by_size):
        assert penalty <= next_penalty
        assert size != next_size or penalty == next_penalty


@given(clusters, st.integers(1, 5), weights)
def test_invalid_modules_do_not_change_what_the_others_pay(ids, more, weight):
    assert repetition_penalties([*ids, *[None] * more], weight)[: len(ids)] == repetition_penalties(ids, weight)


@given(clusters, weights, st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=5))
def test_a_valid_module_stays_above_an_invalid_one_and_none_stays_none(ids, weight, tried):
    rewards = [frontier_reward(tried, cluster is not None) for cluster in ids]
    for before, after in zip(rewards, penalised(rewards, repetition_penalties(ids, weight)), strict=True):
        assert (after is None) == (before is None)
        assert before != -1.0 or after == -1.0
        assert before is None or before < 0 or after > -1.0


@given(clusters.filter(lambda ids: None not in ids), weights)
def test_advantages_are_those_of_r_zeros_penalty(ids, weight):
    """Among valid modules it differs from weight times the cluster's share by one number for all."""
    share = [weight * ids.count(cluster) / len(ids) for cluster in ids]
    groups = [i // 4 for i in range(len(ids))]
    ours = group_advantages(penalised([0.8] * len(ids), repetition_penalties(ids, weight)), groups)
    assert ours == pytest.approx(group_advantages(penalised([0.8] * len(ids), share), groups), abs=1e-6)
