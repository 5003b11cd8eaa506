"""The rulebook's kernels for whole modules, several kernels each, judged by Keck on the CPU."""

from __future__ import annotations

import random
import sys

import pytest

from kernelzero.coldstart.rulebook import CannotWrite
from kernelzero.coldstart.rulebook.loops import write_triton
from kernelzero.keck import LocalKeck
from kernelzero.keck.limits import Limits
from kernelzero.records import Candidate, Status, Task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="judging kernels needs Linux")

MODULE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {args}):
        {body}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
MATRIX, CUBE, IMAGE = "torch.randn(6, 33)", "torch.randn(4, 5, 24)", "torch.randn(2, 8, 5, 6)"


def module(body, inputs=MATRIX, init="pass", args="x"):
    return MODULE.format(body=body, inputs=inputs, init=init, args=args)


POSITIVE = "torch.rand(6, 33) + 0.5"
TWO = f"{MATRIX}, {MATRIX}"
UNARY = """
relu tanh sigmoid exp neg square log1p expm1 sign abs floor ceil trunc round sin cos erf erfc exp2 frac sinh
cosh asinh rad2deg deg2rad sinc isnan isfinite logical_not
"""
OF_POSITIVE = """
sqrt rsqrt log log2 log10 reciprocal acosh
"""
ACTIVATIONS = """
F.silu(x) F.mish(x) F.relu6(x) F.hardswish(x) F.hardsigmoid(x) F.selu(x) F.softsign(x) F.tanhshrink(x)
F.logsigmoid(x) F.gelu(x) F.gelu(x,approximate='tanh') F.leaky_relu(x,0.2) F.elu(x,0.5) F.celu(x,0.7)
F.hardtanh(x,-0.5,0.7) F.softplus(x,2.0) F.threshold(x,0.1,0.2) F.hardshrink(x) F.softshrink(x)
x.clamp(-0.5,0.5) x.clamp_min(0.1) x.pow(3) torch.logit(torch.sigmoid(x)) torch.nan_to_num(x)
x.masked_fill(x>0.5,-1.0) torch.where(x>0,x,x*0.1)
F.glu(x[:,:32]) torch.sgn(x) torch.special.expit(x) torch.special.entr(x.abs())
"""
BINARY = """
x+y x-y x*y x/(y.abs()+0.5) torch.maximum(x,y) torch.minimum(x,y) x<y x.eq(y) torch.add(x,y,alpha=2)
torch.fmod(x,y.abs()+0.5) torch.remainder(x,y.abs()+0.5) torch.logaddexp(x,y) torch.lerp(x,y,0.3)
torch.addcmul(x,x,y,value=0.5) torch.pow(x.abs()+0.5,y) torch.logical_and(x>0,y>0) torch.cat([x,y],1)
torch.stack([x,y],1) torch.xlogy(x.abs(),y.abs()+0.5) F.linear(x,y) torch.outer(x[0],y[0])
torch.cat([x,y],dim=0).flip(0)
torch.logaddexp2(x,y) torch.heaviside(x,y) torch.special.xlog1py(x,y.abs()) torch.dist(x,y) torch.kron(x,y[:2,:3])
torch.tensordot(x,y,dims=([1],[1])) torch.cdist(x,y) torch.column_stack([x,y]).relu() torch.addr(x[:,:6],x[:,0],y[:,1])
torch.linalg.vecdot(x,y)
"""
REDUCTIONS = """
x.sum(1) x.sum() x.mean(0) x.mean((0,1),keepdim=True) x.amax(1) x.amin(0) x.max(1)[0] x.min(1).values
x.argmax(1) x.argmin(0) x.max() x.var(1) x.std(1,unbiased=False) x.norm() x.norm(p=1,dim=1) x.logsumexp(1)
x.prod(1) torch.any(x>1,1) torch.all(x>-1,1) torch.cumsum(x,1) torch.cumsum(x,0) torch.cumprod(x*0.5,1)
torch.var_mean(x,1)[0] torch.count_nonzero(x>0,1) F.normalize(x,dim=1) torch.softmax(x,1) torch.softmax(x,0)
F.log_softmax(x,1) F.softmin(x,1) F.layer_norm(x,(33,)) F.rms_norm(x,(33,))
torch.aminmax(x,dim=1)[1] torch.nanmean(x,1) torch.trace(x)
"""
LAYOUT = """
x.reshape(3,-1).relu() x.view(6,3,11).sum(1) x.t().contiguous()+1 x.unsqueeze(1).expand(6,4,33)*2
x.repeat(2,1)+1 x[:,3:20:2].exp() x[1:4,None,:5].relu() x.flip(1).relu() x.roll(3,1).relu() x.tril().relu()
x.triu(1).relu() x.narrow(1,2,7).relu() x.select(1,3).relu() x.chunk(3,dim=1)[1].relu()
x.split([10,23],1)[1].relu() x.unbind(0)[2].relu() x.flatten().relu() x.repeat_interleave(2,1).relu()
x.transpose(0,1).sum(0) x.movedim(0,1).relu() x.size(1)*x x.diagonal()*2 torch.einsum('ij,kj->ik',x,x)
torch.einsum('ij->j',x) x.view(-1,11).softmax(-1).view(6,33)
x.ravel().relu() torch.diff(x,dim=1) torch.rot90(x).relu() torch.meshgrid(x[0],x[1],indexing='ij')[1].relu()
"""
LAYERS = {
    "linear": ("F.relu(self.m(x))", "torch.randn(20, 40)", "self.m = nn.Linear(40, 24)"),
    "two linears": ("self.m[2](torch.tanh(self.m[0](x)))", "torch.randn(20, 40)",
                    "self.m = nn.Sequential(nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, 33))"),
    "sequential": ("self.m(x)", "torch.randn(20, 40)",
                   "self.m = nn.Sequential(nn.Linear(40, 24), nn.GELU(), nn.LayerNorm(24))"),
    "layer norm": ("self.m(x)", CUBE, "self.m = nn.LayerNorm((5, 24))"),
    "batch norm": ("F.relu(self.m(x))", IMAGE, "self.m = nn.BatchNorm2d(8)"),
    "group norm": ("self.m(x)", IMAGE, "self.m = nn.GroupNorm(2, 8)"),
    "instance norm": ("self.m(x) * 2", IMAGE, "self.m = nn.InstanceNorm2d(8, affine=True)"),
    "rms norm": ("self.m(x)", CUBE, "self.m = nn.RMSNorm(24)"),
    "local response norm": ("self.m(x)", IMAGE, "self.m = nn.LocalResponseNorm(3)"),
    "prelu": ("self.m(x)", IMAGE, "self.m = nn.PReLU(8)"),
    "bilinear": ("self.m(x, x)", "torch.randn(6, 9)", "self.m = nn.Bilinear(9, 9, 7)"),
    "parameter": ("x * self.w + self.w.sum()", MATRIX, "self.w = nn.Parameter(torch.randn(33))"),
    "residual": ("F.softmax(self.m(x), -1) + x", "torch.randn(20, 40)", "self.m = nn.Linear(40, 40)"),
    "gate": ("torch.sigmoid(self.m(x)) * x.mean(1, keepdim=True)", "torch.randn(20, 40)", "self.m = nn.Linear(40, 40)"),
    "wide softmax": ("torch.softmax(x, -1)", "torch.randn(2, 9000)", "pass"),
    "attention": ("F.scaled_dot_product_attention(x, x, x, is_causal=True)", "torch.randn(2, 2, 20, 16)", "pass"),
    "batches": ("torch.matmul(x, x.transpose(-1, -2)) @ x", CUBE, "pass"),
    "matrix and vector": ("x @ x[0]", "torch.randn(40, 40)", "pass"),
    "vector and matrix": ("x[0] @ x + 1", "torch.randn(40, 40)", "pass"),
    "dot": ("torch.dot(x[0], x[1])", "torch.randn(4, 40)", "pass"),
    "few long rows": ("x.mean()", "torch.randn(4, 32768)", "pass"),
    "a long row": ("x.amax(1, keepdim=True)", "torch.randn(2, 65536)", "pass"),
    "shapes as arguments": ("x.contiguous().view(*x.shape[:-1], -1, 4).mean(-1)", CUBE, "pass"),
    "in a loop": ("torch.stack([torch.relu(x - i) for i in range(x.shape[0])]).sum(0)", CUBE, "pass"),
    "reflecting convolution": ("self.m(x)", IMAGE, "self.m = nn.Conv2d(8, 4, 3, padding=1, padding_mode='reflect')"),
    "half": ("torch.relu(x) * 2", "torch.randn(6, 20).half()", "pass"),
    "half sum": ("x.sum(1)", "torch.randn(6, 40).half()", "pass"),
    "integers": ("x * 2 + 1", "torch.randint(0, 9, (6, 20))", "pass"),
    "baddbmm": ("torch.baddbmm(x, x, x, beta=0.5, alpha=2.0)", "torch.randn(3, 20, 20)", "pass"),
}  # fmt: skip
CASES = (
    {f"torch.{n}": module(f"return torch.{n}(x)") for n in UNARY.split()}
    | {f"torch.{n}(+)": module(f"return torch.{n}(x)", POSITIVE) for n in OF_POSITIVE.split()}
    | {text: module(f"return {text}") for text in (ACTIVATIONS + REDUCTIONS + LAYOUT).split()}
    | {text: module(f"return {text}", TWO, args="x, y") for text in BINARY.split()}
    | {name: module(f"return {body}", inputs, init) for name, (body, inputs, init) in LAYERS.items()}
)


SHAPES = [(6, 40), (33, 24), (3, 5, 24), (2, 3, 4, 20)]
STEPS = """
torch.relu({a}) torch.tanh({a}) F.gelu({a}) {a}*1.5 -{a} {a}.abs() F.softplus({a}) {a}.clamp(-1,1) {a}**2
{a}+{b} {a}*{b} {a}-{b} torch.maximum({a},{b}) torch.where({a}>0,{a},{b}) {a}/(1+{b}.abs())
torch.softmax({a},-1) {a}-{a}.mean(-1,keepdim=True) {a}*{a}.amax(0,keepdim=True) F.normalize({a},dim=-1)
torch.log_softmax({a},0) {a}.cumsum(-1) F.layer_norm({a},({n},)) {a}+{a}.sum()*0.01
{a}.flip(-1) {a}.roll(2,0) torch.cat([{a}[...,1:],{a}[...,:1]],-1) {a}.reshape(-1).view({shape})
torch.stack([{a},{b}],0)[1] torch.matmul({a},{b}.transpose(-1,-2))@{a}*0.1 self.linear({a})
"""
ENDS = ["{z}", "{z} + {a}", "{z}.sum(-1)", "({z}, {a} * 2)"]


def random_module(seed):
    """Several operators on two inputs, with values that are used twice, late, or not at all."""
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    names, lines = ["x", "y"], []
    for step in range(rng.randint(2, 7)):
        text = rng.choice(STEPS.split()).format(
            a=rng.choice(names[-3:]), b=rng.choice(names), n=shape[-1], shape=", ".join(map(str, shape))
        )
        lines.append(f"v{step} = {text}")
        names.append(f"v{step}")
    lines.append("return " + rng.choice(ENDS).format(z=names[-1], a=names[-2]))
    draw = f"torch.randn{shape}"
    init = f"self.linear = nn.Linear({shape[-1]}, {shape[-1]})"
    return module("\n        ".join(lines), f"{draw}, {draw}", init, "x, y")


CASES |= {f"random {seed}": random_module(seed) for seed in range(10)}


@pytest.fixture(scope="module")
def verdicts():
    names = [(name, i % 2) for i, name in enumerate(CASES)] + [
        (name, 1 - i % 2) for i, name in enumerate(CASES) if name in LAYERS
    ]
    jobs = [(Task(CASES[n]), Candidate(write_triton(CASES[n], v))) for n, v in names]
    with LocalKeck(2, limits=Limits(timeout_s=20.0), profile="kernelbench") as keck:
        found = dict(keck.judge(jobs, timed=False))
    return {name: found[i] for i, name in enumerate(names)}


@pytest.mark.parametrize("name", CASES)
def test_it_is_right(verdicts, name):
    for variant in (0, 1):
        verdict = verdicts.get((name, variant))
        assert verdict is None or verdict.status is Status.CORRECT, verdict.reason


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return torch.sort(x)[0]", "sort is not in the rulebook"),
        ("return F.dropout(x, 0.5)", "dropout that is on"),
        ("return torch.lgamma(x)", "lgamma"),
        ("return x if x.sum() > 0 else -x", "control flow"),
        ("return torch.fft.fft(x).real", "fft"),
    ],
)
def test_what_it_cannot_do_it_refuses_by_name(body, named):
    with pytest.raises(CannotWrite, match=named):
        write_triton(module(body))
