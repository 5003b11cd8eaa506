"""Metrics of a benchmark. They live in `kernelzero.metrics`, where the report may use them too."""

from __future__ import annotations

from kernelzero.metrics import (
    MixedError,
    bootstrap_interval,
    check_comparable,
    compare,
    failure_kind,
    fast_p_at_k,
    geometric_mean,
    pass_at_k,
    rate_interval,
    summarise,
    wilson_interval,
)

__all__ = [
    "MixedError",
    "bootstrap_interval",
    "check_comparable",
    "compare",
    "failure_kind",
    "fast_p_at_k",
    "geometric_mean",
    "pass_at_k",
    "rate_interval",
    "summarise",
    "wilson_interval",
]
