"""The ladder: three ways to compile the same request, the cheapest first.

  mini  our own header stands in for torch's; 1 to 3 seconds
  aten  torch's core headers and those of the operators that the source names; about 10 seconds
  full  all of torch's C++ headers; about a minute

Each rung is a folder of small headers with the names of torch's, placed before torch's own on the search path, and a
list of commands. pybind11 is never compiled: on every rung PYBIND11_MODULE is ours (kz_entry.h). Device code alone
has a rung of its own, "device": there is nothing to climb.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernelzero.keck.build import rules
from kernelzero.keck.build.spec import BuildSpec
from kernelzero.keck.build.toolchain import Toolchain, TorchPaths
from kernelzero.keck.words import words
from kernelzero.records import content_id

RUNGS = ("mini", "aten", "full")
DEVICE = "device"
OWN_HEADERS = Path(__file__).parent / "include"

_ENTRY_HEADERS = words(
    "torch/extension.h torch/python.h torch/csrc/utils/pybind.h pybind11/pybind11.h pybind11/stl.h "
    "pybind11/functional.h pybind11/numpy.h"
)
_TENSOR_HEADERS = words(
    "torch/torch.h torch/all.h torch/types.h torch/script.h torch/library.h ATen/ATen.h ATen/core/Tensor.h "
    "ATen/Tensor.h ATen/Dispatch.h ATen/TensorUtils.h ATen/Functions.h ATen/AccumulateType.h ATen/OpMathType.h "
    "ATen/DeviceGuard.h ATen/ScalarOps.h ATen/core/TensorAccessor.h ATen/ceil_div.h ATen/TensorAccessor.h "
    "c10/core/ScalarType.h c10/core/Device.h c10/core/TensorOptions.h c10/util/Exception.h c10/util/ArrayRef.h "
    "c10/util/Optional.h c10/util/Half.h c10/util/BFloat16.h c10/macros/Macros.h c10/util/intrusive_ptr.h"
)
_CUDA_HEADERS = words(
    "ATen/cuda/CUDAContext.h ATen/cuda/CUDAContextLight.h ATen/cuda/Exceptions.h ATen/cuda/CUDAUtils.h "
    "c10/cuda/CUDAGuard.h c10/cuda/CUDAStream.h c10/cuda/CUDAException.h c10/cuda/CUDAFunctions.h "
    "ATen/cuda/Atomic.cuh ATen/cuda/DeviceUtils.cuh c10/cuda/CUDAMathCompat.h c10/cuda/CUDAMacros.h torch/cuda.h"
)
_ON_DEMAND = {
    "algorithm": "(?:stable_|partial_)?sort|nth_element|(?:max|min)_element|fill_n?|copy_n?|reverse|find(?:_if)?|"
    "count_if|transform|(?:any|all|none)_of|for_each|clamp|unique|(?:lower|upper)_bound",
    "array": "array",
    "atomic": "atomic",
    "chrono": "chrono",
    "complex": "complex",
    "deque": "deque",
    "functional": "function|bind|multiplies|plus|greater|less|hash",
    "iomanip": "setprecision|setw",
    "iostream": "cout|cerr|endl|ostream",
    "map": "map|multimap",
    "memory": "unique_ptr|shared_ptr|make_unique|make_shared",
    "mutex": "mutex|lock_guard|unique_lock|once_flag|call_once",
    "numeric": "accumulate|iota|inner_product|reduce|gcd|lcm|partial_sum",
    "queue": "queue|priority_queue",
    "random": "mt19937|normal_distribution|uniform_real_distribution",
    "set": "set",
    "sstream": "[io]?stringstream",
    "string_view": "string_view",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "variant": "variant|visit",
}
"""Headers of the C++ library that torch's include as well, by the names of namespace std that need them."""
_HALF = re.compile(r"half|bfloat16|bf16|fp16|float16|REDUCED_FLOATING", re.I)
_NEWER = re.compile(
    r"\b(?:concept|requires|consteval|constinit|char8_t|co_await|co_return|std::span|bit_cast|ranges|typename\.\.\.)\b|<=>"
    r"|[(,]\s*(?:const\s+)?auto\b|\]\s*<\s*(?:typename|class|int)|[{,]\s*\.[A-Za-z_]\w*\s*="
)
"""Signs of C++20, which takes a third longer to compile than C++17."""
_NVCC_DEFAULTS = (
    "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__", "--expt-relaxed-constexpr", "-DNVTX_DISABLE",
)  # fmt: skip
"""What torch hands to nvcc by itself: code that needs it otherwise would not compile there either."""


_HOST_FLAGS = ("-fPIC", "-fno-gnu-unique", "-fmax-errors=5", "-fno-diagnostics-show-caret")
"""Libraries share no variables, and messages do not quote the file that a #line names."""


@dataclass(frozen=True)
class Unit:
    """One translation unit of a request."""

    name: str
    text: str
    cuda: bool


# --- the text of the units -------------------------------------------------------------------------------------------


def units(spec: BuildSpec, rung: str) -> list[Unit]:
    """The translation units, as load_inline puts them together; error lines count in the candidate's own sources."""
    if spec.files:
        return [Unit(f.name, f.text, f.name.endswith(".cu")) for f in spec.files if not _is_header(f.name)]
    found = []
    cpp, cuda = "\n".join(spec.cpp_sources), "\n".join(spec.cuda_sources)
    if cpp.strip() or spec.functions is not None:
        head = "#include <torch/extension.h>\n" if spec.implicit_headers else ""
        found.append(Unit("main.cpp", f'{head}#line 1 "cpp_sources"\n{cpp}\n{_binding(spec)}', False))
    if cuda.strip():
        head = _cuda_head(cuda, rung) if spec.implicit_headers else ""
        found.append(Unit("cuda.cu", f'{head}#line 1 "cuda_sources"\n{cuda}\n', True))
    return found


def _is_header(name: str) -> bool:
    return not name.endswith((".cu", ".cpp", ".cc", ".cxx", ".c"))


def _with_cuda(found: list[Unit]) -> bool:
    return any(unit.cuda or re.search(r"#\s*include\s*<[^>]*cuda", unit.text) for unit in found)


def _binding(spec: BuildSpec) -> str:
    if spec.functions is None:
        return ""
    lines = [f'm.def("{name}", torch::wrap_pybind_function({name}), "{name}");' for name in spec.functions]
    return "\n".join(['#line 1 "functions"', "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}\n"])


def _cuda_head(text: str, rung: str) -> str:
    driver = rung != "mini" or re.search(r"\bcu[A-Z]\w*|\bCU[a-z_]\w*|\bCUDA_VERSION\b", text)
    return "#include <torch/types.h>\n" + ("#include <cuda.h>\n" if driver else "") + "#include <cuda_runtime.h>\n"


# --- headers ---------------------------------------------------------------------------------------------------------


def headers_id() -> str:
    """Content id of our own headers and of the tables here: part of every key."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(OWN_HEADERS.iterdir())]
    return content_id(*texts, Path(__file__).read_text(encoding="utf-8"))


def names_of_cuda_header() -> frozenset[str]:
    """Words of kz_cuda.h that torch's tensor headers do not bring: an error about one is a missing #include."""
    text = (OWN_HEADERS / "kz_cuda.h").read_text(encoding="utf-8")
    wanted = re.compile(r"cuda|\w*CUDA\w*|gpuAtomic\w*|WARP_SHFL\w*|getCurrentDeviceProperties")
    return frozenset(t.text for t in rules.lex(text) if t.kind == "word" and wanted.fullmatch(t.text))


def lay_out_headers(cache: Path) -> Path:
    """A folder with one folder of headers a rung; made once, safe for many processes at once."""
    target = cache / "headers" / headers_id()
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent))
    for rung in RUNGS:
        shutil.copytree(OWN_HEADERS, made / rung)
        for path, text in _shims(rung).items():
            file = made / rung / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    made.chmod(0o755)
    try:
        os.rename(made, target)
    except OSError:
        shutil.rmtree(made)
        if not target.is_dir():
            raise
    return target


def _shims(rung: str) -> dict[str, str]:
    base = f"kz_{rung}.h"
    entry = f"#pragma once\n#include <{base}>\n#ifdef KZ_ENTRY\n#include <kz_entry.h>\n#endif\n"
    shims = {path: entry for path in _ENTRY_HEADERS}
    if rung == "mini":
        shims |= {path: f"#pragma once\n#include <{base}>\n" for path in _TENSOR_HEADERS}
        shims |= {path: "#pragma once\n#include <kz_cuda.h>\n" for path in _CUDA_HEADERS}
    elif rung == "aten":
        shims |= {
            p: f"#pragma once\n#include <{base}>\n"
            for p in words("torch/types.h torch/torch.h torch/all.h ATen/ATen.h")
        }
        shims |= {p: "#pragma once\n#include <kz_aten_cuda.h>\n" for p in words("ATen/cuda/CUDAContext.h torch/cuda.h")}
    if rung != "mini":
        shims["kz_fallback/c10/cuda/impl/cuda_cmake_macros.h"] = "#pragma once\n"
    return shims


def on_demand(spec: BuildSpec, rung: str, torch: TorchPaths) -> str:
    """Text of kz_std.h (mini) or kz_ops.h (aten): the headers that this request's own names need."""
    if rung == "mini":
        wanted = {name for text in spec.sources for name in _of_std(text)}
        found = [h for h, names in _ON_DEMAND.items() if any(re.fullmatch(names, name) for name in wanted)]
        return "".join(f"#include <{header}>\n" for header in found)
    used = {token.text for text in spec.sources for token in rules.lex(text) if token.kind == "word"}
    ops = torch.includes[0] / "ATen" / "ops"
    return "".join(f"#include <ATen/ops/{name}.h>\n" for name in sorted(used) if (ops / f"{name}.h").is_file())


def _of_std(text: str) -> set[str]:
    """Names of namespace std that a source uses."""
    words_ = [token.text for token in rules.lex(text)]
    if "using namespace std" in " ".join(words_):
        return set(words_)
    return {c for a, b, c in zip(words_, words_[1:], words_[2:], strict=False) if (a, b) == ("std", "::")}


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workshop:
    """What the commands of one build have in common."""

    toolchain: Toolchain
    torch: TorchPaths
    headers: Path
    arch: str
    folder: Path
    """Where the build takes place."""

    def prepare(self, spec: BuildSpec, rung: str) -> list[Unit]:
        """Write the files of one rung; returns its units."""
        found = units(spec, rung)
        for unit in found:
            (self.folder / unit.name).write_text(unit.text, encoding="utf-8")
        for file in spec.files:
            (self.folder / file.name).write_text(file.text, encoding="utf-8")
        text = on_demand(spec, rung, self.torch)
        (self.folder / "kz_std.h").write_text(text if rung == "mini" else "", encoding="utf-8")
        (self.folder / "kz_ops.h").write_text(text if rung == "aten" else "", encoding="utf-8")
        (self.folder / "keep").mkdir(exist_ok=True)
        return found

    def compile_commands(self, spec: BuildSpec, rung: str, found: list[Unit]) -> list[list[str]]:
        """One command a unit; they may run at the same time."""
        return [self._nvcc(spec, rung, u) if u.cuda else self._cxx(spec, rung, u, found) for u in found]

    def device_command(self, spec: BuildSpec) -> list[str]:
        """Write device code that stands alone; returns the command that makes candidate.cubin of it."""
        (self.folder / "keep").mkdir(exist_ok=True)
        (self.folder / "kernel.cu").write_text("\n".join(spec.cuda_sources), encoding="utf-8")
        given = rules.kept_cuda_flags(spec.cuda_flags)
        standard = [] if any("std" in flag for flag in given) else ["-std=c++17"]
        command = [str(self.toolchain.nvcc), f"-arch={self._architecture(spec)}", "-w", "-cubin"]
        command += ["--keep", "--keep-dir", "keep", *standard, *given]
        return [*command, "kernel.cu", "-o", "candidate.cubin"]

    def _architecture(self, spec: BuildSpec) -> str:
        return self.arch + ("a" if rules.asks_for_variant(spec.cuda_flags, self.arch) else "")

    def link_command(self, rung: str, found: list[Unit]) -> list[str]:
        """Joins the objects to candidate.so."""
        command = [str(self.toolchain.cxx), "-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack", "-o", "candidate.so"]
        command += [f"{unit.name}.o" for unit in found]
        if _with_cuda(found):
            command += [f"-L{self.toolchain.cuda_lib}", f"-Wl,-rpath,{self.toolchain.cuda_lib}", "-lcudart"]
        if rung != "mini":
            command += [f"-L{self.torch.lib}", "-Wl,--no-as-needed", *self._torch_libraries()]
        return command

    def _torch_libraries(self) -> list[str]:
        names = ("torch", "torch_cpu", "c10", "torch_cuda", "c10_cuda")
        return [f"-l{name}" for name in names if (self.torch.lib / f"lib{name}.so").is_file()]

    def _common(self, spec: BuildSpec, rung: str, unit: Unit, with_cuda: bool) -> list[str]:
        flags = ["-DTORCH_EXTENSION_NAME=candidate", "-I.", f"-I{self.headers / rung}"]
        if with_cuda:
            flags.append("-DKZ_CUDA")
        if any(_HALF.search(text) for text in spec.sources):
            flags.append("-DKZ_HALF")
        if re.search(r"PYBIND11_MODULE|\bpy::|pybind11", unit.text):
            flags.append("-DKZ_ENTRY")
        if rung != "mini":
            flags += [f"-I{path}" for path in self.torch.includes]
            flags.append(f"-I{self.headers / rung / 'kz_fallback'}")
        return flags

    def _standard(self, spec: BuildSpec, rung: str, given: list[str]) -> list[str]:
        if any("std=" in flag or flag.startswith("--std") for flag in given):
            return []
        newer = rung != "mini" or any(_NEWER.search(text) for text in spec.sources)
        return ["-std=c++20" if newer else "-std=c++17"]

    def _cxx(self, spec: BuildSpec, rung: str, unit: Unit, found: list[Unit]) -> list[str]:
        given = list(rules.joined(spec.cpp_flags))
        command = [str(self.toolchain.cxx), "-w", "-O1", *_HOST_FLAGS]
        command += self._common(spec, rung, unit, _with_cuda(found))
        command += [f"-isystem{self.toolchain.cuda_include}", *self._standard(spec, rung, given), *given]
        return [*command, "-c", unit.name, "-o", f"{unit.name}.o"]

    def _nvcc(self, spec: BuildSpec, rung: str, unit: Unit) -> list[str]:
        given = rules.kept_cuda_flags(spec.cuda_flags)
        command = [str(self.toolchain.nvcc), f"-arch={self._architecture(spec)}", "-w", *_NVCC_DEFAULTS]
        # Intermediate files are written anyway; keeping them is how the cubin and the PTX come out.
        command += ["-Xcompiler", ",".join(_HOST_FLAGS), "--keep", "--keep-dir", "keep"]
        command += [*self._common(spec, rung, unit, True), *self._standard(spec, rung, given), *given]
        return [*command, "-c", unit.name, "-o", f"{unit.name}.o"]
