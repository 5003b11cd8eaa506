"""Kernels of the rulebook in CUDA C++: they build on the quickest rung, and compute what PyTorch does.

No GPU: the device code is compiled as plain C++, where the threads of a block are coroutines that take turns at every
barrier and shuffle. Not covered: speed, and races that only threads at the same time have.
"""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelzero.coldstart.rulebook.loops import cuda_language, cuda_text
from kernelzero.coldstart.rulebook.loops.cuda_language import literal
from kernelzero.coldstart.rulebook.loops.cuda_text import Written, write
from kernelzero.coldstart.rulebook.loops.expr import (
    BOOL,
    FLOAT,
    INT,
    Buffer,
    Expr,
    add,
    as_float,
    as_int,
    binary,
    bounded,
    compare,
    const,
    fold,
    function,
    kind_of,
    load,
    mul,
    result,
    where,
)
from kernelzero.coldstart.rulebook.loops.printer import bare
from kernelzero.coldstart.rulebook.loops.rules import pointwise, rows
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import (
    At,
    Core,
    Elements,
    Index,
    Kernel,
    Product,
    Program,
    Rows,
    Scan,
    Stage,
    stored,
)
from kernelzero.coldstart.rulebook.operators import CannotWrite
from kernelzero.errors import InfrastructureError
from kernelzero.keck.build import Builder, Built, parse_request
from kernelzero.keck.build.toolchain import find_toolchain

HOST = r"""
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) float4 { float x, y, z, w; };
float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::max;
using std::min;
float rsqrtf(float x) { return 1.0f / sqrtf(x); }
using __half = _Float16;
float __half2float(__half x) { return x; }
__half __float2half(float x) { return x; }
struct __nv_bfloat16 { uint16_t bits; };
float __bfloat162float(__nv_bfloat16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
__nv_bfloat16 __float2bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
dim3 gridDim, blockDim, blockIdx, threadIdx;
int current;
ucontext_t scheduler, contexts[1024];
uint64_t slots[1024];
bool done[1024];
std::function<void()> body;
void wait() { swapcontext(&contexts[current], &scheduler); }
void __syncthreads() { wait(); }
template <class T> T taken(T value, int from) {
    memcpy(&slots[current], &value, sizeof(T));
    wait();
    T other;
    memcpy(&other, &slots[from], sizeof(T));
    wait();
    return other;
}
template <class T> T __shfl_xor_sync(unsigned, T value, int lanes) { return taken(value, current ^ lanes); }
template <class T> T __shfl_up_sync(unsigned, T value, int by) {
    return taken(value, current % 32 >= by ? current - by : current);
}
void one_thread() { body(); done[current] = true; }
void launch(dim3 grid, int threads, std::function<void()> kernel) {
    static std::vector<char> stacks(1024 * 65536);
    gridDim = grid, blockDim = dim3(threads), body = kernel;
    for (unsigned block = 0; block < grid.x * grid.y * grid.z; ++block) {
        blockIdx = dim3(block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y);
        for (int t = 0; t < threads; ++t) {
            getcontext(&contexts[t]);
            contexts[t].uc_stack.ss_sp = &stacks[t * 65536];
            contexts[t].uc_stack.ss_size = 65536;
            contexts[t].uc_link = &scheduler;
            makecontext(&contexts[t], one_thread, 0);
            done[t] = false;
        }
        for (int left = threads; left > 0;)
            for (int t = 0; t < threads; ++t) {
                if (done[t]) continue;
                current = t, threadIdx = dim3(t);
                swapcontext(&scheduler, &contexts[t]);
                left -= done[t];
            }
    }
}
"""
"""What a kernel needs of CUDA."""


@cache
def _no_nvcc() -> bool:
    try:
        find_toolchain()
    except InfrastructureError:
        return True
    return False


needs_nvcc = pytest.mark.skipif("_no_nvcc()", reason="nvcc or g++ is not installed")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


# --- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A kernel, and what it has to compute."""

    kernel: Kernel
    inputs: dict[Buffer, torch.Tensor]
    expected: torch.Tensor


CASES: dict[str, Case] = {}
Epilogue = Callable[[Index, Expr], Expr]


def _case(
    name: str, core: Core, inputs: dict[str, torch.Tensor], expected: torch.Tensor, then: Epilogue | None = None
) -> None:
    out = Buffer("t0", tuple(expected.shape), _dtype(expected))

    def epilogue(index: Index) -> Expr:
        own = result("core", index, kind_of(out.dtype) if then is None else FLOAT)
        return own if then is None else then(index, own)

    CASES[name] = Case(Kernel("core", core, out, epilogue), {_buffer(n, t): t for n, t in inputs.items()}, expected)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _buffer(name: str, tensor: torch.Tensor) -> Buffer:
    return Buffer(name, tuple(tensor.shape), _dtype(tensor))


def _at(name: str, tensor: torch.Tensor) -> Callable[[Index], Expr]:
    return stored(_buffer(name, tensor)).at


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _pointwise(name: str, compute: Callable[..., Expr], expected: Callable[..., Any], *tensors: torch.Tensor) -> None:
    inputs = dict(zip("xyw", tensors, strict=False))
    reads = [_at(n, t) for n, t in inputs.items()]
    _case(name, Elements(lambda index: compute(*(read(index) for read in reads))), inputs, expected(*tensors))


def _elements() -> None:
    x, y = _random(6, 50), _random(6, 50, seed=1)
    x[0, 0] = float("nan")
    odd = _random(7, 9)
    _pointwise("relu", lambda a: function("max", a, 0.0), torch.relu, x)
    _pointwise("relu of an odd number", lambda a: function("max", a, 0.0), torch.relu, odd)
    _pointwise("maximum", lambda a, b: function("max", a, b) - 1.5, lambda a, b: torch.maximum(a, b) - 1.5, x, y)
    _pointwise("twice relu", lambda a: function("max", a, 0.0) * 2.0 + 1.0, lambda a: torch.relu(a) * 2 + 1, odd)
    _pointwise("by sigmoid", lambda a: a / function("sigmoid", a), lambda a: a / torch.sigmoid(a), odd)
    _pointwise("sigmoid", lambda a: a * function("sigmoid", -a), lambda a: a * torch.sigmoid(-a), odd)
    _pointwise("copy", lambda a: a, lambda a: a.clone(), x)
    _pointwise("greater", lambda a, b: (a > b) & (a < 1.0), lambda a, b: (a > b) & (a < 1.0), x, y)
    _pointwise("half", lambda a: a * 2.0, lambda a: a * 2.0, odd.half())
    _pointwise("bfloat16", lambda a: a + 0.1, lambda a: (a.float() + 0.1).bfloat16(), odd.bfloat16())
    _pointwise("from bool", lambda a: as_float(a) * 2.0, lambda a: a * 2.0, odd > 0)
    _pointwise(
        "clipped", lambda a: function("min", function("max", a + 3.0, 0.0), 6.0), lambda a: (a + 3).clip(0, 6), odd
    )
    big = torch.arange(-3, 6) * 10_000_000_000
    _pointwise("int64", lambda a: add(mul(a, 2), 3), lambda a: a * 2 + 3, big)
    _pointwise("int64 max", lambda a: binary("max", a, 7), lambda a: a.clamp(min=7), big)
    _pointwise("int32", lambda a: a % 5, lambda a: a % 5, torch.arange(20, dtype=torch.int32))
    _pointwise("to int", lambda a: as_int(a), lambda a: a.int(), odd * 9)
    CASES["to int"] = Case(
        Kernel("core", CASES["to int"].kernel.core, Buffer("t0", (7, 9), "int32"), lambda i: result("core", i, INT)),
        CASES["to int"].inputs,
        CASES["to int"].expected,
    )
    number = torch.tensor(2.5)
    _case("a number", Elements(lambda _: _at("x", number)(()) * 2.0), {"x": number}, number * 2)
    _case("reads nothing", Elements(lambda i: as_float(i[0]) * 0.5), {}, torch.arange(5) * 0.5)
    turned = _random(4, 5, 6)
    _case(
        "transposed", Elements(lambda i: _at("x", turned)((i[2], i[1], i[0]))), {"x": turned}, turned.permute(2, 1, 0)
    )


_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs, "sigmoid": torch.sigmoid, "neg": torch.neg, "sin": torch.sin, "tanh": torch.tanh,
    "floor": torch.floor, "sign": torch.sign,
}  # fmt: skip
_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": lambda a, b: a / (1 + b.abs()),
    "max": torch.maximum, "min": torch.minimum, "where": lambda a, b: torch.where(a < b, b, a),
    "and": lambda a, b: torch.where((a < 0) & ((b < a) | (b > 1)), a, b),
}  # fmt: skip


def _grown(draw: random.Random, leaves: list[tuple[Expr, torch.Tensor]], depth: int) -> tuple[Expr, torch.Tensor]:
    """An expression drawn at random, and what it is."""
    if depth == 0:
        return draw.choice(leaves)
    if draw.random() < 0.3:
        value, known = _grown(draw, leaves, depth - 1)
        op = draw.choice(list(_UNARY))
        return function(op, value), _UNARY[op](known)
    (a, known_a), (b, known_b) = (_grown(draw, leaves, draw.randrange(depth)) for _ in range(2))
    op = draw.choice(list(_BINARY))
    known = _BINARY[op](known_a, known_b)
    if op == "div":
        return a / (1.0 + function("abs", b)), known
    if op == "where":
        return where(a < b, b, a), known
    if op == "and":
        either = Expr("or", (b < a, b > 1.0), BOOL)
        return where((a < 0.0) & either, a, b), known
    return function(op, a, b), known


def _grown_cases() -> None:
    x, y = _random(8, 16, seed=3), _random(8, 16, seed=4)
    numbers = [(const(n), torch.full((8, 16), n)) for n in (-1.5, 0.5, 2.0)]
    for seed in range(30):
        draw = random.Random(seed)

        def core(index: Index, seed: int = seed) -> Expr:
            leaves = [(_at("x", x)(index), x), (_at("y", y)(index), y), *numbers]
            return _grown(random.Random(seed), leaves, 6)[0] + 0.0

        place = (const(0), const(0))
        known = _grown(draw, [(_at("x", x)(place), x), (_at("y", y)(place), y), *numbers], 6)[1]
        _case(f"grown {seed}", Elements(core), {"x": x, "y": y}, known)


def _folds() -> None:
    x, w = _random(2, 3, 8, 8), _random(4, 3, 3, 3, seed=1)

    def convolution(index: Index) -> Expr:
        b, o, h, v = index
        c, p, q = bounded("c_0", 3), bounded("p_0", 3), bounded("q_0", 3)
        row, column = add(h + p, -1), add(v + q, -1)
        inside = (row >= 0) & (row < 8) & (column >= 0) & (column < 8)
        place = add(add(mul(b, 192), mul(c, 64)), add(mul(row, 8), column))
        read = load(_buffer("x", x), place, inside)
        return fold("sum", [("c_0", 3), ("p_0", 3), ("q_0", 3)], read * _at("w", w)((o, c, p, q)))

    _case("convolution", Elements(convolution), {"x": x, "w": w}, F.conv2d(x, w, padding=1))
    short = _random(40, 6)

    def softmax(index: Index) -> Expr:
        largest = fold("max", [("r_0", 6)], _at("x", short)((index[0], bounded("r_0", 6))))
        total = fold("sum", [("r_1", 6)], function("exp", _at("x", short)((index[0], bounded("r_1", 6))) - largest))
        return function("exp", _at("x", short)(index) - largest) / total

    _case("short softmax", Elements(softmax), {"x": short}, short.softmax(1))


def _softmax(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    x = _random(*shape)
    at = _at("x", x)
    largest = Stage("largest", "max", at)
    total = Stage("total", "sum", lambda i: function("exp", at(i) - largest.value))
    final = Rows(shape, dims, (largest, total), lambda i: function("exp", at(i) - largest.value) / total.value, False)
    flat = x.flatten(min(dims), max(dims))
    _case(f"softmax {shape} {dims}", final, {"x": x}, flat.softmax(min(dims)).reshape(shape))


def _rows() -> None:
    for shape, dims in (((20, 40), (1,)), ((5, 300), (1,)), ((3, 700), (1,)), ((4, 90, 3), (1,)), ((2, 4, 70), (1, 2))):
        _softmax(shape, dims)
    x = _random(3, 4, 70)
    at = _at("x", x)
    total = Stage("total", "sum", at)
    mean = Rows((3, 4, 70), (2,), (total,), lambda _: total.value / 70.0, True)
    _case("mean", mean, {"x": x}, x.mean(2) * 2 + 1, lambda _, own: own * 2.0 + 1.0)
    kept = Rows((3, 4, 70), (1,), (total,), lambda _: total.value, True, True)
    _case("sum, kept", kept, {"x": x}, x.sum(1, keepdim=True))
    _case("sum of all", Rows((3, 4, 70), (0, 1, 2), (total,), lambda _: total.value, True), {"x": x}, x.sum())
    largest = Stage("largest", "max", at)
    far = (1 << 31) - 1
    first = Stage("first", "min", lambda i: where(compare("eq", at(i), largest.value), i[2], const(far)), INT)
    _case("argmax", Rows((3, 4, 70), (2,), (largest, first), lambda _: first.value, True), {"x": x}, x.argmax(2))
    counts = torch.arange(200).reshape(2, 100) * 1_000_000_000
    count = Stage("total", "sum", _at("x", counts), INT)
    _case("int sum", Rows((2, 100), (1,), (count,), lambda _: count.value, True), {"x": counts}, counts.sum(1))
    _case_of_int_max(counts)
    product = Stage("product", "prod", lambda i: at(i) * 0.25 + 1.0)
    several = Rows((3, 4, 70), (2,), (product,), lambda _: product.value, True)
    _case("prod", several, {"x": x}, (x * 0.25 + 1).prod(2))
    broken = x.clone()
    broken[1, 2, 3] = float("nan")
    lowest = Stage("lowest", "min", at)
    _case(
        "min with NaN", Rows((3, 4, 70), (2,), (lowest,), lambda _: lowest.value, True), {"x": broken}, broken.amin(2)
    )


def _case_of_int_max(counts: torch.Tensor) -> None:
    at = _at("x", counts)
    odd = Stage("highest", "max", lambda i: where(compare("eq", at(i) % 2, 1), at(i), const(0)), INT)
    core = Rows((2, 100), (1,), (odd,), lambda _: odd.value, True)
    _case("int max", core, {"x": counts}, counts.where(counts % 2 == 1, 0).amax(1))


def _linear(rows: int, columns: int, depth: int) -> None:
    x, w, b = _random(rows, depth), _random(columns, depth, seed=1), _random(columns, seed=2)
    core = Product(
        (), (rows,), (columns,), (depth,), lambda z, m, k: _at("x", x)((*m, *k)),
        lambda z, k, n: _at("w", w)((*n, *k)), lambda z, m, n: (*m, *n),
    )  # fmt: skip

    def then(index: Index, own: Expr) -> Expr:
        biased = own + _at("b", b)(index[1:])
        return biased * function("sigmoid", biased)

    _case(f"linear {rows} {columns} {depth}", core, {"x": x, "w": w, "b": b}, F.silu(F.linear(x, w, b)), then)


def _products() -> None:
    _linear(70, 90, 50)
    _linear(128, 64, 32)
    _linear(5, 1, 33)
    a, b = _random(2, 3, 20, 35), _random(2, 3, 35, 40, seed=1)
    batched = Product(
        (2, 3), (20,), (40,), (35,), lambda z, m, k: _at("a", a)((*z, *m, *k)) * 2.0,
        lambda z, k, n: _at("b", b)((*z, *k, *n)), lambda z, m, n: (*z, *m, *n),
    )  # fmt: skip
    _case("batched", batched, {"a": a, "b": b}, 2 * a @ b)
    x, w = _random(2, 4, 9, 9), _random(20, 4, 3, 3, seed=1)
    convolution = Product(
        (), (20,), (2, 7, 7), (4, 3, 3), lambda z, m, k: _at("w", w)((*m, *k)),
        lambda z, k, n: _at("x", x)((n[0], k[0], n[1] + k[1], n[2] + k[2])),
        lambda z, m, n: (n[0], m[0], n[1], n[2]),
    )  # fmt: skip
    _case("convolution as a product", convolution, {"x": x, "w": w}, F.conv2d(x, w))


def _scans() -> None:
    for shape, dim in (((3, 600), 1), ((2, 40, 3), 1), ((2, 2048), 1), ((70,), 0)):
        x = _random(*shape)
        _case(f"cumsum {shape}", Scan(shape, dim, "sum", _at("x", x)), {"x": x}, x.cumsum(dim))
    x = _random(2, 300)
    _case(
        "cumprod", Scan((2, 300), 1, "prod", lambda i: _at("x", x)(i) * 0.1 + 1.0), {"x": x}, (x * 0.1 + 1).cumprod(1)
    )
    _case("cummax", Scan((2, 300), 1, "max", _at("x", x)), {"x": x}, x.cummax(1).values * 2, lambda _, own: own * 2.0)
    whole = torch.arange(64).reshape(2, 32) * 1_000_000_000
    _case("cumsum of int64", Scan((2, 32), 1, "sum", _at("x", whole)), {"x": whole}, whole.cumsum(1))


_elements()
_grown_cases()
_folds()
_rows()
_products()
_scans()
ALL = [(name, variant) for name in CASES for variant in (0, 1)]


def _name(number: int) -> str:
    return f"case_{number}"


@cache
def _written() -> dict[tuple[str, int], Written]:
    return {case: write(CASES[case[0]].kernel, _name(n), case[1]) for n, case in enumerate(ALL)}


# --- what they compute -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("host")
    written = list(_written().values())
    entries = [_entry(w, CASES[case].kernel.out) for (case, _), w in _written().items()]
    (folder / "host.cpp").write_text("\n".join([HOST, cuda_text.device_text(written), *entries]))
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "host.cpp", "-o", "host.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return ctypes.CDLL(str(folder / "host.so"))


def _entry(written: Written, out: Buffer) -> str:
    case = CASES[next(c for (c, _), w in _written().items() if w is written)]
    by_name = {b.name: b for b in case.inputs}
    buffers = [*(by_name[n] for n in written.buffers), out]
    pointers = ", ".join(f"({cuda_text.TYPES[b.dtype]}*)p[{n}]" for n, b in enumerate(buffers))
    call = f"{written.name}_kernel({pointers})"
    grid = f"dim3({written.grid})"
    return f'extern "C" void {written.name}(void** p) {{ launch({grid}, {written.threads}, [=] {{ {call}; }}); }}'


@needs_compiler
@pytest.mark.parametrize(("name", "variant"), ALL)
def test_a_kernel_computes_what_pytorch_does(library: ctypes.CDLL, name: str, variant: int) -> None:
    case, written = CASES[name], _written()[name, variant]
    by_name = {buffer.name: tensor.contiguous() for buffer, tensor in case.inputs.items()}
    out = torch.full(case.expected.shape, 77).to(case.expected.dtype)
    pointers = [*(by_name[n].data_ptr() for n in written.buffers), out.data_ptr()]
    getattr(library, written.name)((ctypes.c_void_p * len(pointers))(*pointers))
    torch.testing.assert_close(out, case.expected, rtol=1e-4, atol=1e-4, equal_nan=True)


# --- how they are built ----------------------------------------------------------------------------------------------


def _program(names: list[str]) -> Program:
    """Kernels of several cases as one program; buffers of one name have one dtype in it."""
    program = Program(kernels=[CASES[name].kernel for name in names])
    program.inputs = [buffer for name in names for buffer in CASES[name].inputs]
    return program


def _build(folder: Path, names: list[str]) -> Built:
    cases = [(name, variant) for name in names for variant in (0, 1)]
    kernels = [_written()[case] for case in cases]
    declarations, source, functions = cuda_text.module_text(_program([name for name, _ in cases]), kernels)
    request = {"name": "x", "cpp_sources": declarations, "cuda_sources": source, "functions": list(functions)}
    made = Builder(folder, jobs=2).build(parse_request("load_inline", (), request))
    assert isinstance(made, Built), (made, source)
    assert made.functions == functions and len(made.kernels) == len(kernels)
    return made


GROUPS = {
    "float32": [
        "relu", "maximum", "greater", "transposed", "a number", "reads nothing", "convolution", "clipped",
        "softmax (20, 40) (1,)", "softmax (3, 700) (1,)", "mean", "argmax", "sum of all", "prod", "min with NaN",
        "linear 70 90 50", "linear 5 1 33", "batched", "convolution as a product",
        "cumsum (3, 600)", "cumsum (2, 2048)", "cumprod", "cummax",
    ],
    "half": ["half"],
    "bfloat16": ["bfloat16"],
    "int64": ["int64", "int64 max", "int sum", "int max", "cumsum of int64"],
}  # fmt: skip


@needs_nvcc
@pytest.mark.parametrize("group", GROUPS)
def test_a_program_builds_on_the_quickest_rung(tmp_path: Path, group: str) -> None:
    assert _build(tmp_path, GROUPS[group]).rung == "mini"


@needs_nvcc
def test_every_function_has_a_name(tmp_path: Path) -> None:
    x = Buffer("x", (64,), "float32")
    ops = [op for op in cuda_language.CALLS if op not in ("pow", "fmod", "atan2", "hypot", "copysign")]

    def at(index: Index) -> Expr:
        value = load(x, index[0])
        total = function("sign", value) + function("min", value, value * 2.0)
        for op in ops:
            total = total + function(op, value)
        for op in ("pow", "fmod", "atan2", "hypot", "copysign"):
            total = total + function(op, total, value)
        return total

    kernel = Kernel("core", Elements(at), Buffer("t0", (64,), "float32"), lambda i: result("core", i))
    program = Program(inputs=[x], kernels=[kernel])
    declarations, source, functions = cuda_text.module_text(program, [write(kernel, "all_functions", 0)])
    request = {"name": "x", "cpp_sources": declarations, "cuda_sources": source, "functions": list(functions)}
    made = Builder(tmp_path, jobs=2).build(parse_request("load_inline", (), request))
    assert isinstance(made, Built) and made.rung == "mini", (made, source)


# --- how they read ---------------------------------------------------------------------------------------------------


def test_what_it_cannot_write_is_named() -> None:
    x = Buffer("x", (4,), "float32")
    out = Buffer("t0", (4,), "float32")
    unknown = Elements(lambda i: function("digamma", load(x, i[0])))
    with pytest.raises(CannotWrite, match="digamma"):
        write(Kernel("core", unknown, out, lambda i: result("core", i)), "f", 0)
    double = Elements(lambda i: load(Buffer("x", (4,), "float64"), i[0]))
    with pytest.raises(CannotWrite, match="float64"):
        write(Kernel("core", double, out, lambda i: result("core", i)), "f", 0)


def test_four_neighbours_are_read_together_where_that_is_right() -> None:
    vectors = {case for case, written in _written().items() if "float4" in written.text}
    assert vectors >= {("relu", 0), ("maximum", 0), ("copy", 0)}
    assert not vectors & {("relu of an odd number", 0), ("transposed", 0), ("half", 0), ("mean", 0), ("relu", 1)}


def test_names_of_buffers_do_not_meet_those_of_the_kernel() -> None:
    buffers = [Buffer(name, (6,), "float32") for name in ("i", "v0", "out", "float", "x")]
    kernel = Kernel(
        "core", Elements(lambda i: sum((load(b, i[0]) * 1.5 for b in buffers), const(0.0))),
        Buffer("t0", (6,), "float32"), lambda i: result("core", i),
    )  # fmt: skip
    written = write(kernel, "f", 1)
    for name in ("i_", "v0_", "out_", "float_", "x"):
        assert f"const float* __restrict__ {name}" in written.text
    assert written.buffers == ("float", "i", "out", "v0", "x")


def test_a_source_reads_as_people_write_it() -> None:
    kernel = CASES["softmax (3, 700) (1,)"].kernel
    program = Program(inputs=list(CASES["softmax (3, 700) (1,)"].inputs), kernels=[kernel])
    declarations, source, functions = cuda_text.module_text(program, [write(kernel, "softmax", 0)])
    assert declarations == "torch::Tensor softmax(torch::Tensor x);" and functions == ("softmax",)
    assert source.endswith(
        "torch::Tensor softmax(torch::Tensor x) {\n"
        "    auto out = torch::empty({3, 700}, x.options());\n"
        "    softmax_kernel<<<3, 256>>>(x.data_ptr<float>(), out.data_ptr<float>());\n"
        "    return out;\n"
        "}\n"
    )
    assert "    total = block_sum(total);\n" in source and "        out[row * 700 + j] = expf(" in source
    assert all(len(line) <= 120 for written in _written().values() for line in written.text.splitlines())


def test_large_tensors_have_64_bit_indices() -> None:
    x = Buffer("x", (3, 1 << 30), "float32")
    kernel = Kernel("core", Elements(lambda i: stored(x).at(i) * 2.0), x, lambda i: result("core", i))
    assert "for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;" in write(kernel, "f", 1).text
    assert "const int64_t i = " in write(kernel, "f", 0).text


def test_a_guarded_read_stays_behind_its_guard() -> None:
    x, w = _random(50), _random(70, seed=1)
    core = Product(
        (), (70,), (70,), (50,), lambda z, m, k: _at("x", x)(k) * _at("w", w)(m), lambda z, k, n: _at("x", x)(k),
        lambda z, m, n: (*m, *n),
    )  # fmt: skip
    text = write(Kernel("core", core, Buffer("t0", (70, 70), "float32"), lambda i: result("core", i)), "f", 0).text
    assert "n < 70 && k < 50 ? x[k] : 0.0f;" in text


def test_what_the_scheduler_makes_becomes_one_source() -> None:
    scheduler = Scheduler()
    x = scheduler.leaf(Buffer("x", (6, 100), "float32"))
    w = scheduler.leaf(Buffer("scale", (100,), "float32"), "self.scale")

    def stages(at: At) -> list[Stage]:
        return [Stage("total", "sum", lambda i: function("exp", at(i)))]

    y = rows(scheduler, "softmax", x, (1,), stages, lambda at, known: lambda i: at(i) / known[0], per_row=False)
    z = pointwise(scheduler, "mul", lambda a, b: a * b, y, w)
    flat_sum = rows(scheduler, "sum", z, (0,), lambda at: [Stage("sums", "sum", at)],
                    lambda at, known: lambda i: known[0], per_row=True)  # fmt: skip
    program = scheduler.finish([flat_sum], False)
    kernels = [write(kernel, f"step_{n}", n) for n, kernel in enumerate(program.kernels)]
    declarations, source, functions = cuda_text.module_text(program, kernels)
    assert functions == ("step_0", "step_1") and source.count("__global__") == 2
    assert "torch::Tensor step_0(torch::Tensor scale, torch::Tensor x);" in declarations
    assert kernels[0].buffers == ("scale", "x") and kernels[1].buffers == ("t0",)


def test_literals_have_the_digits_of_a_float() -> None:
    texts = {0.1: "0.1f", 1.0: "1.0f", 1e-5: "1e-05f", 1e300: "INFINITY", -1.0: "-1.0f", 16777216.0: "16777216.0f"}
    assert {value: literal(value) for value in texts} == texts
    assert literal(0.7978845608028654) == "0.7978846f" and literal(float("nan")) == "NAN" and literal(True) == "true"
    assert bare("((a) + (b))") == "(a) + (b)" and bare("(a) + (b)") == "(a) + (b)"
