"""Where a built library's code comes from, by what it is linked to: every symbol that it needs is on a list or refused.

Kernels have to be the candidate's own, so vendor libraries and torch's compute operators are refused, and so is what
reaches out of the process: processes, threads, sockets, files, other libraries. Not covered: system calls by inline
assembly whose text is put together by macros, and code found by walking memory; against those the process is confined.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from kernelzero.keck.build.elf import Elf
from kernelzero.keck.rules import RuleBroken
from kernelzero.keck.words import words
from kernelzero.records import Status

_MATH = words(
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc exp exp10 exp2 expm1 fabs "
    "fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint "
    "lround modf nan nearbyint nextafter pow remainder remquo rint round scalbn scalbln sin sincos sinh sqrt tan "
    "tanh tgamma trunc"
)
_LIBC = words(
    "memcpy memmove memset memcmp memchr bcmp strlen strnlen strcmp strncmp strcpy strncpy strcat strncat strchr "
    "strrchr strstr strtol strtoll strtoul strtoull strtof strtod atoi atol atoll atof snprintf sprintf vsnprintf "
    "vsprintf printf fprintf vprintf vfprintf puts putchar fputs fputc fputs_unlocked fwrite fflush putc stdout "
    "stderr perror malloc calloc realloc free aligned_alloc posix_memalign memalign abort exit qsort bsearch rand "
    "srand time clock clock_gettime gettimeofday __assert_fail __assert __errno_location __stack_chk_fail "
    "__printf_chk __fprintf_chk __snprintf_chk __sprintf_chk __vsnprintf_chk __memcpy_chk __memset_chk "
    "__memmove_chk __strcpy_chk __strcat_chk __strncpy_chk strerror abs labs llabs div ldiv __ctype_b_loc "
    "__ctype_tolower_loc __ctype_toupper_loc tolower toupper isdigit isspace isalpha isalnum memrchr "
    "__isoc99_sscanf __isoc23_strtol __isoc23_strtoull __isoc23_strtoll __isoc23_strtoul __isinf __isnan __isinff "
    "__isnanf __finite __finitef __signbit __signbitf __fpclassify __fpclassifyf"
)
_RUNTIME = words(
    "_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __gmon_start__ __tls_get_addr __gxx_personality_v0 "
    "__dso_handle pthread_mutex_lock pthread_mutex_unlock pthread_mutex_trylock pthread_once __pthread_key_create "
    "pthread_self pthread_equal __libc_single_threaded _Unwind_Resume _Unwind_DeleteException _Unwind_GetIP "
    "__register_atfork"
)
_C = _LIBC | _RUNTIME | {name + suffix for name in _MATH for suffix in ("", "f", "l")}
_CXX_RUNTIME = re.compile(r"__cxa_\w+|__dynamic_cast|__atomic_\w+|__(?:u?div|u?mod|mul|float|fix)\w*[dst]i\w*")

_CUDA = re.compile(r"__cuda[A-Z]\w*|cuda[A-Z]\w*")
_CUDA_DENIED = re.compile(
    r"cuda(?:Ipc|GetDriverEntryPoint|LaunchHostFunc|StreamAddCallback|Import|GetExportTable|UserObject|Library|"
    r"GraphAddHostNode|GraphExternal|DeviceReset|Profiler|HostRegister|GraphicsMap|GL|EGL|Vulkan|MemPoolImport|"
    r"MemPoolExport|GraphHostNode|GraphExecHostNode)\w*"
)
_VENDOR = re.compile(
    r"cu(?:blas|dnn|sparse|solver|fft|rand|tensor|file|pti)\w*|nvrtc\w*|nvJitLink\w*|nccl\w*|npp\w*", re.I
)
_DRIVER = re.compile(r"cu[A-Z]\w*")

_STD = re.compile(r"_Z+(?:T[ISVT]|GV|GR)?L?N?[VrK]*[RO]?S[tabsiod]|_Z(?:nw|na|dl|da)[am]?")
_STD_TYPES = re.compile(r"_ZT[ISV](?:[PK]*[a-z]|N10__cxxabiv1)\w*|_ZN9__gnu_cxx\w*|_ZN10__cxxabiv1\w*")
_STD_DENIED = re.compile(
    r"6thread|7jthread|10filesystem|filebuf|[io]?fstream|11this_thread|18condition_variable|13random_device|13__future_base|"
    r"5async|_Async|7promise|7__ctype_abbrev"
)
_OPERATOR = re.compile(r"^at::_ops::(\w+)::(\w+)\(")
_ELEMENT = re.compile(
    r"data_ptr<(?:float|double|bool|(?:(?:un)?signed )?(?:char|short|int|long)|c10::\w+(?:<.*>)?)(?: const)?(?:, 0)?>"
)
"""Types of elements that torch has accessors for."""
_TORCH_ALLOWED = re.compile(
    r"(?:at::Tensor(?:Base)?(?:::|$)|at::TensorMaker::|at::globalContext|at::OptionalTensorRef|at::undefined_tensor"
    r"|at::cuda::(?:getCurrentDeviceProperties|getDeviceProperties|warp_size|detail::getCUDAHooks|getCurrentCUDABlasHandle0)"
    r"|at::(?:checkAllSameGPU|checkSameGPU|checkContiguous|checkDim|checkSize|checkSameType|checkAllContiguous|device_of)"
    r"|at::detail::noopDelete|at::TensorGeometry|at::AutoDispatch|at::print|at::toString|at::operator<<"
    r"|c10::|caffe2::(?:TypeMeta|TypeIdentifier|detail::)|torch::autograd::(?:VariableTypeMode|GradMode|AutogradMeta))"
)  # fmt: skip
_TORCH_DENIED = re.compile(
    r"c10::(?:Dispatcher|OperatorHandle|RegisterOperators|impl::OperatorEntry|OperatorName|FunctionSchema|ThreadPool"
    r"|TaskThreadPool|impl::IncludeDispatchKeyGuard|impl::ForceDispatchKeyGuard"
    r"|impl::tls_|impl::_force_tls|impl::PythonDispatcherTLS|impl::TorchDispatchModeTLS|SafePyObject|KernelFunction"
    r"|RegistrationHandle)"
)


def check(library: Path, libc: frozenset[str]) -> None:
    """Raise RuleBroken where the library needs something that is not allowed, or that nothing provides."""
    elf = Elf.read(library)
    wanted = elf.undefined()
    doubtful = [name for name in wanted if not _plainly_allowed(name)]
    readable = demangle(doubtful)
    for name in doubtful:
        _judge(name, readable[name], libc)


def _plainly_allowed(name: str) -> bool:
    if name in _C or _CXX_RUNTIME.fullmatch(name):
        return True
    if _CUDA.fullmatch(name):
        return not _CUDA_DENIED.fullmatch(name)
    return bool(_STD.match(name) or _STD_TYPES.fullmatch(name)) and not _STD_DENIED.search(name)


def _judge(name: str, readable: str, libc: frozenset[str]) -> None:
    if _VENDOR.fullmatch(name):
        raise RuleBroken(f"a vendor library is used: {name}")
    if _CUDA.fullmatch(name) or _DRIVER.fullmatch(name) or name in libc:
        raise RuleBroken(f"the source reaches outside of its kernel: {name}")
    if _STD.match(name) or _STD_TYPES.fullmatch(name):
        raise RuleBroken(f"the source reaches outside of its kernel: {readable[:200]}")
    if re.match(r"(?:at|c10|torch|caffe2)::", _qualified_name(readable)):
        _judge_torch(readable)
    elif name.startswith(("Py", "_Py", "aoti_torch", "THP")):
        raise RuleBroken(f"the source reaches outside of its kernel: {name}")
    else:
        raise RuleBroken(f"undefined symbol: {readable[:300]}", status=Status.COMPILE_ERROR)


def _judge_torch(readable: str) -> None:
    operator = _OPERATOR.match(readable)
    if operator:
        name, _, overload = (operator_name(operator.group(1)) or "").partition(".")
        if operator.group(2) != "call" or not name or computes(name, overload):
            raise RuleBroken(f"PyTorch computes in C++: at::{name or operator.group(1)}")
        return
    if "data_ptr<" in readable and not _ELEMENT.search(readable):
        raise RuleBroken(f"undefined symbol: {readable[:300]}", status=Status.COMPILE_ERROR)
    name = _qualified_name(readable)
    if _TORCH_DENIED.match(name) or not _TORCH_ALLOWED.match(name):
        raise RuleBroken(f"torch's own code is used: {readable[:200]}")


def _qualified_name(readable: str) -> str:
    """The name alone: without arguments, "vtable for", and the result that a template's text begins with."""
    depth, start = 0, 0
    for index, character in enumerate(readable):
        if readable.startswith("operator", index):
            return readable[start:]
        if character == "(" and depth == 0:
            return readable[start:index]
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == " " and depth == 0:
            start = index + 1
    return readable[start:]


def computes(name: str, overload: str | None = None) -> bool:
    """Whether `at::name` is an operator that computes; without an overload: whether all of them do."""
    import torch

    from kernelzero.keck.guard import ALLOCATIONS, COPIES, METADATA, is_view

    packet = getattr(torch.ops.aten, name, None)
    if packet is None or name in ALLOCATIONS | COPIES | METADATA:
        return False
    return not any(is_view(getattr(packet, o)) for o in ([overload] if overload else packet.overloads()))


def operator_name(entry: str) -> str | None:
    """ "NAME.OVERLOAD" of a class at::_ops::NAME_OVERLOAD, e.g. "empty.memory_format"; None for no operator."""
    import torch

    cuts = [len(entry), *(m.start() for m in re.finditer("_", entry))]
    for cut in sorted(cuts, reverse=True):
        packet = getattr(torch.ops.aten, entry[:cut], None) if entry[:cut] else None
        overload = entry[cut + 1 :] or "default"
        if packet is not None and overload in packet.overloads():
            return f"{entry[:cut]}.{overload}"
    return None


_LIBRARIES = re.compile(
    r"(?:ampere|volta|turing|maxwell|hopper|blackwell|sm\d\d|nvjet|cutlass|cudnn|cublas|xmma|gemmSN|gemmk1|gemv|splitK)"
    r"|(?:void )?(?:at|c10|torch|cub|thrust|cutlass|cudnn|cublas\w*|flash)::",
    re.IGNORECASE,
)


def is_a_librarys(symbol: str, readable: str) -> bool:
    """Whether a kernel is named as those of vendors and of torch are: by its name it will be known when it runs.

    Kernels that a candidate gets from the headers of CUB keep their names, and may: they were compiled with it.
    """
    plain = readable.removeprefix("void ")
    if plain.startswith("cub::"):
        return False
    return bool(_LIBRARIES.match(plain) or _LIBRARIES.match(symbol))


def demangle(names: Iterable[str]) -> dict[str, str]:
    """C++ names as a person would write them; names of C stay as they are."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return {}
    result = subprocess.run(
        ["c++filt"], input="\n".join(wanted), capture_output=True, text=True, check=True, env={"LC_ALL": "C"}
    )
    lines = result.stdout.splitlines()
    return dict(zip(wanted, lines, strict=True)) if len(lines) == len(wanted) else {name: name for name in wanted}
