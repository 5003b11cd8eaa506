"""The builder of CUDA extensions: requests, rules, the cache, what was linked, and calls of what was built.

Tests that compile are skipped where nvcc is missing. No kernel runs here: functions that loop on the host show that
arguments and results pass, and a launch has to fail with a clear error. Device code alone is launched on a driver of
our own making, which writes down what it is given.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernelzero.errors import InfrastructureError
from kernelzero.keck.build import (
    Builder,
    BuildFailure,
    BuildLimits,
    BuildSpec,
    Built,
    Refused,
    SourceFile,
    device_request,
    host_library,
    parse_request,
    provenance,
    reduced_precision,
    rules,
)
from kernelzero.keck.build.diagnostics import Curable, first_error
from kernelzero.keck.build.toolchain import Ran, find_toolchain
from kernelzero.keck.rules import RuleBroken
from kernelzero.records import Backend, Status
from tests.keck_build_candidates import CANDIDATES

RELU = CANDIDATES["relu"]
DECLARED = "torch::Tensor f(torch::Tensor x);"
OTHER = "torch::Tensor f(torch::Tensor x, int n);"
BOUND = f"{DECLARED}\nPYBIND11_MODULE(a, m) {{}}"
HOST = r"""
#include <torch/extension.h>
torch::Tensor add(torch::Tensor a, const torch::Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), "sizes differ: ", a.sizes(), " and ", b.sizes());
  auto c = torch::empty_like(a);
  for (int64_t i = 0; i < a.numel(); i++) c.data_ptr<float>()[i] = a.data_ptr<float>()[i] + b.data_ptr<float>()[i];
  return c;
}
std::tuple<torch::Tensor, double> many(std::vector<torch::Tensor> v, c10::optional<torch::Tensor> o, std::string s,
                                       double e) {
  auto zeros = torch::zeros({2, (int64_t)v.size()}, v[0].options().dtype(torch::kInt64));
  return {zeros, e + (o.has_value() ? 1 : 0) + s.size()};
}
void fill_(at::Tensor& x, bool twice, int n) { x.fill_(twice ? 2 * n : n); }
double pick(torch::Tensor x, std::vector<int64_t> at) {
  auto view = x.accessor<float, 2>();
  return view[at[0]][at[1]];
}
std::vector<int64_t> strides(torch::Tensor x, at::ScalarType type) {
  return torch::empty(x.sizes(), x.options().dtype(type)).to(torch::kFloat64).t().strides().vec();
}
void refuse() { throw std::invalid_argument("not today"); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("add", &add, "adds");
  m.def("many", &many, py::arg("v"), py::arg("o") = py::none(), py::arg("s") = "abc", py::arg("e") = 1e-5);
  m.def("fill_", fill_);
  m.def("pick", &pick);
  m.def("strides", &strides);
  m.def("refuse", &refuse);
  m.def("rows", [](torch::Tensor x) { return x.size(0); });
}
"""


@functools.cache
def _no_nvcc() -> bool:
    try:
        find_toolchain()
    except InfrastructureError:
        return True
    return False


needs_nvcc = pytest.mark.skipif("_no_nvcc()", reason="nvcc or g++ is not installed")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("cache"), jobs=2)


@pytest.fixture(scope="module")
def functions(builder: Builder) -> dict[str, Callable[..., Any]]:
    made = builder.build(_spec(cpp_sources=HOST))
    assert isinstance(made, Built), made
    return _open(builder, made)


def _spec(**request: Any) -> BuildSpec:
    return parse_request("load_inline", (), {"name": "x", "cpp_sources": ""} | request)


def _open(builder: Builder, made: Built) -> dict[str, Callable[..., Any]]:
    from kernelzero.keck.build.inprocess import open_library

    return open_library(Path(made.path), host_library(builder.cache))


def _cuda(body: str, head: str = "", **request: Any) -> BuildSpec:
    """A request with a kernel and a function f whose body is given."""
    text = f"{head}\n__global__ void k(float* x) {{ x[0] = 1; }}\ntorch::Tensor f(torch::Tensor x) {{ {body} }}"
    return _spec(**{"cpp_sources": DECLARED, "cuda_sources": text, "functions": ["f"]} | request)


def _failed(made: Built | BuildFailure, status: Status, text: str) -> BuildFailure:
    assert isinstance(made, BuildFailure), made
    assert made.status is status and made.rung in ("text", "mini"), made
    assert text in made.reason and "\n" not in made.reason, made
    return made


# --- requests --------------------------------------------------------------------------------------------------------


def test_a_request_becomes_one_record_that_survives_json() -> None:
    spec = parse_request("load_inline", ("m", "int f();"), {"functions": {"f": "doc"}, "extra_cuda_cflags": ["-O3"]})
    assert spec == BuildSpec("m", ("int f();",), functions=("f",), cuda_flags=("-O3",))
    assert BuildSpec.from_json(spec.to_json()) == spec
    other = parse_request("load_inline", ("other name", "int f();"), {"functions": "f", "extra_cuda_cflags": "-O3"})
    assert spec.id == other.id


def test_load_takes_its_sources_and_the_headers_beside_them(tmp_path: Path) -> None:
    for name in ("a.cpp", "b.cu", "c.cuh", "notes.txt"):
        (tmp_path / name).write_text(f"// {name}")
    spec = parse_request("load", ("m", [str(tmp_path / "a.cpp"), tmp_path / "b.cu"]), {})
    assert [f.name for f in spec.files] == ["a.cpp", "b.cu", "c.cuh"]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"is_python_module": False}, Refused),
        ({"sycl_sources": "x"}, Refused),
        ({"cpp_sources": "x" * (3 << 20)}, Refused),
        ({"functions": 3}, TypeError),
        ({"cpp_sources": [1]}, TypeError),
        ({"colour": "red"}, TypeError),
    ],
)
def test_requests_that_are_refused(request_: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        _spec(**request_)


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"', "#include </etc/passwd>", '#include "../../x"', "#include <a/../../../etc/passwd>",
        '# /* c */ include /* c */ "/etc/passwd"', '%:include "/etc/passwd"', '#inc\\\nlude "/etc/passwd"',
        "#define F </etc/passwd>\n#include F", '??=include "/etc/passwd"', "#if __has_include(</etc/passwd>)\n#endif",
        '#embed "/etc/passwd"', '#import "/etc/passwd"', '#include_next "/etc/passwd"',
        '#pragma GCC dependency "/etc/passwd"', '_Pragma("GCC dependency \\"/etc/passwd\\"")',
        '#if 0\nit\'s /*\n#endif\n#include "/etc/passwd"\n#if 0\n*/\n#endif',
        'asm(".incbin \\"/etc/passwd\\"");', 'asm(".inc" "bin \\"/etc/passwd\\"");', 'asm volatile("syscall");',
        "#include <cublas_v2.h>", "#include <cudnn.h>", "auto y = at::matmul(x, x);",
        "auto y = torch :: softmax (x, 1);", "TORCH_LIBRARY(mine, m) {}",
    ],
)  # fmt: skip
def test_sources_that_are_rejected(text: str) -> None:
    with pytest.raises(RuleBroken) as error:
        rules.check(_spec(cuda_sources=text))
    assert error.value.status is Status.REJECTED


@pytest.mark.parametrize(
    "text",
    [
        "// #include </etc/passwd> and at::matmul(x) are not used",
        '#include <cub/block/block_reduce.cuh>\n#include "kernel.cuh"\n#include <ATen/cuda/CUDAContext.h>',
        'asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));',
        "auto y = at::empty_like(x).view({1}); auto z = torch::zeros({2}); at::cuda::getCurrentCUDAStream();",
        "#pragma unroll 4\n#pragma once\nauto v = at::slice(x, 0, 1);",
    ],
)
def test_sources_that_are_accepted(text: str) -> None:
    rules.check(_spec(cuda_sources=text))


@pytest.mark.parametrize(
    "flag", ["-include", "-fplugin=x.so", "@file", "-I/etc", "-Xcompiler", "-B.", "-ccbin", "--pre-include=/etc/passwd",
             "-Xcompiler=-fplugin=x", "-Xptxas=--input-as-string", "-DX=a;b", "-rdc=true", "-o", "--keep-dir",
             "-wrapper"],
)  # fmt: skip
def test_flags_that_are_rejected(flag: str) -> None:
    for where in ("extra_cuda_cflags", "extra_cflags", "extra_ldflags"):
        with pytest.raises(RuleBroken, match="not allowed"):
            rules.check(_spec(**{where: [flag, "x"] if flag == "-Xcompiler" else [flag]}))


def test_flags_that_are_accepted_and_what_is_kept() -> None:
    flags: tuple[str, ...] = ("-O3", "-std=c++17", "-gencode", "arch=compute_80,code=sm_80", "-arch=sm_70", "-DN=4")
    flags += ("-Xptxas", "-v,-O3", "--ptxas-options=-v", "--expt-relaxed-constexpr", "-maxrregcount=64", "-lineinfo")
    flags += ("--extended-lambda", "-U__CUDA_NO_HALF_OPERATORS__", "--fmad=false", "-Xcompiler=-O3,-ffast-math")
    flags += ("-Xcompiler -O3", "--use_fast_math")
    rules.check(_spec(extra_cuda_cflags=list(flags), extra_ldflags=["", "-lcudart"], extra_cflags=["-O3"]))
    kept = rules.kept_cuda_flags(flags)
    assert "--use_fast_math" in kept and kept[kept.index("-Xptxas") + 1] == "-v,-O3"
    assert not any("sm_" in flag for flag in kept)
    assert rules.asks_for_variant(("-gencode=arch=compute_90a,code=sm_90a",), "sm_90")
    assert not rules.asks_for_variant(flags, "sm_90")


@pytest.mark.parametrize("flag", ["-lcublas", "-lcudnn", "-lcuda", "/usr/lib/libx.so", "-Wl,-rpath,/x"])
def test_libraries_are_rejected(flag: str) -> None:
    with pytest.raises(RuleBroken, match="extra_ldflags"):
        rules.check(_spec(extra_ldflags=[flag]))


# --- what was linked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbol", "status"),
    [
        ("cublasSgemm_v2", Status.REJECTED), ("cudnnConvolutionForward", Status.REJECTED), ("fork", Status.REJECTED),
        ("dlsym", Status.REJECTED), ("socket", Status.REJECTED), ("pthread_create", Status.REJECTED),
        ("mprotect", Status.REJECTED), ("syscall", Status.REJECTED), ("fopen", Status.REJECTED),
        ("cuLaunchKernel", Status.REJECTED), ("cudaIpcGetMemHandle", Status.REJECTED),
        ("cudaLaunchHostFunc", Status.REJECTED), ("PyRun_SimpleString", Status.REJECTED),
        ("_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE", Status.REJECTED),
        ("_ZNSt14basic_ifstreamIcSt11char_traitsIcEEC1Ev", Status.REJECTED),
        ("_ZN2at4_ops6matmul4callERKNS_6TensorES4_", Status.REJECTED),
        ("_ZN2at4_ops15sum_dim_IntList4callERKNS_6TensorEb", Status.REJECTED),
        ("_ZNK3c1014OperatorHandle6schemaEv", Status.REJECTED), ("_ZN2at6native4reluERKNS_6TensorE", Status.REJECTED),
        ("_Z4reluN3c106TensorE", Status.COMPILE_ERROR), ("helper", Status.COMPILE_ERROR),
        ("_ZNK2at10TensorBase16mutable_data_ptrI6__halfEEPT_v", Status.COMPILE_ERROR),
    ],
)  # fmt: skip
def test_symbols_that_are_refused(symbol: str, status: Status) -> None:
    libc = frozenset(("fork", "dlsym", "socket", "pthread_create", "mprotect", "syscall", "fopen"))
    assert not provenance._plainly_allowed(symbol)
    with pytest.raises(RuleBroken) as error:
        provenance._judge(symbol, provenance.demangle([symbol])[symbol], libc)
    assert error.value.status is status, error.value.reason


@pytest.mark.parametrize(
    "symbol",
    ["cudaLaunchKernel", "__cudaRegisterFatBinary", "cudaGraphLaunch", "memcpy", "sqrtf", "exit", "_Znwm", "_ZdlPvm",
     "_ZNSt6vectorIiSaIiEE9push_backERKi", "_ZTISt13runtime_error", "_ZSt20__throw_length_errorPKc", "__cxa_throw"],
)  # fmt: skip
def test_symbols_that_are_plainly_allowed(symbol: str) -> None:
    assert provenance._plainly_allowed(symbol)


@pytest.mark.parametrize(
    "symbol",
    ["_ZN2at4_ops19empty_memory_format4callEN3c108ArrayRefINS2_6SymIntEEE",
     "_ZN2at4_ops12slice_Tensor4callERKNS_6TensorEl",
     "_ZN2at4_ops10contiguous4callERKNS_6TensorEN3c1012MemoryFormatE", "_ZNK2at10TensorBase16mutable_data_ptrIfEEPT_v",
     "_ZN3c106detail19maybe_wrap_dim_slowIlEET_S2_S2_b", "_ZN3c104cuda20getCurrentCUDAStreamEa",
     "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"],
)  # fmt: skip
def test_symbols_of_torch_that_are_allowed(symbol: str) -> None:
    provenance._judge(symbol, provenance.demangle([symbol])[symbol], frozenset())


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            'cuda_sources(4): error: identifier "z" is undefined\n  y = z;\n',
            'cuda_sources:4: identifier "z" is undefined',
        ),
        (
            "functions:2:38: error: 'f' was not declared in this scope",
            "functions:2: 'f' was not declared in this scope",
        ),
        (
            "ptxas error   : Entry function 'k' uses too much shared data",
            "ptxas: Entry function 'k' uses too much shared data",
        ),
        ("cuda_sources(1): catastrophic error: out of memory", "compiler: it ran out of its memory limit of 99 MiB"),
        (
            "cc1plus: out of memory allocating 8 bytes after a total of 9",
            "compiler: it ran out of its memory limit of 99 MiB",
        ),
        ("/usr/bin/ld: a.o: in function `f': multiple definition of `f'", "a.o: multiple definition of `f'"),
    ],
)
def test_the_first_error_in_one_line(output: str, reason: str) -> None:
    assert first_error(output, 99).reason == reason


def test_a_compiler_that_was_killed_from_outside_is_told_from_one_that_took_too_long() -> None:
    assert (
        Ran(-9, "", late=False).killed
        and Ran(1, "nvcc error : 'cicc' died due to signal 9 (Kill signal)", False).killed
    )
    assert Ran(1, "nvcc error : 'cicc' died due to signal 24", False).timed_out
    assert not Ran(-9, "", late=True).killed


def test_what_a_heavier_header_could_cure(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("struct Slice; int arange;")
    text = "__global__ void k() {\n  y = z;\n}\nvoid f() {\n  g();\n}"
    curable = Curable([text], tmp_path, frozenset(("gettimeofday",)))
    error = functools.partial(lambda line, m: first_error(f"cuda_sources({line}): error: {m}", 1))
    assert not curable.after_mini(error(2, 'identifier "z" is undefined'))
    assert not curable.after_mini(error(5, 'identifier "g" is undefined'))
    assert curable.after_mini(error(5, 'identifier "gettimeofday" is undefined'))
    assert curable.after_mini(error(5, 'class "c10::Tensor" has no member "arange"'))
    assert not curable.after_mini(error(5, 'class "c10::Tensor" has no member "arrange"'))
    assert curable.after_mini(error(5, "no instance of function matches"))
    assert not curable.after_aten(error(5, "no instance of function matches"))
    assert curable.after_aten(error(5, 'namespace "at" has no member "Slice"'))


def test_facts_about_precision() -> None:
    found = reduced_precision(
        "cvt.rn.f16.f32 %rs1, %f1;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 x;\nadd.f32 %f1;"
    )
    assert found.conversions == ("f16",) and found.matrix == ("bf16",) and found.any
    assert not reduced_precision("fma.rn.f32 %f1; cvt.f32.f16 %f2; cvt.rn.f32.s32 %f1;").any


# --- building --------------------------------------------------------------------------------------------------------


@needs_nvcc
def test_arguments_and_results_pass(functions: dict[str, Callable[..., Any]]) -> None:
    a, b = torch.arange(6.0).view(2, 3), torch.ones(2, 3)
    assert torch.equal(functions["add"](a, b), a + b)
    zeros, value = functions["many"]([a, b], e=2)
    assert zeros.dtype is torch.int64 and zeros.shape == (2, 2) and value == 5.0
    assert functions["many"]((a,), a, "", 0.0)[1] == 1.0
    assert functions["fill_"](a, True, 3) is None and torch.equal(a, torch.full((2, 3), 6.0))
    assert functions["pick"](torch.arange(6.0).view(3, 2).t(), [1, 2]) == 5.0
    assert functions["strides"](b, torch.int32) == [1, 3] and functions["rows"](b) == 2


@needs_nvcc
def test_errors_become_pythons(functions: dict[str, Callable[..., Any]]) -> None:
    a = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"sizes differ: \[2, 3\] and \[2\]"):
        functions["add"](a, torch.ones(2))
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Long"):
        functions["add"](a.long(), a.long())
    with pytest.raises(RuntimeError, match="not today"):
        functions["refuse"]()
    for arguments in ((), (a,), (a, None), (a, 1), (a, a, a), (a, object())):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            functions["add"](*arguments)
    with pytest.raises(TypeError, match="does not fit"):
        functions["fill_"](a, False, 2**40)
    with pytest.raises(TypeError, match="unexpected keyword"):
        functions["many"](v=[a], colour=1)


@needs_nvcc
def test_modes_see_allocations_and_their_refusals_come_through(functions: dict[str, Callable[..., Any]]) -> None:
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func._schema.name)
            if len(seen) > 1:
                raise KeyError("denied")
            return func(*args, **(kwargs or {}))

    a = torch.ones(2, 3)
    with Watch():
        functions["add"](a, a)
        assert seen == ["aten::empty_like"]
        with pytest.raises(KeyError, match="denied"):
            functions["add"](a, a)


@needs_nvcc
def test_no_handle_is_lost(functions: dict[str, Callable[..., Any]]) -> None:
    tensor = torch.ones(2, 3)
    for _ in range(10):
        result = functions["add"](tensor, tensor)
        with pytest.raises(TypeError):
            functions["add"](tensor, None)
    assert tensor._use_count() == result._use_count() == torch.ones(1)._use_count()


@needs_nvcc
def test_a_kernel_is_built_named_and_its_launch_fails_aloud(builder: Builder) -> None:
    made = builder.build(_spec(**RELU))
    assert isinstance(made, Built), made
    assert made.rung == "mini" and made.functions == ("relu_cuda",)
    assert [k.name for k in made.kernels] == ["relu_kernel(float const*, float*, int)"]
    assert ".entry _Z11relu_kernelPKfPfi" in made.ptx
    assert Built.from_json(made.to_json()) == made
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA error: "):
            _open(builder, made)["relu_cuda"](torch.ones(4))


@needs_nvcc
def test_the_ladders_first_rung_carries_common_kinds(builder: Builder) -> None:
    for name in ("layernorm_dispatch", "pybind_style"):
        made = builder.build(_spec(**CANDIDATES[name]))
        assert isinstance(made, Built) and made.rung == "mini", made
    assert len(made.kernels) == 2 and made.functions == ("forward",)


@needs_nvcc
@pytest.mark.parametrize(
    ("spec", "status", "reason"),
    [
        (_cuda("return z;"), Status.COMPILE_ERROR, 'cuda_sources:3: identifier "z" is undefined'),
        (_cuda("return x.matmul(x);"), Status.REJECTED, "PyTorch computes in C++: matmul"),
        (_cuda("return x;", cpp_sources=BOUND), Status.COMPILE_ERROR, "redefinition"),
        (_cuda("return x;", cpp_sources=OTHER), Status.COMPILE_ERROR, "undefined symbol: f(c10::Tensor, int)"),
        (_cuda("at::cuda::getCurrentCUDAStream(); return x;"), Status.COMPILE_ERROR, "no member"),
        (_cuda("system(\"id\"); return x;"), Status.REJECTED, "system"),
    ],
    ids=["mistake", "compute", "bound twice", "never defined", "no include", "system"],
)  # fmt: skip
def test_failures(builder: Builder, spec: BuildSpec, status: Status, reason: str) -> None:
    made = _failed(builder.build(spec), status, reason)
    start = time.monotonic()
    assert builder.build(spec) == made and time.monotonic() - start < 0.5, "failures are kept"


@needs_nvcc
def test_nothing_bound_is_a_compile_error(builder: Builder) -> None:
    _failed(builder.build(_cuda("return x;", functions=None)), Status.COMPILE_ERROR, "no functions are bound")


@needs_nvcc
def test_a_source_that_hangs_or_eats_memory(tmp_path: Path) -> None:
    both = "A<2 * N, D - 1>::v + A<2 * N + 1, D - 1>::v"
    text = f"template <unsigned long N, int D> struct A {{ static constexpr int v = {both}; }};"
    stop = "template <unsigned long N> struct A<N, 0> { static constexpr int v = 1; };"
    hang = f"{text}\n{stop}\nint x = A<1, 26>::v;"
    limited = Builder(tmp_path, limits=BuildLimits(cpu_s=2))
    _failed(limited.build(_spec(cpp_sources=hang, functions=[])), Status.TIMEOUT, "2 s of processor time")
    small = Builder(tmp_path, limits=BuildLimits(memory_mib=150))
    _failed(small.build(_spec(cpp_sources=hang, functions=[])), Status.COMPILE_ERROR, "memory limit of 150 MiB")
    assert not list((tmp_path / "tmp").iterdir())


@needs_nvcc
def test_the_name_plays_no_part_and_equal_requests_are_built_once(builder: Builder) -> None:
    text = 'PYBIND11_MODULE(a, m) { m.def("one", [] { return %d; }); }'
    made: dict[tuple[int, int], Built | BuildFailure] = {}

    def build(number: int, value: int) -> None:
        made[number, value] = builder.build(_spec(name="same", cpp_sources=text % value))

    threads = [threading.Thread(target=build, args=(n, v)) for n in range(4) for v in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value in range(2):
        # Equal to the last digit of their seconds: one build.
        assert len({made[n, value] for n in range(4)}) == 1
        one = made[0, value]
        assert isinstance(one, Built) and _open(builder, one)["one"]() == value


@needs_nvcc
def test_a_builder_that_is_killed_never_blocks_the_next(builder: Builder) -> None:
    code = (
        "import sys; from pathlib import Path; from kernelzero.keck.build import *\n"
        "spec = parse_request('load_inline', (), {'name': 'x', 'cpp_sources': sys.argv[2]})\n"
        "Builder(Path(sys.argv[1])).build(spec)"
    )
    text = '#include <torch/extension.h>\nPYBIND11_MODULE(a, m) { m.def("seven", [] { return 7; }); }'
    process = subprocess.Popen([sys.executable, "-c", code, str(builder.cache), text], cwd=Path(__file__).parent.parent)
    key = builder.key(_spec(cpp_sources=text))
    while not list((builder.cache / "tmp").glob(f"{key}.*")):
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    made = builder.build(_spec(cpp_sources=text))
    assert isinstance(made, Built) and not list((builder.cache / "tmp").glob(f"{key}.*"))


@needs_nvcc
def test_the_compiler_sees_no_environment(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelzero.keck.build import toolchain

    monkeypatch.setenv("SECRET", "1")
    (ran,) = toolchain.run_all([["/bin/sh", "-c", "env; pwd; ls; ulimit -v"]], builder.cache / "tmp", 5, BuildLimits())
    assert "SECRET" not in ran.output and str(8192 << 10) in ran.output


@pytest.fixture
def extensions() -> Iterator[Any]:
    from torch.utils import cpp_extension

    names = ("load_inline", "load", "CUDAExtension", "CppExtension")
    before = {name: getattr(cpp_extension, name) for name in names}
    yield cpp_extension
    for name, value in before.items():
        setattr(cpp_extension, name, value)


@needs_nvcc
def test_install_replaces_torchs_functions(builder: Builder, extensions: Any, tmp_path: Path) -> None:
    from kernelzero.keck.build.inprocess import BuildError, install

    install(lambda spec: builder.build(BuildSpec.from_json(spec.to_json())).answer(), host_library(builder.cache))
    module = extensions.load_inline(name="m", cpp_sources=HOST)
    assert module.__name__ == "m" and module.rows(torch.ones(3, 1)) == 3
    (tmp_path / "a.cpp").write_text('#include "b.h"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("two", &two); }')
    (tmp_path / "b.h").write_text("#include <torch/extension.h>\ninline int two() { return 2; }")
    assert extensions.load("files", [str(tmp_path / "a.cpp")]).two() == 2
    with pytest.raises(BuildError, match="Error building extension 'm': #include of /x"):
        extensions.load_inline("m", "#include </x>", functions=["f"])
    with pytest.raises(Refused):
        extensions.CUDAExtension("m", [])


@needs_nvcc
def test_a_file_may_not_have_a_path_for_a_name(builder: Builder) -> None:
    spec = BuildSpec("x", files=(SourceFile("../a.cpp", ""),))
    _failed(builder.build(spec), Status.REJECTED, "a source file has the name")


# --- device code alone -----------------------------------------------------------------------------------------------

ADD = """
extern "C" __global__ void add(const float* a, float* b, int n, double s, bool twice) { if (n) b[0] = a[0] + s; }
namespace ns { __global__ void fill(float* x) { x[0] = 1; } }
__global__ void twice(float* x) { x[0] = 1; }
__global__ void twice(int* x) { x[0] = 1; }
"""
BIG = "__global__ void k(int* x, int i) { __shared__ int s[99999]; s[threadIdx.x] = i; __syncthreads(); x[0] = s[i]; }"
DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
char kz_log[4096];
int kz_parameters;
#define LOG(...) snprintf(kz_log + strlen(kz_log), sizeof kz_log - strlen(kz_log), __VA_ARGS__)
int cuModuleLoad(void** module, const char* path) {
  *module = (void*)1;
  LOG("load %s\n", strrchr(path, '/') + 1);
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = (void*)(16 + strlen(name));
  LOG("find %s\n", name);
  return module != (void*)1;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  LOG("set %d %d\n", attribute, value);
  return value > 232448;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
  LOG("launch %p %u %u %u %u %u %u %u %p", function, gx, gy, gz, bx, by, bz, shared, stream);
  for (int i = 0; i < kz_parameters; i++) {
    uint64_t value;
    memcpy(&value, arguments[i], 8);
    LOG(" %llx", (unsigned long long)value);
  }
  LOG("\n");
  return bx * by * bz > 1024 || !gx || extra;
}
"""


class _Fake:
    """A CUDA driver that writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        (folder / "driver.c").write_text(DRIVER)
        command = ["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / "driver.so"), str(folder / "driver.c")]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(folder / "driver.so"))
        self._text = (ctypes.c_char * 4096).in_dll(self.library, "kz_log")
        self._count = ctypes.c_int.in_dll(self.library, "kz_parameters")
        self.given: list[list[Any]] = []

    @contextlib.contextmanager
    def launching(self, values: Any) -> Iterator[None]:
        """What install asks for: the context of a launch; a launch that fails is not written down."""
        yield
        self.given.append(list(values))

    def log(self, parameters: int = 0) -> list[str]:
        """What was told since; from now on that many arguments are read at each launch."""
        self._count.value = parameters
        lines = self._text.value.decode().splitlines()
        self._text[0] = b"\0"
        return lines


class _OnGpu(TorchFunctionMode):
    """Tensors say that they are on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_cuda: Any = torch.Tensor.is_cuda
        return True if func == is_cuda.__get__ else func(*args, **(kwargs or {}))


@pytest.fixture
def bare(builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Fake]:
    from kernelzero.keck.build import bare as module

    stream = SimpleNamespace(cuda_stream=0x77, _as_parameter_=ctypes.c_void_p(0x77))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    for owner, name in ((torch.cuda, "_compile_kernel"), (torch.cuda._utils, "_get_gpu_runtime_library")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in ("cupy", "cupy.cuda"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    fake = _Fake(tmp_path)

    def build(spec: BuildSpec) -> dict[str, Any]:
        return builder.build(BuildSpec.from_json(spec.to_json())).answer()

    module.install(build, fake.launching, fake.library)
    with _OnGpu():
        yield fake


def _bits(value: float) -> str:
    return f"{struct.unpack('<Q', struct.pack('<d', value))[0]:x}"


def test_device_requests_survive_json_and_have_rules_of_their_own() -> None:
    spec = device_request(ADD, ("add",), ("-O3", "--std=c++11"), (), "add")
    assert BuildSpec.from_json(spec.to_json()) == spec and spec.device_only
    rules.check(spec)
    for options in (("-I/etc",), ("-default-device",), ("--pre-include=/etc/passwd",), ("-rdc=true",)):
        with pytest.raises(RuleBroken, match=r"options: .* is not allowed"):
            rules.check(device_request(ADD, (), options))
    with pytest.raises(RuleBroken, match="folders of headers"):
        rules.check(device_request(ADD, (), (), ("/etc",)))
    with pytest.raises(RuleBroken, match="is an instance of a template") as error:
        rules.check(device_request(ADD, ("add<128>",)))
    assert error.value.status is Status.UNSUPPORTED
    with pytest.raises(RuleBroken, match="#include of /etc/passwd"):
        rules.check(device_request('#include "/etc/passwd"', ()))
    with pytest.raises(TypeError):
        device_request(b"", ())
    with pytest.raises(Refused):
        device_request("x" * (3 << 20), ())


@needs_nvcc
def test_device_code_becomes_a_cubin_once(builder: Builder) -> None:
    made = builder.build(device_request(ADD, ("add", "ns::fill")))
    assert isinstance(made, Built) and made.rung == "device", made
    assert Path(made.path).name == "candidate.cubin" and Path(made.path).read_bytes()[:4] == b"\x7fELF"
    assert ".entry add(" in made.ptx
    counts = {symbol: count for symbol, _, count in made.answer()["kernels"]}
    assert counts["add"] == 5 and counts["_ZN2ns4fillEPf"] == 1
    # Whatever kernel is asked for, the source is compiled once.
    assert builder.build(device_request(ADD, ("_Z5twicePi",), name="other")) == made
    _device_failed(builder, ADD, "twice", "several kernels are named 'twice'")
    _device_failed(builder, ADD, "sub", "no kernel is named 'sub'; the source has: ")


def _device_failed(builder: Builder, source: str, kernel: str, reason: str) -> None:
    made = builder.build(device_request(source, (kernel,)))
    assert isinstance(made, BuildFailure) and made.status is Status.COMPILE_ERROR and reason in made.reason, made


@needs_nvcc
def test_failures_of_device_code(builder: Builder) -> None:
    _device_failed(builder, "\n__global__ void k(float* x) { x[0] = z; }", "k", 'kernel.cu:2: identifier "z"')
    _device_failed(builder, "#include <torch/extension.h>\n__global__ void k() {}", "k", "No such file")
    _device_failed(builder, BIG, "k", "too much shared data")


@needs_nvcc
def test_half_arithmetic_in_device_code_is_seen(builder: Builder) -> None:
    made = builder.build(device_request(_exploit("x_nvrtc_half_arithmetic").SOURCE, ("product",)))
    assert isinstance(made, Built) and reduced_precision(made.ptx).sixteen


def _exploit(name: str, run: bool = False) -> Any:
    """The module of an exploit; unless it is to run, with a compiler that does nothing."""
    module = ModuleType(name)
    text = (Path(__file__).parent.parent / "exploits" / f"{name}.py").read_text()
    if not run:
        text = text.replace("torch.cuda._compile_kernel", "print")
    exec(compile(text, name, "exec"), vars(module))
    return module


@needs_nvcc
def test_torchs_kernels_are_built_and_launched(bare: _Fake) -> None:
    kernel = torch.cuda._compile_kernel(ADD, "add", nvcc_options=["-O3"])
    a, b = torch.ones(4), torch.ones(4)
    assert bare.log(5) == ["load candidate.cubin", "find add"]
    kernel(grid=(2, 3, 4), block=(32, 1, 1), args=[a, b, 5, 0.5, True], shared_mem=64)
    (line,) = bare.log()
    assert line == f"launch 0x13 2 3 4 32 1 1 64 0x77 {a.data_ptr():x} {b.data_ptr():x} 5 {_bits(0.5)} 1"
    assert bare.given[0][0] is a and bare.given[0][2:] == [5, 0.5, True]
    with pytest.raises(TypeError, match="takes 5 arguments, 2 are given"):
        kernel((1, 1, 1), (1, 1, 1), [a, b])
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        kernel((1, 1, 1), (2048, 1, 1), [a, b, 5, 0.5, True])
    with pytest.raises(RuntimeError, match="set_shared_memory_config"):
        kernel((1, 1, 1), (1, 1, 1), [a, b, 5, 0.5, True], shared_mem=65536)
    assert len(bare.given) == 1
    other = torch.cuda._compile_kernel(kernel_source=ADD, kernel_name="ns::fill", nvcc_options=["-O3"])
    other(args=[a])
    assert "find _ZN2ns4fillEPf" in bare.log() and len(bare.given) == 2


@needs_nvcc
def test_torchs_kernels_that_fail_to_build(bare: _Fake) -> None:
    with pytest.raises(RuntimeError, match=r"kernel\.cu:1: expected"):
        torch.cuda._compile_kernel("__global__ void k() { 1 +; }", "k")
    with pytest.raises(RuntimeError, match="no kernel is named 'j'"):
        torch.cuda._compile_kernel("__global__ void k() {}", "j")
    with pytest.raises(TypeError):
        torch.cuda._compile_kernel("__global__ void k() {}")  # type: ignore[call-arg]


@needs_nvcc
def test_cupys_kernels_convert_as_cupy_does(bare: _Fake) -> None:
    import cupy as cp

    kernel = cp.RawKernel(ADD, "add", options=("--std=c++14",))
    a, b = torch.ones(4), torch.ones(4)
    bare.log(5)
    address = b.data_ptr()
    kernel((2,), (32, 2), (cp.asarray(a), address, cp.int32(-1), cp.float64(0.5), cp.bool_(True)), shared_mem=8)
    (line,) = bare.log(5)
    start, n, s, twice = line.rsplit(" ", 3)
    assert start == f"launch 0x13 2 1 1 32 2 1 8 0x77 {a.data_ptr():x} {address:x}"
    assert n.endswith("ffffffff") and (s, twice) == (_bits(0.5), "1")
    assert bare.given[0][0] is a and bare.given[0][1:] == [address, -1, 0.5, True]
    kernel((1,), (1,), (a, None, 7, 1.0, False))
    assert bare.log()[0].split()[10:] == [f"{a.data_ptr():x}", "0", "7", _bits(1.0), "0"]
    for bad in ("text", [1], 1j, cp):
        with pytest.raises(TypeError, match="Unsupported type"):
            kernel((1,), (1,), (a, b, bad, 1.0, False))
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        kernel((0,), (1,), (a, b, 7, 1.0, False))
    for sizes in ((), (1, 1, 1, 1)):
        with pytest.raises(ValueError, match="one to three sizes"):
            kernel((1,), sizes, (a, b, 7, 1.0, False))
    kernel.max_dynamic_shared_size_bytes = 65536
    assert bare.log()[-1] == "set 8 65536" and kernel.max_dynamic_shared_size_bytes == 65536
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        kernel.max_dynamic_shared_size_bytes = 1 << 20


@needs_nvcc
def test_cupys_modules_and_what_is_refused(bare: _Fake) -> None:
    import cupy
    import cupy.cuda

    module = cupy.RawModule(code=ADD)
    assert module.get_function("ns::fill").name == "ns::fill"
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NOT_FOUND: no kernel is named 'sub'"):
        module.get_function("sub")
    for refused in ({"path": "x"}, {"code": ADD, "jitify": True}, {"code": ADD, "enable_cooperative_groups": True}):
        with pytest.raises(Refused):
            cupy.RawModule(**refused)
    for name in ("maximum", "ElementwiseKernel", "empty", "cublas"):
        with pytest.raises(AttributeError, match=f"cupy.{name} is not served"):
            getattr(cupy, name)
    with pytest.raises(AttributeError, match=r"cupy\.cuda\.Stream is not served"):
        cupy.cuda.Stream()
    with pytest.raises(TypeError, match="only tensors"):
        cupy.asarray([1.0])
    assert cupy.from_dlpack(torch.ones(2, 3)).shape == (2, 3) and isinstance(cupy.asarray(torch.ones(1)), cupy.ndarray)


@needs_nvcc
def test_a_stream_that_is_not_current_is_entered_as_torch_does(bare: _Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    entered: list[Any] = []

    def enter(stream: Any) -> Any:
        entered.append(stream)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda address: address)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    kernel, x = cupy.RawModule(code=ADD).get_function("ns::fill"), torch.ones(1)
    with cupy.cuda.ExternalStream(0x77):
        kernel((1,), (1,), (x,))
    assert entered == []
    with cupy.cuda.ExternalStream(0x99):
        kernel((1,), (1,), (x,))
    kernel((1,), (1,), (x,), stream=cupy.cuda.ExternalStream(0xAA))
    torch.cuda._compile_kernel(ADD, "ns::fill")(args=[x], stream=SimpleNamespace(cuda_stream=0xBB))
    assert entered == [0x99, 0xAA, 0xBB]


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "shape"),
    [("b_nvrtc_compile_kernel", (4, 300)), ("b_nvrtc_shared_memory", (5, 7)), ("b_cupy_raw_kernel", (4, 300)),
     ("b_cupy_raw_module", (5, 7))],
)  # fmt: skip
def test_honest_kernels_of_device_code_run_up_to_the_driver(bare: _Fake, name: str, shape: tuple[int, ...]) -> None:
    model, x = _exploit(name, run=True).ModelNew(), torch.ones(shape)
    bare.log(2)
    model(x)
    (line,) = bare.log()
    assert line.startswith("launch ") and f"{x.data_ptr():x}" in line
    assert len(bare.given[0]) == 3


_events: list[str] | None = None


@needs_nvcc
def test_neither_loading_nor_launching_raises_an_event_that_a_child_denies(bare: _Fake, builder: Builder) -> None:
    import cupy

    from kernelzero.keck.build.bare import Driver, Module
    from kernelzero.keck.guard import _DENIED_EVENTS

    global _events

    def hook(event: str, _: Any) -> None:
        if _events is not None:
            _events.append(event)

    torch_kernel, raw = torch.cuda._compile_kernel(ADD, "add"), cupy.RawKernel(ADD, "add")
    a, b = torch.ones(4), torch.ones(4)
    driver, answer = Driver(bare.library), builder.build(device_request(ADD, ())).answer()
    sys.addaudithook(hook)
    _events = []
    Module(driver, answer).function("add")
    torch_kernel((1, 1, 1), (32, 1, 1), [a, b, 5, 0.5, True])
    raw((1,), (32,), (a.data_ptr(), b, cupy.int32(5), cupy.float64(1), True))
    raw.max_dynamic_shared_size_bytes = 65536
    with pytest.raises(RuntimeError):
        raw((1,), (4096,), (a, b, 1, 1.0, True))
    seen, _events = _events, None
    assert not [event for event in seen if event.startswith(_DENIED_EVENTS) or event == "open"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("k = torch.cuda._compile_kernel('', 'k')", None),
        ("from torch.cuda import _compile_kernel", None),
        ("k = torch.cuda.jiterator._create_jit_fn('')", "private"),
        ("k = torch.cuda._utils._cuda_load_module", "private"),
        ("k = torch.cuda._compile_kernel._x", "private"),
        ("k = cupy.RawKernel('', 'k', ('-O3',)); n = cupy.int32(4); y = cupy.asarray(n)", None),
        ("s = cupy.cuda.ExternalStream(4)", None),
        ("y = cupy.maximum(1, 2)", "cupy.maximum is not allowed"),
        ("from cupy import matmul", "cupy.matmul is not allowed"),
        ("k = cupy.ElementwiseKernel('', '', '')", "cupy.ElementwiseKernel is not allowed"),
    ],
)
def test_names_that_compile_device_code(line: str, reason: str | None) -> None:
    from kernelzero.keck.rules import check

    source = f"import cupy\nimport torch\n{line}\nclass ModelNew(torch.nn.Module): pass"
    if reason is None:
        check(source, Backend.CUDA)
    else:
        with pytest.raises(RuleBroken, match=reason):
            check(source, Backend.CUDA)


@needs_nvcc
def test_a_cpu_compiles_device_code_without_torchs_headers() -> None:
    from kernelzero.keck import cuda_source

    exploits = Path(__file__).parent.parent / "exploits"
    assert cuda_source.bare_strings((exploits / "b_cupy_raw_kernel.py").read_text())
    both = "S = '__global__'\nH = '__global__ H'\nload_inline('m', H)\nk = torch.cuda._compile_kernel(kernel_source=S)"
    assert cuda_source.bare_strings(both) == {"__global__"}
    start = time.monotonic()
    for name, status in (
        ("b_nvrtc_compile_kernel", Status.UNSUPPORTED),
        ("x_nvrtc_syntax_error", Status.COMPILE_ERROR),
    ):
        with pytest.raises(RuleBroken) as error:
            cuda_source.check((exploits / f"{name}.py").read_text())
        assert error.value.status is status, error.value.reason
    assert time.monotonic() - start < 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@needs_nvcc
def test_device_code_runs_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelzero.keck.build import bare as module

    for owner, name in ((torch.cuda, "_compile_kernel"), (torch.cuda._utils, "_get_gpu_runtime_library")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in ("cupy", "cupy.cuda"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    builder = Builder(tmp_path, arch="sm_{}{}".format(*torch.cuda.get_device_capability()))
    a, b = torch.full((4,), 2.0, device="cuda"), torch.zeros(4, device="cuda")
    module.install(lambda spec: builder.build(spec).answer(), lambda values: contextlib.nullcontext())
    import cupy

    kernel = torch.cuda._compile_kernel(ADD, "add")
    kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[a, b, 5, 0.5, True])
    assert b.tolist() == [2.5, 0, 0, 0]
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        kernel(grid=(1, 1, 1), block=(4096, 1, 1), args=[a, b, 5, 0.5, True])
    raw = cupy.RawKernel(ADD, "add")
    raw.max_dynamic_shared_size_bytes = 100_000
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        raw((1,), (1,), (cupy.asarray(a), b.data_ptr(), cupy.int32(1), 1.5, True), shared_mem=100_000)
    torch.cuda.synchronize()
    assert b.tolist() == [3.5, 0, 0, 0]
    large = torch.cuda._compile_kernel(ADD, "ns::fill")
    large.set_shared_memory_config(100_000)
    large(args=[b], shared_mem=100_000)
    assert b[0].item() == 1
