"""Kernels program by program and many programs at once, in a process of its own: python -m tests.lanes_compare N.

Prints JSON: for each kernel whether outputs and the cost model's counts are the same, and how many launches had lanes.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import torch

OWN = """
import torch, triton
import triton.language as tl
@triton.jit
def tiles(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (r[:, None] < M) & (c[None, :] < N)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :], mask=mask, other=0.0)
    top = tl.max(x, axis=1)
    low = tl.min(x, axis=0)
    y = tl.trans(tl.trans(x) - top[None, :]) * 0.5 + low[None, :] + tl.sum(x) + tl.argmax(x, axis=1)[:, None].to(tl.float32)
    tl.store(y_ptr + r[:, None] * N + c[None, :], tl.where(y > 0, y, -y), mask=mask)
@triton.jit
def scans(x_ptr, y_ptr, N, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    x = tl.load(x_ptr + row * N + i, mask=i < N, other=0.0)
    up = tl.cumsum(x, axis=0)
    down = tl.cumsum(x, axis=0, reverse=True)
    scale = tl.load(x_ptr + row * N)
    tl.store(y_ptr + row * N + i, up * scale - down, mask=i < N)
@triton.jit
def products(x_ptr, y_ptr, M, N, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    k = tl.arange(0, 16)
    w = tl.load(x_ptr + k[:, None] * N + k[None, :])
    x = tl.load(x_ptr + r[:, None] * N + k[None, :], mask=r[:, None] < M, other=0.0)
    tl.store(y_ptr + r[:, None] * N + k[None, :], tl.dot(x, w, input_precision="ieee"), mask=r[:, None] < M)
@triton.jit
def own_ways(x_ptr, y_ptr, M, N, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for k in range(0, row + 1):
        total += tl.load(x_ptr + k * N + i, mask=i < N, other=0.0)
    if row % 2 == 0:
        total = -total
    tl.store(y_ptr + row * N + i, total, mask=i < N)
@triton.jit
def shared_sum(x_ptr, y_ptr, N, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    tl.atomic_add(y_ptr + i, tl.load(x_ptr + row * N + i, mask=i < N, other=0.0), mask=i < N)
@triton.jit
def neighbours(x_ptr, y_ptr, N, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    tl.store(y_ptr + row * N + i, 1.0, mask=i < N)
    other = tl.load(y_ptr + (row + 1) % 24 * N + i, mask=i < N, other=0.0)
    tl.store(y_ptr + row * N + i, other, mask=i < N)
@triton.jit
def by_index(p_ptr, y_ptr, N, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    old = tl.load(y_ptr + tl.load(p_ptr + row) * N + i, mask=i < N, other=0.0)
    tl.store(y_ptr + row * N + i, old + 1.0, mask=i < N)
class Indexed(torch.nn.Module):
    def forward(self, x, p):
        y = torch.zeros_like(x)
        by_index[(x.shape[0],)](p, y, x.shape[1], B=32)
        return y
class ModelNew(torch.nn.Module):
    def __init__(self, which):
        super().__init__()
        self.which = which
    def forward(self, x):
        M, N = x.shape
        y = torch.zeros_like(x)
        if self.which == "tiles":
            tiles[(triton.cdiv(M, 8), triton.cdiv(N, 16))](x, y, M, N, BM=8, BN=16)
        elif self.which == "scans":
            scans[(M,)](x, y, N, B=32)
        elif self.which == "products":
            products[(triton.cdiv(M, 16),)](x, y, M, N, B=16)
        elif self.which == "own_ways":
            own_ways[(M,)](x, y, M, N, B=32)
        elif self.which == "shared_sum":
            shared_sum[(M,)](x, y, N, B=32)
        else:
            neighbours[(M,)](x, y, N, B=32)
        return y
"""  # noqa: E501


def main(count: int) -> None:
    """Compare all of OWN and `count` composed modules."""
    from kernelzero.keck import zygote

    torch.set_num_threads(1)
    zygote.preload("cpu")
    from kernelzero.keck import child

    runtime = child.RUNTIME
    folder = Path(tempfile.mkdtemp())
    found = []
    for which in ("tiles", "scans", "products", "own_ways", "shared_sum", "neighbours"):
        module = _import(folder, f"own_{which}", OWN, runtime)
        torch.manual_seed(1)
        found.append(_compared(which, module.ModelNew(which), [torch.randn(24, 20)], runtime))
    found += _faults(module.Indexed(), runtime)
    for number in range(count):
        found.append(_composed(number, folder, runtime))
    print(json.dumps([entry for entry in found if entry]))


def _composed(number, folder, runtime):
    from kernelzero.coldstart.rulebook import CannotWrite, write_kernel
    from kernelzero.proposer.composer import CannotCompose, compose_module, draw

    try:
        task = compose_module(draw(31, number), number)
        kernel = write_kernel(task, variant=number % 2)
    except (CannotCompose, CannotWrite):
        return None
    reference = _import(folder, f"reference_{number}", task.source, None)
    candidate = _import(folder, f"candidate_{number}", kernel, runtime)
    torch.manual_seed(2)
    with runtime.hosted(True):
        model = candidate.ModelNew(*reference.get_init_inputs())
    return _compared(task.source, model, reference.get_inputs(), runtime)


def _faults(model, runtime):
    """What is told of a launch with lanes whose data lead programs astray, after one whose data do not."""
    from kernelzero.keck import trace

    good, x = torch.arange(24), torch.zeros(24, 20)
    found = []
    for name, index in (("race", good.roll(1)), ("outside", good + 1000), ("own", good)):
        trace.RECORDER._traces.clear()
        first = _call(model, [x, good], runtime)
        assert [t.lanes for traces in trace.RECORDER._traces.values() for t in traces if t.lanes]
        found.append(
            {"name": name, "same": first[-1] == "ran", "lanes": 1, "single": _call(model, [x, index], runtime)[-1]}
        )
    return found


def _compared(name, model, inputs, runtime):
    from kernelzero.keck import trace

    recorder = trace.RECORDER
    once, start = recorder.at_once, recorder.run_at_once
    with_lanes = [0]

    def run_at_once(*arguments):
        done = start(*arguments)
        with_lanes[0] += done
        return done

    recorder._traces.clear()
    recorder.at_once = lambda key: 0
    single = _call(model, inputs, runtime)
    recorder._traces.clear()
    recorder.at_once, recorder.run_at_once = once, run_at_once
    try:
        both = [_call(model, inputs, runtime) for _ in range(2)]
    finally:
        recorder.run_at_once = start
        del recorder.at_once, recorder.run_at_once
    same = all(_same(single, other) for other in both)
    return {"name": name, "same": same, "lanes": with_lanes[0], "single": single[-1]}


def _same(a, b):
    """Values and launches are equal. The modelled time hardly differs: a replay leaves out what is always the same."""
    if len(a) == 1 or len(b) == 1:
        return a == b
    return a[:2] == b[:2] and abs(a[2] - b[2]) <= 0.01 * a[2]


def _call(model, inputs, runtime):
    from kernelzero.keck.cost import Meter
    from kernelzero.keck.ledger import ACTIVE
    from kernelzero.keck.values import tensors

    ACTIVE.meter = Meter()
    try:
        output = runtime.forward(model, [i.clone() if isinstance(i, torch.Tensor) else i for i in inputs], True, None)
    except BaseException as error:
        return [f"{type(error).__name__}: {error}"]
    values = [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in tensors(output)]
    return [values, ACTIVE.meter.launches, round(ACTIVE.meter.milliseconds, 12), "ran"]


def _import(folder, name, source, runtime):
    (folder / f"{name}.py").write_text(source)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if runtime is None:
        spec.loader.exec_module(module)
    else:
        with runtime.hosted(True):
            spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(int(sys.argv[1]))
