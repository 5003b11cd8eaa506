"""Terms of judging: policies on the CPU, and what cannot be asked for."""

import pytest

from kernelzero.errors import UsageError
from kernelzero.keck import LocalKeck
from kernelzero.keck.terms import Terms
from kernelzero.records import Candidate, Status, Task

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(24, 40)
    def forward(self, x):
        return torch.relu(self.linear(x) * 2.0)

def get_inputs():
    return [torch.randn(33, 24)]

def get_init_inputs():
    return []
"""
KERNEL = """
import torch, triton
import triton.language as tl

@triton.jit
def {name}(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, {value}, mask=i < n)

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(24, 40)
    def forward(self, x):
        h = self.linear(x)
        y = torch.empty_like(h)
        {name}[(triton.cdiv(h.numel(), 256),)](h, y, h.numel(), BLOCK=256)
        return {answer}
"""
USEFUL = KERNEL.format(name="double_relu", value="tl.maximum(x * 2.0, 0.0)", answer="y")
ADDS_ZERO = KERNEL.format(name="zero", value="x * 0.0", answer="torch.relu(h * 2.0) + y")
DROPPED = KERNEL.format(name="double_relu", value="tl.maximum(x * 2.0, 0.0)", answer="torch.relu(h * 2.0)")


def judge(source, **terms):
    with LocalKeck(1, **terms) as keck:
        [(_, verdict)] = keck.judge([(Task(REFERENCE), Candidate(source))])
    return verdict


def test_hybrid_lets_pytorch_compute_beside_a_kernel_that_matters():
    verdict = judge(USEFUL, policy="hybrid")
    assert (verdict.status, verdict.policy) == (Status.CORRECT, "hybrid")
    strict = judge(USEFUL)
    assert (strict.status, strict.policy) == (Status.REJECTED, "strict")
    assert "addmm" in strict.reason or "linear" in strict.reason


def test_hybrid_refuses_kernels_for_show():
    verdict = judge(ADDS_ZERO, policy="hybrid")
    assert verdict.status is Status.REJECTED
    assert verdict.reason == "the kernels do not matter: the output is the same without them"
    verdict = judge(DROPPED, policy="hybrid")
    assert (verdict.status, verdict.reason) == (
        Status.REJECTED,
        "the output does not come from a kernel of this call",
    )


def test_terms_that_there_are_not():
    with pytest.raises(UsageError, match="policy 'lax': strict or hybrid"):
        Terms(policy="lax")
    with pytest.raises(UsageError, match="measured on a GPU only"):
        LocalKeck(1, baseline="torch.compile")
