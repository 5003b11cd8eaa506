"""Modules by the rulebook in both languages: Triton judged by Keck on the CPU, CUDA C++ as host code against PyTorch.

The CUDA kernels read and write tensors that lie between pages that nobody may touch, once at the end and once at the
beginning of their own, so that a load outside of a tensor is a crash. Not covered: what only a GPU shows.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_rulebook_cuda import HOST

from kernelzero.coldstart.rulebook import CannotWrite
from kernelzero.coldstart.rulebook.graph import load
from kernelzero.coldstart.rulebook.loops import cuda_text, write_triton
from kernelzero.coldstart.rulebook.loops.cuda_text import Written
from kernelzero.coldstart.rulebook.loops.expr import Buffer
from kernelzero.coldstart.rulebook.loops.read import read
from kernelzero.coldstart.rulebook.loops.value import Program
from kernelzero.keck import open_keck
from kernelzero.records import Candidate, Status, Task, Verdict

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="judging kernels needs Linux")

MODULE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, {names}):
        return {body}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
MATRIX, SQUARE, CUBE = "torch.randn(6, 9)", "torch.randn(6, 6)", "torch.randn(2, 5, 7)"
SHARES, COLUMN = "torch.rand(6, 9) * 0.8 + 0.1", "torch.randn(6, 1)"
WHOLE, TRUTHS = "torch.randint(0, 99, (6, 9))", "torch.randn(6, 9) > 0"
CHANNELS = ("torch.randn(4, 3, 5)", "torch.randn(3)", "torch.rand(3) + 0.5")
ONE: dict[str, tuple[str, ...]] = {
    MATRIX: (
        "torch.fliplr(x) * 2", "torch.flipud(x) * 2", "torch.flip(x, dims=(0, 1)) * 2", "torch.nansum(x.sqrt(), dim=1)",
        "torch.special.erf(x)", "torch.special.erfc(x)", "torch.special.exp2(x)", "torch.special.expm1(x)",
        "torch.special.sinc(x)", "torch.special.round(x)", "torch.special.ndtr(x)", "torch.special.softmax(x, dim=1)",
        "torch.special.log_softmax(x, dim=0)", "torch.special.logsumexp(x, dim=1)",
        "torch.linalg.diagonal(x, offset=1) + 1", "torch.diagonal(x, offset=-2) * 2", "torch.diag(x) * 2",
        "torch.diag(x, 2) * 2", "torch.diag(x[0], -1) * 2", "torch.diag_embed(x) * 2", "torch.trace(x)",
        "torch.linalg.norm(x)", "torch.linalg.norm(x, 1)", "torch.linalg.norm(x, 1, dim=1)",
        "torch.linalg.norm(x, ord=3, dim=0)", "torch.linalg.norm(x, 'fro')", "torch.linalg.norm(x, 0, dim=1)",
        "torch.linalg.norm(x, dim=(0, 1), keepdim=True)", "torch.linalg.vector_norm(x, 1)", "torch.norm(x, p=1)",
        "torch.norm(x, p=1, dim=1)", "x.norm(dim=1, keepdim=True)", "x.norm(float('inf'), 0)",
        "torch.copysign(x, -1.0)", "torch.atan(x)", "torch.signbit(x)", "~(x > 0)",
        "torch.layer_norm(x, (9,), None, None, 1e-5, False)", "torch.tensor_split(x, 4, dim=1)[1] * 2",
        "torch.tensor_split(x, (2, 5), 1)[1] * 2", "torch.tensor_split(x, [2, -1])[2] * 2",
        "torch.float_power(x, 2.0).float()", "torch.float_power(x, 3).float() + x.double().float()",
    ),
    CUBE: (
        "F.pad(x, (2, 2), value=0.5).amax(dim=-1)", "F.log_softmax(F.pad(x, (2, 2)), dim=-2)",
        "torch.linalg.diagonal(x) * 2", "torch.diagonal(x, 1, 0, 2) * 2", "torch.linalg.matrix_norm(x)",
        "torch.linalg.matrix_norm(x, 1)", "torch.linalg.matrix_norm(x, float('inf'), (0, 2))",
        "torch.linalg.matrix_norm(x, -1, keepdim=True)", "torch.linalg.vector_norm(x, ord=3, dim=(0, 2))",
    ),
    SHARES: (
        "torch.special.logit(x)", "torch.special.logit(x, eps=0.3)", "torch.logit(x, 0.3)", "torch.special.log1p(x)",
        "torch.asin(x)", "torch.acos(x)",
    ),
    COLUMN: (
        "x.expand(6, 64).sum(1)", "x.expand(6, 64).cumsum(1)", "x.expand(6, 70).logsumexp(1)",
        "torch.softmax(F.pad(x.expand(6, 40), (2, 2), value=1.5), -1)",
    ),
    "torch.randn(64, 7)": ("F.pad(x, (2, 2)).sum(0)", "F.pad(x, (2, 2)).softmax(0)"),
    "torch.randn(6, 80)": ("torch.float_power(x, 2).sum(1).float()",),
    "torch.randn(2, 3, 7, 6)": ("F.interpolate(x, scale_factor=2, mode='bilinear').amax(-1)",),
    WHOLE: ("~x", "(x & 7) ^ 2 | 1"),
}  # fmt: skip
SEVERAL: tuple[tuple[str, ...], ...] = (
    ("F.conv2d(x, y, padding=1, dilation=2)", "torch.randn(1, 3, 5, 3)", "torch.randn(12, 3, 3, 3)"),
    ("F.conv2d(x, y, padding=1, dilation=2)", "torch.randn(1, 3, 9, 3)", "torch.randn(12, 3, 3, 3)"),
    ("F.conv3d(x, y, padding=1, dilation=2)", "torch.randn(1, 3, 5, 3, 3)", "torch.randn(12, 3, 3, 3, 3)"),
    ("torch.inner(x, y)", SQUARE, SQUARE),
    ("torch.inner(x, y)", CUBE, "torch.randn(4, 7)"),
    ("torch.inner(x[0], y[0])", MATRIX, MATRIX),
    ("torch.linalg.matmul(x, y.t())", MATRIX, MATRIX),
    ("torch.special.xlogy(x, y)", SHARES, SHARES),
    ("torch.atan2(x, y)", MATRIX, MATRIX),
    ("torch.atan2(x.ceil(), y.ceil())", MATRIX, MATRIX),
    ("torch.atan2(x, y).sum(1)", "torch.randn(6, 80)", "torch.randn(6, 80)"),
    ("torch.hypot(x, y)", MATRIX, MATRIX),
    ("torch.ldexp(x, y)", MATRIX, MATRIX),
    ("torch.copysign(x, y)", MATRIX, MATRIX),
    ("torch.addbmm(x, y, z, beta=0.5, alpha=2.0)", "torch.randn(4, 6)", "torch.randn(3, 4, 5)", "torch.randn(3, 5, 6)"),
    ("torch.addbmm(x, y, z)", "torch.randn(20, 24)", "torch.randn(3, 20, 9)", "torch.randn(3, 9, 24)"),
    *((f"torch.bitwise_{name}(x, y)", kind, kind) for name in ("and", "or", "xor") for kind in (WHOLE, TRUTHS)),
    ("(x > 0) ^ (y > 0)", MATRIX, MATRIX),
    ("torch.batch_norm(x, None, None, y, z, False, 0.1, 1e-5, False)", *CHANNELS),
    ("torch.batch_norm(x, y, z, None, None, True, 0.1, 1e-5, False)", *CHANNELS),
    ("torch.instance_norm(x, y, z, None, None, True, 0.1, 1e-5, False)", *CHANNELS),
    ("F.nll_loss(x, y)", "torch.randn(1, 64)", "torch.randint(0, 64, (1,))"),
    ("F.cross_entropy(x - z, y)", "torch.randn(12, 31)", "torch.randint(0, 31, (12,))", "torch.randn(31)"),
)


def _module(body: str, *inputs: str) -> str:
    return MODULE.format(body=body, names=", ".join("xyz"[: len(inputs)]), inputs=", ".join(inputs))


CASES = {f"{body} of {inputs}": _module(body, inputs) for inputs, bodies in ONE.items() for body in bodies}
CASES |= {f"{body} of {', '.join(inputs)}": _module(body, *inputs) for body, *inputs in SEVERAL}
NUMBERS = {name: number for number, name in enumerate(CASES)}


# --- Triton ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verdicts() -> dict[int, Verdict]:
    jobs = [(Task(source), Candidate(write_triton(source, n % 2))) for n, source in enumerate(CASES.values())]
    with open_keck("cpu", workers=1) as keck:
        return dict(keck.judge(jobs, timed=False))


@pytest.mark.parametrize("name", CASES)
def test_it_is_right_in_triton(verdicts: dict[int, Verdict], name: str) -> None:
    verdict = verdicts[NUMBERS[name]]
    assert verdict.status is Status.CORRECT, verdict.reason


def test_a_condition_that_all_lanes_share_is_not_joined_with_and() -> None:
    text = write_triton(_module("F.pad(x, (2, 2), value=0.5).amax(dim=-1)", CUBE))
    assert "mask=tl.where((v1 >= 0) & (v1 < 7), mask, False)" in text


def test_what_a_loop_does_not_change_comes_before_it() -> None:
    text = write_triton(_module("F.cross_entropy(x, y)", "torch.randn(12, 31)", "torch.randint(0, 31, (12,))"))
    kernel = text[: text.index("class ModelNew")]
    assert kernel.count("    for ") == 3 and "        for " not in kernel


def test_helpers_come_only_with_those_who_call_them() -> None:
    text = write_triton(_module("F.max_pool2d(torch.atan2(x, x + 1), 2)", "torch.randn(2, 4, 6)"))
    assert text.index("def _atan(") < text.index("def _copysign(") < text.index("def _atan2(")
    assert "def _max(" not in text


def test_64_bits_are_refused_where_they_come_out() -> None:
    with pytest.raises(CannotWrite, match="float64"):
        write_triton(_module("torch.float_power(x, 2.0)", MATRIX))


# --- CUDA C++ as host code -------------------------------------------------------------------------------------------


def _namespace(number: int, program: Program, written: list[Written]) -> str:
    """The kernels of one module, and a function to launch each."""
    parts = [f"namespace m{number} {{\n{cuda_text.device_text(written)}\n}}"]
    stored = [*(kernel.out for kernel in program.kernels), *program.views]
    known = {b.name: b for b in (*program.inputs, *program.parameters, *stored)}
    for kernel, one in zip(program.kernels, written, strict=True):
        buffers = [*(known[name] for name in one.buffers), kernel.out]
        given = ", ".join(f"({cuda_text.TYPES[b.dtype]}*)p[{n}]" for n, b in enumerate(buffers))
        body = f"launch(dim3({one.grid}), {one.threads}, [=] {{ m{number}::{one.name}_kernel({given}); }});"
        parts.append(f'extern "C" void {one.name}(void** p) {{ {body} }}')
    return "\n".join(parts)


@pytest.fixture(scope="module")
def programs() -> dict[str, tuple[Program, list[Written]]]:
    found = {}
    for number, (name, source) in enumerate(CASES.items()):
        program, _ = read(source)
        kernels = enumerate(program.kernels)
        found[name] = program, [cuda_text.write(k, f"m{number}_k{n}", number % 2) for n, k in kernels]
    return found


@pytest.fixture(scope="module")
def library(programs: dict[str, tuple[Program, list[Written]]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("host")
    parts = [_namespace(number, *found) for number, found in enumerate(programs.values())]
    (folder / "host.cpp").write_text("\n".join([HOST, *parts]))
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "host.cpp", "-o", "host.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return ctypes.CDLL(str(folder / "host.so"))


def _fenced(tensor: torch.Tensor, at_end: bool) -> int:
    """The address of a copy that lies between pages that nobody may touch."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    page, count = mmap.PAGESIZE, tensor.numel() * tensor.element_size()
    room = max(1, -(-count // page)) * page
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, ctypes.c_size_t(room + 2 * page), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    for fence in (start, start + page + room):
        libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0)
    place = start + page + (room - count if at_end else 0)
    ctypes.memmove(place, tensor.contiguous().data_ptr(), count)
    return int(place)


def _fault(
    library: Any, given: tuple[list[Any], Any], program: Program, written: list[Written], at_end: bool
) -> str:  # fmt: skip
    """What is wrong with a module's output, "" if nothing; `given` are its inputs and what is expected."""
    inputs, expected = given
    memory = {b.name: _fenced(x, at_end) for b, x in zip(program.inputs, inputs, strict=True)}
    for kernel, one in zip(program.kernels, written, strict=True):
        out = kernel.out
        memory[out.name] = _fenced(torch.full(out.shape, 77).to(getattr(torch, out.dtype)), at_end)
        memory |= {view.name: memory[out.name] for view, seen in program.views.items() if seen == out}
        places = [*(memory[name] for name in one.buffers), memory[out.name]]
        getattr(library, one.name)((ctypes.c_void_p * len(places))(*places))
    return _difference(memory, program.outputs[0], expected)


def _difference(memory: dict[str, int], out: Buffer, expected: torch.Tensor) -> str:
    if (out.shape, out.dtype) != (tuple(expected.shape), str(expected.dtype).removeprefix("torch.")):
        return f"{out.shape} {out.dtype} instead of {tuple(expected.shape)} {expected.dtype}"
    found = torch.empty(expected.shape, dtype=expected.dtype)
    ctypes.memmove(found.data_ptr(), memory[out.name], found.numel() * found.element_size())
    if torch.allclose(found.double(), expected.double(), rtol=1e-4, atol=1e-4, equal_nan=True):
        return ""
    return f"off by {float((found.double() - expected.double()).abs().max()):.3g}"


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_it_is_right_in_cuda(
    library: Any, programs: dict[str, tuple[Program, list[Written]]], name: str, at_end: bool
) -> None:
    namespace = load(CASES[name])
    inputs = namespace["get_inputs"]()
    given = inputs, namespace["Model"]()(*inputs)  # here: PyTorch's threads do not live on in a forked process
    answer, say = os.pipe()
    child = os.fork()  # a touched fence ends the process
    if child == 0:
        signal.alarm(60)
        try:
            message = _fault(library, given, *programs[name], at_end)
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(say, message.encode()[:2000])
        os._exit(0)
    os.close(say)
    _, status = os.waitpid(child, 0)
    with os.fdopen(answer) as read_end:
        assert (read_end.read(), status) == ("", 0)
