"""Keck on a real GPU: verdicts, provenance, late work, times. Run with `make test-gpu`."""

from __future__ import annotations

import pytest

from kernelzero.keck import open_keck
from kernelzero.records import Backend, Basis, Candidate, Status, Task

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0
def get_inputs():
    return [torch.randn(1024, 4096)]
def get_init_inputs():
    return []
"""
HEAD = """
import torch, triton
import triton.language as tl
@triton.jit
def scaled_relu(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.maximum(x, 0.0) * FACTOR, mask=mask)
def launch(x):
    y = torch.empty_like(x)
    scaled_relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""
GOOD = (
    HEAD.replace("FACTOR", "2.0")
    + """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return launch(x)
"""
)
WRONG = GOOD.replace("* 2.0", "* 2.1")
SIDE_STREAM = (
    HEAD.replace("FACTOR", "2.0")
    + """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = launch(x)
        JOIN
        return y
"""
)
COMPUTES = (
    HEAD.replace("FACTOR", "2.0")
    + """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        launch(x)
        return x.relu() * 2.0
"""
)
CASES = {
    "good": (GOOD, Status.CORRECT),
    "wrong": (WRONG, Status.INCORRECT),
    "joined": (SIDE_STREAM.replace("JOIN", "torch.cuda.current_stream().wait_stream(side)"), Status.CORRECT),
    "not joined": (SIDE_STREAM.replace("JOIN", "pass"), Status.REJECTED),
    "computes": (COMPUTES, Status.REJECTED),
    "syntax": ("def f(:\n", Status.COMPILE_ERROR),
    "kernel does not compile": (GOOD.replace("tl.maximum(x, 0.0)", "tl.nothing(x)"), Status.COMPILE_ERROR),
    "far store": (GOOD.replace("y_ptr + offsets", "y_ptr + (1 << 40) + offsets"), Status.RUNTIME_ERROR),
    "endless": (
        GOOD.replace("    tl.store", "    while tl.load(x_ptr, volatile=True) < 1e30:\n        x += 0.0\n    tl.store"),
        Status.TIMEOUT,
    ),
}


@pytest.fixture(scope="module")
def verdicts():
    names = list(CASES)
    with open_keck("cuda") as keck:
        found = dict(keck.judge([(Task(REFERENCE), Candidate(CASES[name][0])) for name in names]))
    return {name: found[index] for index, name in enumerate(names)}


@pytest.mark.parametrize("name", CASES)
def test_status(verdicts, name):
    assert verdicts[name].status is CASES[name][1], verdicts[name].reason


def test_a_time_is_measured(verdicts):
    timing = verdicts["good"].timing
    assert timing.basis is Basis.MEASURED
    assert 1.2 < timing.speedup < 4
    assert timing.speedup_low < timing.speedup < timing.speedup_high
    assert timing.candidate_ms < 0.1
    assert verdicts["good"].kernels == ("scaled_relu",)
    assert verdicts["good"].own_share == 1.0
    assert {"start", "load", "first_call", "calls", "timing"} <= verdicts["good"].phases.keys()
    assert sum(verdicts["good"].phases.values()) == pytest.approx(verdicts["good"].judged_s, rel=0.1)


LINEAR = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1024, 1024)
    def forward(self, x):
        return torch.relu(self.linear(x)) * 2.0
def get_inputs():
    return [torch.randn(2048, 1024)]
def get_init_inputs():
    return []
"""
AFTER_LINEAR = (
    HEAD.replace("FACTOR", "2.0")
    + """
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1024, 1024)
    def forward(self, x):
        return launch(self.linear(x))
"""
)


def one(source, reference=REFERENCE, **terms):
    with open_keck("cuda", 1, **terms) as keck:
        [(_, verdict)] = keck.judge([(Task(reference), Candidate(source))])
    return verdict


def test_hybrid_lets_a_library_run_beside_a_kernel_that_matters():
    verdict = one(AFTER_LINEAR, LINEAR, policy="hybrid")
    assert verdict.status is Status.CORRECT, verdict.reason
    assert 0.02 < verdict.own_share < 0.9
    assert one(AFTER_LINEAR, LINEAR).status is Status.REJECTED
    assert one(COMPUTES, policy="hybrid").status is Status.REJECTED


def test_against_torch_compile():
    compiled, eager = one(GOOD, baseline="torch.compile"), one(GOOD)
    assert compiled.status is Status.CORRECT, compiled.reason
    assert compiled.timing.baseline == "torch.compile"
    # One fused kernel against another: eager runs two.
    assert compiled.timing.reference_ms < 0.75 * eager.timing.reference_ms
    assert 0.8 < compiled.timing.speedup < 1.25


ODD = REFERENCE.replace("1024, 4096", "1023, 77")
CUDA = '''
import torch
from torch.utils.cpp_extension import load_inline
extension = load_inline("odd", cpp_sources="torch::Tensor twice(torch::Tensor x);", cuda_sources="""
#include <torch/extension.h>
__global__ void twice_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i CONDITION n) y[i] = fmaxf(x[i], 0.0f) * 2.0f;
}
torch::Tensor twice(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    twice_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
""", functions=["twice"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return extension.twice(x)
'''
AT_THE_EDGE = {
    "within": (GOOD, None),
    "stores one too far": (GOOD.replace("offsets < n", "offsets <= n"), "beyond the end of a tensor"),
    "loads without a mask": (
        GOOD.replace("tl.load(x_ptr + offsets, mask=mask)", "tl.load(x_ptr + offsets)"),
        "beyond the end of a tensor",
    ),
    "loads from before": (
        GOOD.replace(
            "mask=mask)\n", "mask=mask) + tl.minimum(tl.abs(tl.load(x_ptr + offsets - 128, mask=mask)), 0.0)\n", 1
        ),
        "before the start of a tensor",
    ),
}


@pytest.fixture(scope="module")
def at_the_edge():
    sources = [source for source, _ in AT_THE_EDGE.values()]
    jobs = [(Task(ODD), Candidate(source)) for source in sources]
    jobs += [(Task(ODD), Candidate(CUDA.replace("CONDITION", c), Backend.CUDA)) for c in ("<", "<=")]
    with open_keck("cuda") as keck:
        return dict(keck.judge(jobs, timed=False))


@pytest.mark.parametrize("name", AT_THE_EDGE)
def test_a_kernel_that_leaves_its_tensors(at_the_edge, name):
    verdict, reason = at_the_edge[list(AT_THE_EDGE).index(name)], AT_THE_EDGE[name][1]
    assert verdict.status is (Status.RUNTIME_ERROR if reason else Status.CORRECT), verdict.reason
    assert reason is None or reason in verdict.reason


def test_a_kernel_of_an_extension_that_leaves_its_tensors(at_the_edge):
    within, beyond = (at_the_edge[len(AT_THE_EDGE) + i] for i in (0, 1))
    assert within.status is Status.CORRECT, within.reason
    assert beyond.status is Status.RUNTIME_ERROR, beyond.reason
    assert "beyond the end of a tensor" in beyond.reason
