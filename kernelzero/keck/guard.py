"""Rules inside a candidate's process: what runs during `forward` decides, not what the text says.

Three watchers, all sticky (see ledger.py): a dispatch mode that sees every operator, from Python or C++, and lets only
allocation, views, layout copies and casts through; a function mode that sees data leave for the host and lets
GPU-minded code believe that its tensors are on a GPU; an audit hook that sees processes, sockets, files and frames.
Beside them, a comparison of global state before and after. A process cannot be kept from lying about itself: these
catch what is written in Python, rules.py refuses the ways around them, and the answer is never here to be stolen.
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language
import triton.testing
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelzero.keck import cost, produced, wire
from kernelzero.keck.ledger import ACTIVE, Violation
from kernelzero.keck.values import tensors
from kernelzero.keck.words import words

ALLOCATIONS = words(
    "empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones "
    "full full_like new_full scalar_tensor arange empty_permuted"
)
"""Operators that make a tensor out of no tensor's values."""
COPIES = words("_to_copy clone copy_ contiguous fill_ zero_ _reshape_copy lift_fresh_copy detach_copy")
"""Layout copies, casts and constant fills: they move values and compute none."""
METADATA = words(
    "size stride storage_offset numel dim is_contiguous sym_size sym_stride sym_numel sym_storage_offset is_pinned "
    "is_same_size _local_scalar_dense item is_nonzero set_data _version resize_"
)
FREE = words("empty empty_like empty_strided new_empty new_empty_strided empty_permuted")
"""Allocations that launch nothing."""
_POISON_INT = 0x5A
_SCALARS_A_CALL = 32
"""Values that the host may read in one call: sizes and scales, not a tensor."""


def is_view(func: Any) -> bool:
    """Whether the operator returns an alias of an argument without writing to it."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


class OperatorGuard(TorchDispatchMode):
    """Denies compute operators inside `forward`, counts the rest, tracks what kernels produced, poisons allocations."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise the first operator imports all of torch's compiler, seconds in every child.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See every operator that reaches a device."""
        kwargs = kwargs or {}
        namespace, _, name = func._schema.name.partition("::")
        if name in ("_neg_view", "_conj"):
            raise ACTIVE.violate(f"PyTorch computes inside forward: {name} is arithmetic that is put off")
        if namespace in ("aten", "prim") and (is_view(func) or name in METADATA):
            if name in ("_local_scalar_dense", "item", "is_nonzero"):
                _check_scalar_read(args[0])
            return func(*args, **kwargs)
        if namespace != "aten" or name not in ALLOCATIONS | COPIES:
            if ACTIVE.hybrid and namespace == "aten":
                return _computed(func, args, kwargs)
            raise ACTIVE.violate(f"PyTorch computes inside forward: {namespace}::{name}")
        if name in COPIES:
            _check_narrowing(func, args, kwargs)
            _check_destination(args, kwargs)
        out = func(*args, **kwargs)
        if ACTIVE.fence is not None and name in ALLOCATIONS:
            out = ACTIVE.fence(out)
        _account(func, name, args, kwargs, out)
        return out


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """A computation of PyTorch's, where the policy allows it; what it makes of a kernel's output is the kernel's."""
    ACTIVE.take_turn()
    out = func(*args, **kwargs)
    cost.count_operator(ACTIVE.meter, func, args, kwargs, out)
    if any(produced.is_produced(t) for t in tensors((args, tuple(kwargs.values())))):
        for tensor in tensors(out):
            produced.given(tensor)
    _KEEP_ALIVE.append(out)
    return out


def blank(given: list[torch.Tensor]) -> None:
    """Zeros in all that a kernel was given but the inputs and the weights."""
    for tensor in given:
        if tensor.untyped_storage().data_ptr() not in ACTIVE.protected:
            tensor.untyped_storage().fill_(0)  # type: ignore[attr-defined]


def _check_scalar_read(tensor: torch.Tensor) -> None:
    ACTIVE.scalars_read += 1
    if tensor.untyped_storage().nbytes() > 16 * tensor.element_size() or ACTIVE.scalars_read > _SCALARS_A_CALL:
        raise ACTIVE.violate("values of a tensor are read on the host inside forward")


def _check_destination(args: Any, kwargs: Any) -> None:
    """On a GPU a copy to the host is a way to compute there; small ones, sizes and scales, count as reads."""
    if not wire.on_gpu():
        return
    source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    goal = kwargs.get("device") or args[0].device
    if torch.device(goal).type == "cpu" and source.device.type != "cpu":
        _check_scalar_read(source)


def _check_narrowing(func: Any, args: Any, kwargs: Any) -> None:
    name = func._schema.name
    source = args[1] if name.endswith("copy_") and len(args) > 1 else args[0]
    target = args[0].dtype if name.endswith("copy_") else kwargs.get("dtype") or args[0].dtype
    narrow = target.is_floating_point and target.itemsize < 4
    if narrow and isinstance(source, torch.Tensor) and source.dtype in (torch.float32, torch.float64):
        ACTIVE.narrowed(f"{source.dtype} is cast to {target}")


def _account(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
    ACTIVE.torch_kernels += 1
    if name in FREE:
        _poison(out)
    else:
        cost.count_operator(ACTIVE.meter, func, args, kwargs, out)
    if name in COPIES and isinstance(out, torch.Tensor):
        sources = [t for t in args if isinstance(t, torch.Tensor)][1 if name == "copy_" else 0 :]
        if any(produced.is_produced(t) for t in sources):
            produced.given(out)
    _KEEP_ALIVE.append(out)


_KEEP_ALIVE: list[Any] = []
"""Everything allocated in this call: a freed address must not lend its record to a later tensor."""


def _poison(tensor: torch.Tensor) -> None:
    """Fill uninitialised memory with a value that no answer has, so that stale memory cannot pass."""
    storage = tensor.untyped_storage()
    if ACTIVE.capturing is not None:
        return  # it would be captured, and so be a part of each replay
    if ACTIVE.blank:
        storage.fill_(0)  # type: ignore[attr-defined]
    elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        torch.as_strided(tensor, (storage.nbytes() // tensor.element_size(),), (1,), 0).fill_(float("nan"))
    else:
        storage.fill_(_POISON_INT if tensor.dtype is not torch.bool else 1)  # type: ignore[attr-defined]


# --- the host side ---------------------------------------------------------------------------------------------------

_T = torch.Tensor
_HOST_READS = {
    _T.numpy, _T.tolist, _T.__array__, _T.__reduce_ex__, _T.apply_, _T.map_, _T.map2_,
}  # fmt: skip
_MEMORY = {_T.__dlpack__, _T.untyped_storage, _T.storage, _T._typed_storage}
"""What gives the host a window on a tensor's memory that stays open: denied at all times."""
_SHARING = {torch.as_tensor, torch.asarray, torch.frombuffer}
_ADDRESS_MASK = 0x2A55 << 48
"""Addresses are told with these bits flipped: alignment and differences are as on a GPU, and as useless to the host."""
_GPU_DEVICE = torch.device("cuda", 0)
_IS_CUDA, _DEVICE = _T.is_cuda.__get__, _T.device.__get__  # type: ignore[attr-defined]


class HostGuard(TorchFunctionMode):
    """Denies reading tensors on the host inside `forward`; lets code written for a GPU run here.

    With `pretend`, tensors say that they are on a GPU, as a kernel's own checks expect. References do not need that,
    and PyTorch's own code would take it at its word.
    """

    def __init__(self, pretend: bool) -> None:
        super().__init__()
        self.pretend = pretend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See every call of torch's Python interface."""
        kwargs = kwargs or {}
        if (ACTIVE.in_forward and func in _HOST_READS) or (self.pretend and func in _MEMORY):
            raise ACTIVE.violate(f"a tensor's data is taken to the host: {func.__name__}")
        if self.pretend and func == _IS_CUDA:
            return True
        if self.pretend and func == _DEVICE:
            return _GPU_DEVICE
        if ACTIVE.in_forward and func is _T.__repr__:
            # torch prints with all modes off, and text can be read as well as numbers.
            return f"tensor(<{tuple(args[0].shape)}, {args[0].dtype}>)"
        if self.pretend and func == _T.data_ptr:
            return func(*args, **kwargs) ^ _ADDRESS_MASK
        if func is _T.cuda:
            return args[0]
        args, kwargs = _on_cpu(args), {k: _cpu_device(v) if k == "device" else v for k, v in kwargs.items()}
        out = func(*args, **kwargs)
        if self.pretend and func in (_T.numpy, _T.__array__):
            # On a GPU the host gets a copy, never the memory that kernels write to.
            return out.copy()
        return out.clone() if self.pretend and func in _SHARING else out


class GpuHostGuard(TorchFunctionMode):
    """The same on a real GPU, where nothing has to be pretended."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See every call of torch's Python interface."""
        if ACTIVE.in_forward and func in _HOST_READS:
            raise ACTIVE.violate(f"a tensor's data is taken to the host: {func.__name__}")
        if func is _T.__dlpack__:  # storages are left: torch's CUDA graphs use them, and the text rules name them
            raise ACTIVE.violate(f"a window on a tensor's memory is opened: {func.__name__}")
        if ACTIVE.in_forward and func is _T.__repr__:
            return f"tensor(<{tuple(args[0].shape)}, {args[0].dtype}>)"
        if ACTIVE.in_forward and func is _T.data_ptr:
            ACTIVE.addresses.append(args[0])
        return func(*args, **(kwargs or {}))


def separate_host_memory() -> None:
    """Cut the ways past torch's modes: shared memory of tensors and host arrays, and the switches of the modes."""
    from_numpy, from_dlpack = torch.from_numpy, torch.from_dlpack

    def refuse(*_: Any, **__: Any) -> Any:
        raise ACTIVE.violate("the candidate goes round torch's modes")

    disable = _python_dispatch._disable_current_modes

    def disable_outside_forward() -> Any:
        if ACTIVE.in_forward:
            raise ACTIVE.violate("torch's modes are switched off inside forward")
        return disable()

    _python_dispatch._disable_current_modes = disable_outside_forward
    torch._C._DisableTorchDispatch = refuse  # type: ignore[assignment, misc]
    torch.from_numpy = lambda array: from_numpy(array).clone()  # type: ignore[assignment]
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = lambda *a, **k: from_dlpack(*a, **k).clone()
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = torch._C._to_dlpack = refuse


def plain(value: Any) -> Any:
    """An output without the candidate's own containers, whose methods would run after the guards are gone."""
    if type(value) is torch.Size:
        return tuple(int(item) for item in value)
    if isinstance(value, tuple):
        return tuple(plain(item) for item in tuple.__iter__(value))
    if isinstance(value, list):
        return [plain(item) for item in list.__iter__(value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in dict.items(value)}
    return value


def _on_cpu(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_cpu_device(a) if isinstance(a, torch.device | str) else a for a in args)


def _cpu_device(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    if isinstance(value, int) and not isinstance(value, bool):
        return "cpu"
    return value


# --- processes, threads, files ---------------------------------------------------------------------------------------

_DENIED_EVENTS = (
    "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.killpg",
    "subprocess.Popen", "socket.", "sys._current_frames", "gc.get_", "_thread.start_new_thread", "sys.settrace",
    "sys.setprofile", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink",
    "os.truncate", "os.mkdir", "shutil.", "signal.pthread_kill", "mmap.__new__", "ctypes.dlopen", "ctypes.dlsym",
    "ctypes.cdata", "ctypes.string_at", "ctypes.addressof", "ctypes.call_function", "pty.spawn", "os.chdir",
    "sys.addaudithook", "pickle.find_class",
)  # fmt: skip
_FROM_CANDIDATE = ("exec", "compile", "sys._getframe", "object.__setattr__", "object.__delattr__", "marshal.loads")
_WRITING_EVENTS = (
    "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate", "os.mkdir",
    "shutil.",
)  # fmt: skip
_armed = False
_compiling = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _armed:
        return
    if _compiling:
        _audit_compiler(event, arguments)
    elif event == "open":
        _check_open(*arguments[:3])
    elif (event.startswith(_DENIED_EVENTS) and not _inside_folder(event, arguments)) or (
        event in _FROM_CANDIDATE and _called_from(_folder)
    ):
        raise ACTIVE.violate(f"the candidate reaches outside of its kernel: {event}")


_folder = "/nonexistent"


def _audit_compiler(event: str, arguments: tuple[Any, ...]) -> None:
    """torch.compile loads and reflects at will; it writes nowhere but in its own folder."""
    paths = [arguments[0]] if event == "open" and _writes(arguments[2]) else []
    if event.startswith(_WRITING_EVENTS):
        paths = [a for a in arguments if isinstance(a, str | bytes)]
    for path in paths:
        text = os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes) else _folder
        if not text.startswith(_folder) and text != os.devnull:
            raise ACTIVE.violate(f"the reference writes a file that is not its own: {os.path.basename(text)}")


def _inside_folder(event: str, arguments: tuple[Any, ...]) -> bool:
    if event not in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree"):
        return False
    paths = [os.path.realpath(os.fsdecode(a)) for a in arguments if isinstance(a, str | bytes)]
    return all(path.startswith(_folder) and not path.endswith(".py") for path in paths)


_looking = False


def _called_from(folder: str) -> bool:
    global _looking
    if _looking:
        # Looking at the caller's frame is itself an audited event.
        return False
    _looking = True
    try:
        return sys._getframe(2).f_code.co_filename.startswith(folder)
    finally:
        _looking = False


def _check_open(path: Any, mode: Any, flags: Any) -> None:
    if isinstance(path, int):
        return
    text = os.path.realpath(os.fsdecode(path))
    # Kernels are read from the module's file, more than once.
    if _writes(flags) and (not text.startswith(_folder) or text.endswith(".py")) and text != os.devnull:
        raise ACTIVE.violate(f"the candidate writes a file that is not its own: {os.path.basename(text)}")
    if not text.startswith(_READABLE) and not text.startswith(_folder):
        raise ACTIVE.violate(f"the candidate reads a file: {os.path.basename(text)}")


def _writes(flags: Any) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


_READABLE = (
    *(
        os.path.realpath(p) + os.sep
        for p in {sys.prefix, sys.base_prefix, *(p for p in sys.path if p), os.path.dirname(torch.__file__)}
    ),
    "/usr/",
    "/lib",
    "/etc/localtime",
    "/dev/null",
    "/dev/urandom",
    "/sys/devices/system/cpu",
)


def _no_thread(*_: Any, **__: Any) -> None:
    raise ACTIVE.violate("the candidate starts a thread")


def arm(folder: str) -> None:
    """Turn the audit hook on, for good. `folder` is the child's private folder."""
    global _armed, _folder
    if not _armed:
        _folder = os.path.realpath(folder)
        # Not every Python has an audit event for threads; a dispatch mode sees only its own.
        for module in (_thread, threading):
            for name in [n for n in vars(module) if n.lstrip("_").startswith("start_") and "thread" in n]:
                _starters.append((module, name, getattr(module, name)))
                setattr(module, name, _no_thread)
        sys.addaudithook(_audit)
        _armed = True


_starters: list[tuple[Any, str, Any]] = []
"""What starts threads, as it was before the hook was turned on."""


def let_compile() -> None:
    """For a reference that torch.compile is to compile: threads and reflection again; no candidate gets that."""
    global _compiling
    _compiling = True
    for module, name, original in _starters:
        setattr(module, name, original)
    subprocess.Popen = _no_process  # type: ignore[assignment, misc]


def _no_process(*_: Any, **__: Any) -> None:
    # As on a machine without these programs: torch.compile asks for C++ compilers, and does without.
    raise FileNotFoundError(errno.ENOENT, "there are no other programs here")


# --- global state ----------------------------------------------------------------------------------------------------

_WATCHED: tuple[Any, ...] = (
    torch, torch.Tensor, torch._C.TensorBase, torch.cuda, torch.cuda.Event, F, torch.nn.Module, torch.nn.Linear,
    torch.testing, torch.autograd, torch.linalg, torch.utils, torch.random, time, builtins, triton,
    triton.language.core, triton.testing, triton.runtime.jit, triton.runtime.jit.JITFunction, sys, os, contextlib,
)  # fmt: skip
_NOISY = {"_", "last_type", "last_value", "last_traceback", "last_exc", "__warningregistry__", "path_importer_cache"}


def snapshot() -> dict[str, Any]:
    """Identity of every public callable of the watched modules and classes, and global settings by value."""
    state: dict[str, Any] = {}
    for owner in _WATCHED:
        for name, value in list(vars(owner).items()):
            if name not in _NOISY and (callable(value) or isinstance(value, property)):
                state[f"{getattr(owner, '__name__', owner)}.{name}"] = value
    return state


_TINY = torch.full((1,), 2e-38)
_HARMLESS_VARIABLES = words("TORCH_CUDA_ARCH_LIST CUDA_HOME TORCH_EXTENSIONS_DIR MAX_JOBS")


def settings() -> dict[str, Any]:
    """Global settings whose change would leak into what is measured next."""
    return {
        "default dtype": torch.get_default_dtype(),
        "number of threads": torch.get_num_threads(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "TF32 in matmul": torch.backends.cuda.matmul.allow_tf32,
        "TF32 in cuDNN": torch.backends.cudnn.allow_tf32,
        "cuDNN": torch.backends.cudnn.enabled,
        "cuDNN benchmark": torch.backends.cudnn.benchmark,
        "cuDNN determinism": torch.backends.cudnn.deterministic,
        "fp16 reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16 reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "oneDNN": torch.backends.mkldnn.enabled,
        "default device": str(torch.get_default_device()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "recursion limit": sys.getrecursionlimit(),
        "denormal numbers": float(_TINY * 0.5),
        "grad mode": torch.is_grad_enabled(),
        "environment": {k: v for k, v in os.environ.items() if k not in _HARMLESS_VARIABLES},
    }


def check_unchanged(before: dict[str, Any], settings_before: dict[str, Any]) -> None:
    """Record a violation when something global was replaced or set.

    New names are allowed (torch imports parts of itself late); a name that means something else is not.
    """
    settings_now = settings()
    for name, old in settings_before.items():
        if settings_now[name] != old:
            raise ACTIVE.violate(f"global state was changed: {name}")
    now = snapshot()
    for name, old in before.items():
        if now.get(name) is not old:
            raise ACTIVE.violate(f"global state was changed: {name} was replaced")


# --- one call --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def watched_forward(host: TorchFunctionMode) -> Iterator[None]:
    """The rules of `forward`: enter, run the candidate, leave. `host` is the watcher of what leaves for the host."""
    produced.forget()
    _KEEP_ALIVE.clear()
    ACTIVE.addresses.clear()
    ACTIVE.in_forward, ACTIVE.scalars_read, ACTIVE.torch_kernels = True, 0, 0
    depth = _mode_depth()
    try:
        with torch.no_grad(), host, OperatorGuard():
            yield
    finally:
        ACTIVE.in_forward = False
    if _mode_depth() != depth:
        raise ACTIVE.violate("forward leaves a mode on torch's stack")


def forget_call() -> None:
    """Let go of the tensors of the last call."""
    _KEEP_ALIVE.clear()
    ACTIVE.addresses.clear()


def _mode_depth() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


__all__ = [
    "HostGuard",
    "OperatorGuard",
    "Violation",
    "arm",
    "check_unchanged",
    "settings",
    "snapshot",
    "watched_forward",
]
