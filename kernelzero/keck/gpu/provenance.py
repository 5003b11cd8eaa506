"""Whether the kernels that ran are the candidate's own: by exact name, nothing else beside them.

What ran comes from CUPTI, what is the candidate's own from the compiler. Beside those only PyTorch's kernels that copy
or fill may run, and no more of them than allowed operators were seen. Vendor libraries need no list of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_LAYOUT = ("copy", "Copy", "fill", "Fill", "arange", "Cat")
_DELAY = "spin_kernel"
"""What torch.cuda._sleep runs; Keck delays streams with it, and whoever else does only loses time."""


def foreign_kernel(
    ran: Sequence[Sequence[Any]], own: Iterable[str], torch_kernels: int | None, *, libraries: bool = False
) -> str | None:
    """The reason why what ran is not the candidate's, None where it is.

    Args:
        ran: (name, stream, nanoseconds) of each kernel that ran in one call.
        own: names of the candidate's kernels, as their compiler wrote them.
        torch_kernels: how many of PyTorch's copies and fills can be accounted for; None: any number.
        libraries: whether kernels of PyTorch and its libraries may run beside the candidate's own (policy "hybrid").
    """
    names = [name for kernel in ran if _DELAY not in (name := str(kernel[0]))]
    known = set(own)
    others = [name for name in names if name not in known]
    for name in others if not libraries else ():
        if "2at6native" not in name or not any(word in name for word in _LAYOUT):
            return f"a kernel that is not the candidate's own ran: {_short(name)}"
    if torch_kernels is not None and not libraries and len(others) > torch_kernels:
        return f"PyTorch ran {len(others)} kernels where {torch_kernels} copies and fills were seen"
    if len(others) == len(names):
        return "forward launched no kernel of its own"
    return None


def share_of(ran: Sequence[Sequence[Any]], own: Iterable[str]) -> float | None:
    """The share of the kernels' time that the candidate's own took, None where nothing ran for a measurable time.

    Fills do not count: in a checked call Keck poisons what is allocated.
    """
    known = set(own)
    times = [(str(name) in known, int(ns)) for name, _, ns in ran if not any(w in str(name) for w in (_DELAY, "Fill"))]
    total = sum(ns for _, ns in times)
    return round(sum(ns for is_own, ns in times if is_own) / total, 4) if total > 0 else None


def _short(name: str) -> str:
    return name if len(name) <= 120 else name[:117] + "..."
