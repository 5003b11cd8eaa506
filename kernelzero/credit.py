"""Credit: outcomes to rewards, rewards to advantages. Pure functions on plain numbers.

`None` stands for a sample that nothing is known about: its verdict was an infrastructure error or "unsupported".
It is left out of every mean, and what comes out for it is `None` again, so that a trainer can mask it.

Not covered: what makes an outcome (Keck), and the loss that the advantages go into (training).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

INVALID_REWARD = -1.0
"""Reward of a proposal that is no valid module."""

STD_EPSILON = 1e-4
"""Added to a group's standard deviation, as TRL does, so that both give the same advantages."""

EQUAL_WITHIN = 1e-6
"""Rewards of a group that differ by less than this, relative to the greatest of 1 and their size, are equal.

Far above rounding noise (0.1 + 0.2 against 0.3, or float32 against float64) and far below any real difference."""


def frontier_reward(outcomes: Sequence[bool | None], valid: bool | None) -> float | None:
    """Frontier Reward of one proposal (FO-GRPO): `1 - 2|p - 1/2|`, p being the Coder's mean correctness.

    Args:
        outcomes: Correctness of the frozen Coder's samples; None where there was no outcome.
        valid: Whether the proposal passed the gates; None where the gates could not tell.

    Returns:
        A reward in [0, 1] for a valid proposal, -1 for an invalid one, None where nothing is known.

    Raises:
        ValueError: An outcome is neither true, false nor None.
    """
    known = _known_outcomes(outcomes)
    if valid is None:
        return None
    if not valid:
        return INVALID_REWARD
    if not known:
        return None
    return 1.0 - 2.0 * abs(sum(known) / len(known) - 0.5)


def repetition_penalties(cluster_ids: Sequence[Hashable | None], weight: float) -> list[float]:
    """What each proposal of a step pays for being like the others: `weight · (|C| - 1) / B`.

    `|C|` is the size of its cluster, `B` the number of proposals in clusters. After R-Zero (arXiv 2508.05004), whose
    questions pay `λ · |C| / B` and are clustered by BLEU. Differences: a module alone in its cluster pays nothing here,
    there λ / B, which is the same for all and so cancels among the valid ones of a group; invalid proposals are in no
    cluster and pay nothing, and B leaves them out, so that the price of sameness does not fall with validity; rewards
    are not cut off at 0, as the paper's are, or modules of reward 0 could repeat for nothing.

    What all members of a group pay alike cancels in their advantages: the term acts where the skeletons of a group
    differ. Where its rewards are equal otherwise, the penalty alone is scaled to advantages of ordinary size, however
    small the weight.

    Args:
        cluster_ids: The cluster of each proposal, e.g. its skeleton; None for an invalid or unknown one.
        weight: In [0, 1], so that a valid module stays above an invalid one; 0 switches the term off.

    Returns:
        One penalty a proposal, in [0, weight), 0 where the id is None.

    Raises:
        ValueError: The weight is outside of [0, 1].
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"the weight of repetition is in [0, 1], got {weight}")
    sizes = Counter(cluster for cluster in cluster_ids if cluster is not None)
    total = sizes.total()
    return [0.0 if cluster is None else weight * (sizes[cluster] - 1) / total for cluster in cluster_ids]


def penalised(rewards: Sequence[float | None], penalties: Sequence[float]) -> list[float | None]:
    """Rewards less their penalties; None stays None.

    Raises:
        ValueError: Lengths differ.
    """
    if len(rewards) != len(penalties):
        raise ValueError(f"{len(rewards)} rewards but {len(penalties)} penalties")
    return [None if r is None else r - penalty for r, penalty in zip(rewards, penalties, strict=True)]


def correctness_aware_rewards(
    correct: Sequence[bool | None], speedups: Sequence[float | None], alpha: float = 0.5, beta: float = 0.1
) -> list[float | None]:
    """Rewards of one group of the Coder (CA-GRPO): `r_i = c_i (1 + [mean(c) >= alpha] beta S_i)`.

    `S_i` is the speedup min-max-normalised over the group's correct samples; 0 where they are all equal.
    A correct sample without a finite speedup has `S_i = 0` and takes no part in minimum and maximum.

    Args:
        correct: Correctness of the G samples; None where there was no outcome.
        speedups: Their speedups, read for correct samples only; None where no time was taken.
        alpha: Mean correctness from which on speed is rewarded: 0 always, more than 1 never.
        beta: Weight of speed against correctness.

    Returns:
        G finite rewards, None where `correct` is None.

    Raises:
        ValueError: Lengths differ, alpha or beta is not finite, or an outcome is neither true, false nor None.
    """
    if len(correct) != len(speedups):
        raise ValueError(f"{len(correct)} outcomes but {len(speedups)} speedups")
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        raise ValueError(f"alpha and beta are finite numbers, got {alpha} and {beta}")
    known = _known_outcomes(correct)
    rewards_speed = bool(known) and sum(known) / len(known) >= alpha
    bonus = _min_max([speedup if c else None for c, speedup in zip(correct, speedups, strict=True)])
    weight = beta if rewards_speed else 0.0
    return [None if c is None else (1.0 + weight * s if c else 0.0) for c, s in zip(correct, bonus, strict=True)]


def group_advantages(rewards: Sequence[float | None], group_ids: Sequence[Hashable]) -> list[float | None]:
    """Group-relative advantages (GRPO): `(reward - group mean) / (group std + 1e-4)`.

    The standard deviation is the sample's (divided by n - 1), with TRL's epsilon, so that numbers compare with
    other GRPO runs. Groups are formed by id; where their members stand does not matter. Equal rewards, and
    groups with a single reward, give exactly 0.

    Args:
        rewards: One reward a sample; None is left out of its group's mean and deviation.
        group_ids: The id of each sample's group, the task's id.

    Returns:
        One advantage a sample, None where the reward is None. They sum to 0 in every group.

    Raises:
        ValueError: Lengths differ or a reward is not finite.
    """
    if len(rewards) != len(group_ids):
        raise ValueError(f"{len(rewards)} rewards but {len(group_ids)} group ids")
    groups: dict[Hashable, list[float]] = {}
    for reward, group_id in zip(rewards, group_ids, strict=True):
        if reward is None:
            continue
        if not math.isfinite(reward):
            raise ValueError(f"a reward is a finite number, got {reward} in group {group_id!r}")
        groups.setdefault(group_id, []).append(float(reward))
    scales = {group_id: _mean_and_scale(members) for group_id, members in groups.items()}
    return [None if r is None else _advantage(r, *scales[g]) for r, g in zip(rewards, group_ids, strict=True)]


def _known_outcomes(outcomes: Sequence[bool | None]) -> list[bool]:
    for outcome in outcomes:
        if outcome is not None and outcome not in (0, 1):
            raise ValueError(f"an outcome is true, false or None, got {outcome!r}")
    return [bool(outcome) for outcome in outcomes if outcome is not None]


def _min_max(values: Sequence[float | None]) -> list[float]:
    # Halved before subtracting: the span of two large numbers must not overflow.
    halves = [value / 2 for value in values if value is not None and math.isfinite(value)]
    low, span = min(halves, default=0.0), max(halves, default=0.0) - min(halves, default=0.0)
    if span == 0.0:
        return [0.0] * len(values)
    return [(v / 2 - low) / span if v is not None and math.isfinite(v) else 0.0 for v in values]


def _mean_and_scale(members: Sequence[float]) -> tuple[float, float | None]:
    mean = math.fsum(members) / len(members)
    if max(members) - min(members) <= EQUAL_WITHIN * max(1.0, abs(mean)):
        return mean, None
    variance = math.fsum((reward - mean) ** 2 for reward in members) / (len(members) - 1)
    return mean, math.sqrt(variance) + STD_EPSILON


def _advantage(reward: float, mean: float, scale: float | None) -> float:
    return 0.0 if scale is None else (float(reward) - mean) / scale
