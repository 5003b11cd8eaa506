"""Answers that code written for a GPU expects from `torch.cuda`, on a machine without one.

Honest kernels ask for the current device, its number of multiprocessors, or a stream; on a CPU they would fail before
they start. What needs a real driver (Triton's own device queries, autotuning) raises Unsupported instead.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch

from kernelzero.keck.ledger import ACTIVE

PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=150_754_820_096,
    max_threads_per_multi_processor=2048,
    warp_size=32,
    L2_cache_size=62_914_560,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    regs_per_multiprocessor=65536,
)
"""What `torch.cuda.get_device_properties` says: the GPU that kernels are compiled for."""


class _Stream:
    """A stream that does nothing; there is only one order of execution here."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def record_event(self, *_: Any) -> None: ...


class NoDriver:
    """Stands where Triton keeps its GPU driver: whatever is asked of it cannot be answered here."""

    def __getattr__(self, name: str) -> Any:
        raise ACTIVE.cannot(f"there is no GPU driver here (asked for {name})")


def install() -> None:
    """Replace the queries of `torch.cuda` and Triton's driver in this process."""
    from triton.runtime import driver

    answers = {
        "is_available": lambda: True,
        "synchronize": lambda *_: None,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda *_: None,
        "get_device_properties": lambda *_: PROPERTIES,
        "get_device_capability": lambda *_: (PROPERTIES.major, PROPERTIES.minor),
        "get_device_name": lambda *_: PROPERTIES.name,
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "Stream": _Stream,
        "device": lambda *_: contextlib.nullcontext(),
        "stream": lambda *_: contextlib.nullcontext(),
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    driver.set_active(NoDriver())
