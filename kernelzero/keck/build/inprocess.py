"""The candidate's side of building: `load_inline` and `load` ask a trusted builder; its library is opened here.

`install` replaces the two functions in torch.utils.cpp_extension. A request goes through the callable that it is given;
the answer is a verdict or the path of a library. Not covered: setup scripts with CUDAExtension, operators that are
registered with TORCH_LIBRARY, libraries that are not Python modules.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension

from kernelzero.keck.build.spec import BuildSpec, Refused, parse_request

_DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5,
    torch.float32: 6, torch.float64: 7, torch.complex32: 8, torch.complex64: 9, torch.complex128: 10,
    torch.bool: 11, torch.bfloat16: 15, torch.float8_e5m2: 23, torch.float8_e4m3fn: 24,
}  # fmt: skip
_NUMBERED = {number: dtype for dtype, number in _DTYPES.items()}
_DEVICES = {0: "cpu", 1: "cuda"}
_FORMATS = {
    0: torch.contiguous_format,
    1: torch.preserve_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
}


class BuildError(RuntimeError):
    """A candidate's extension could not be built; `answer` is the builder's."""

    def __init__(self, name: str, answer: dict[str, Any]) -> None:
        self.answer = answer
        super().__init__(f"Error building extension {name!r}: {answer['reason']}")


def install(
    build: Callable[[BuildSpec], dict[str, Any]],
    host_library: Path,
    watch: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
) -> None:
    """Replace `load_inline` and `load` of torch.utils.cpp_extension for the rest of this process.

    Args:
        build: answers {"path": …} with the library, or {"status": …, "reason": …}.
        host_library: what `builder.host_library` made for this Python.
        watch: wraps each function of a library before the candidate gets it.
    """
    host = _open_host(host_library)
    loaded: dict[str, ModuleType] = {}

    def make(kind: str) -> Callable[..., ModuleType]:
        def load_extension(*args: Any, **kwargs: Any) -> ModuleType:
            return _load(host, build, parse_request(kind, args, kwargs), loaded, watch)

        load_extension.__name__ = kind
        return load_extension

    cpp_extension.load_inline = make("load_inline")
    cpp_extension.load = make("load")
    cpp_extension.CUDAExtension = cpp_extension.CppExtension = _refuse_setup  # type: ignore[misc, assignment]


def _refuse_setup(*_: Any, **__: Any) -> Any:
    raise Refused("extensions are built with load_inline or load, not with a setup script")


def _load(
    host: ModuleType,
    build: Callable[[BuildSpec], dict[str, Any]],
    spec: BuildSpec,
    loaded: dict[str, ModuleType],
    watch: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> ModuleType:
    answer = build(spec)
    if "path" not in answer:
        raise BuildError(spec.name, answer)
    path = str(answer["path"])
    if path not in loaded:
        module = ModuleType(spec.name)
        vars(module).update({name: watch(function) for name, function in host.load(path).items()})
        loaded[path] = module
    return loaded[path]


def open_library(path: Path, host_library: Path) -> dict[str, Callable[..., Any]]:
    """The functions of a built library by name, for tests and tools; runs code of the candidate."""
    return _open_host(host_library).load(str(path))


def _open_host(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kz_host", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no extension module")
    host = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(host)
    handles = torch._C._aoti  # type: ignore[attr-defined]
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    host.setup(
        library,
        handles.unsafe_alloc_void_ptr_from_tensor,
        handles.alloc_tensors_by_stealing_from_void_ptrs,
        operate,
        _stream,
        torch._C.TensorBase,
        _DTYPES,
    )
    return host


def _stream(device: int) -> int:
    """The address of the stream that is current in Python, 0 where torch has no CUDA."""
    if torch.version.cuda is None:
        return 0
    return int(torch._C._cuda_getCurrentRawStream(device))


# --- what a library may ask torch to do ------------------------------------------------------------------------------

_MAKE: dict[str, Callable[..., torch.Tensor]] = {"empty": torch.empty, "zeros": torch.zeros, "ones": torch.ones}
_LIKE: dict[str, Callable[..., torch.Tensor]] = {
    "empty_like": torch.empty_like,
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
}
_BY_SHAPE = frozenset(("view", "reshape", "expand", "permute"))
_BY_NUMBERS = frozenset(
    ("contiguous", "clone", "detach", "flatten", "squeeze", "unsqueeze", "transpose", "t", "select", "narrow")
)


def operate(
    name: str,
    tensors: tuple[torch.Tensor, ...],
    ints: tuple[int, ...],
    scalar: float,
    dtype: int,
    device_type: int,
    device_index: int,
    memory_format: int,
) -> Any:
    """Carry out one allocation, copy, view or fill by torch's Python interface, where modes see it.

    Raises:
        RuntimeError: for a name that is none of these.
    """
    if name in _BY_SHAPE:
        return getattr(tensors[0], name)(ints)
    options = _options(dtype, device_type, device_index, memory_format)
    if name in _BY_NUMBERS:
        return getattr(tensors[0], name)(*ints, **options)
    if name in _MAKE:
        return _MAKE[name](ints, **options)
    if name in _LIKE:
        return _LIKE[name](tensors[0], **options)
    return _rarely(name, tensors, ints, scalar, options)


@functools.cache
def _options(dtype: int, device_type: int, device_index: int, memory_format: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if memory_format >= 0:
        options["memory_format"] = _FORMATS[memory_format]
    if dtype >= 0:
        options["dtype"] = _NUMBERED[dtype]
    if device_type >= 0:
        kind = _DEVICES[device_type]
        options["device"] = torch.device(kind, device_index) if device_index >= 0 else torch.device(kind)
    return options


def _rarely(
    name: str, tensors: tuple[torch.Tensor, ...], ints: tuple[int, ...], scalar: float, options: dict[str, Any]
) -> Any:
    if name == "full":
        return torch.full(ints, scalar, **{"dtype": torch.float32, **options})
    if name == "full_like":
        return torch.full_like(tensors[0], scalar, **options)
    if name == "to":
        return tensors[0].to(**options)
    if name == "item":
        value = tensors[0].item()
        return value if isinstance(value, int | float) else float(value)
    if name in ("zero_", "fill_", "copy_"):
        arguments = {"zero_": (), "fill_": (scalar,), "copy_": tensors[1:]}[name]
        getattr(tensors[0], name)(*arguments)
        return None
    raise RuntimeError(f"a built library may not ask for {name}")
