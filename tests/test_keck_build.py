"""The builder of CUDA extensions: requests, rules, the cache, what was linked, and calls of what was built.

Tests that compile are skipped where nvcc is missing. No kernel runs here: functions that loop on the host show that
arguments and results pass, and a launch has to fail with a clear error.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
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
    host_library,
    parse_request,
    provenance,
    reduced_precision,
    rules,
)
from kernelzero.keck.build.diagnostics import Curable, first_error
from kernelzero.keck.build.toolchain import Ran, find_toolchain
from kernelzero.keck.rules import RuleBroken
from kernelzero.records import Status
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
