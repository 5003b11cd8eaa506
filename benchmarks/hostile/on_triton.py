"""Hostile Triton candidates, on a CPU and on a GPU."""

from __future__ import annotations

from hostile.case import Hostile
from kernelzero.records import Candidate

_HEAD = """import sys

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
KERNEL
    tl.store(y_ptr + offsets, x, mask=mask)


def launched(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


TOP


class ModelNew(torch.nn.Module):
    def __init__(self, *arguments):
        super().__init__()
INIT

    def forward(self, *inputs):
        x = inputs[0].contiguous()
        y = launched(x)
FORWARD
        return y
"""


def cases() -> list[Hostile]:
    """All of them. How long it takes until memory is gone depends on the machine, so that may be a time-out too."""
    return [
        _case("python_endless", "timeout", forward="while True:\n    x = y"),
        _case("python_endless_at_import", "timeout", top="while True:\n    pass"),
        _case("python_lock_held", "timeout", forward="sum(range(10**12))"),
        _case("sys_exit", "rejected|runtime_error", forward="sys.exit(0)"),
        _case("system_exit", "runtime_error", forward="raise SystemExit(0)"),
        _case("system_exit_at_import", "runtime_error", top="raise SystemExit(0)"),
        _case("keyboard_interrupt", "runtime_error", forward="raise KeyboardInterrupt"),
        _case("recursion", "runtime_error", forward="return self(*inputs)"),
        _case(
            "host_memory_by_lists", "runtime_error|timeout", init="kept = []\nwhile True:\n    kept.append([0] * 10**7)"
        ),
        _case(
            "tensors_kept",
            "runtime_error|timeout",
            forward="kept = []\nwhile True:\n    kept.append(x.new_empty(1 << 28))",
        ),
        _case("kernel_endless", "timeout", kernel="while tl.load(x_ptr, volatile=True) < 1e30:\n    x += 0.0"),
        _case("kernel_stores_far", "runtime_error", kernel="tl.store(y_ptr + (1 << 40) + offsets, x, mask=mask)"),
        _case("kernel_loads_far", "runtime_error", kernel="x += tl.load(x_ptr - (1 << 40) - offsets, mask=mask)"),
    ]


def _case(name: str, expect: str, kernel: str = "", top: str = "", init: str = "", forward: str = "") -> Hostile:
    source = _HEAD.replace("TOP\n", top)
    for mark, text, depth in (("KERNEL\n", kernel, 4), ("INIT\n", init, 8), ("FORWARD\n", forward, 8)):
        source = source.replace(mark, "".join(" " * depth + line + "\n" for line in text.splitlines()))
    return Hostile(f"triton/{name}", Candidate(source), frozenset(expect.split("|")))
