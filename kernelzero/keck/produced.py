"""Which memory the candidate's kernels of this call could write to: an output that lies elsewhere is not theirs."""

from __future__ import annotations

import torch

from kernelzero.keck.ledger import ACTIVE

_produced: dict[int, int] = {}
"""Start → end of every storage that a kernel has stored to (CPU) or was given (GPU) during this call."""


def forget() -> None:
    """Start a new call: nothing has been produced yet."""
    _produced.clear()


def mark_range(start: int, end: int) -> None:
    """Addresses [start, end) are produced."""
    _produced[start] = end


def mark(tensor: torch.Tensor) -> None:
    """The tensor's storage is produced: a kernel was given it, or it is a layout copy of something produced."""
    storage = tensor.untyped_storage()
    _produced[storage.data_ptr()] = storage.data_ptr() + storage.nbytes()


def given(tensor: torch.Tensor) -> None:
    """Mark it, now and whenever the CUDA graph that is being captured is replayed."""
    mark(tensor)
    if ACTIVE.capturing is not None:
        ACTIVE.capturing.append(tensor)


def is_produced(tensor: torch.Tensor) -> bool:
    """Whether the tensor's storage is."""
    return tensor.untyped_storage().data_ptr() in _produced
