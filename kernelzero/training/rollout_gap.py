"""How far the sampler is from the trainer: does what draws the rollouts hold the weights that are being trained?

A sampler of its own (vLLM, a server) is handed the weights before every step. Where that fails, rollouts come from a
policy that is stale, which no reward shows.
"""

from __future__ import annotations

import torch

WORRYING = 0.02
"""Nats a token. Kernels and precisions that differ (bfloat16 here, float32 there) give some 1e-3; a policy that stands
still while the other learns passes this within a few steps."""


def rollout_gap(drawn_with: torch.Tensor, trained: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """KL of the sampler's policy against the trainer's, in nats a token, estimated on the drawn tokens.

    The estimator is `exp(d) - 1 - d` with `d` the trainer's log-probability minus the sampler's: never negative, unlike
    the plain mean of `-d`, and of low variance (Schulman, "Approximating KL divergence", 2020).

    Args:
        drawn_with: log-probabilities when drawn, shape (rows, tokens); NaN where not known.
        trained: log-probabilities now, same shape.
        mask: 1 for tokens that count, same shape.

    Returns:
        A scalar; NaN where no token counts.
    """
    difference = (trained - drawn_with)[mask.bool() & ~drawn_with.isnan()].double()
    return (difference.exp() - 1 - difference).mean().float()
