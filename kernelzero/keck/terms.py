"""By whose rules, tolerances and baseline candidates are judged."""

from __future__ import annotations

from dataclasses import dataclass

from kernelzero.errors import UsageError
from kernelzero.records import Record

PROFILES = ("paper", "kernelbench")
POLICIES = ("strict", "hybrid")
BASELINES = ("eager", "torch.compile")


@dataclass(frozen=True)
class Terms(Record):
    """What a verdict means.

    Raises:
        UsageError: one of them is not known.
    """

    profile: str = "paper"
    """Tolerances (compare.py): "paper", or "kernelbench" for KernelBench's own."""
    policy: str = "strict"
    """Rules of `forward`: "strict" is the paper's, no PyTorch compute and no vendor library. "hybrid" lets PyTorch
    compute beside kernels of the candidate's own that matter: the output comes from them and changes without them."""
    baseline: str = "eager"
    """What the candidate is timed against: "eager", or "torch.compile" (on a GPU)."""

    def __post_init__(self) -> None:
        for name, known in (("profile", PROFILES), ("policy", POLICIES), ("baseline", BASELINES)):
            if getattr(self, name) not in known:
                raise UsageError(f"{name} {getattr(self, name)!r}: {' or '.join(known)}")
