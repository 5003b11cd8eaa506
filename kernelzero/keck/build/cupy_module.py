"""A module `cupy` with nothing but what launches raw kernels: CuPy itself need not be installed, and is never used.

Served: RawKernel, RawModule, asarray and from_dlpack of torch tensors (no copy), scalar types, cuda.ExternalStream.
Everything else is refused by name, above all what computes. Arguments are converted as CuPy does it: Python's integers
are 64 bits wide, its floats double. Launches go to torch's current stream unless a stream is named or entered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch

from kernelzero.keck.build.spec import BuildSpec, Refused, device_request

SCALARS = ("int32", "int64", "uint32", "float32", "float64", "bool_")
NAMES = ("RawKernel", "RawModule", "asarray", "from_dlpack", "ndarray", "cuda", *SCALARS)
"""All that the module has."""
_FORMATS: dict[type, str] = {
    bool: "?7x", int: "q", float: "d", numpy.bool_: "?7x", numpy.int8: "b7x", numpy.uint8: "B7x", numpy.int16: "h6x",
    numpy.uint16: "H6x", numpy.int32: "i4x", numpy.uint32: "I4x", numpy.int64: "q", numpy.uint64: "Q",
    numpy.longlong: "q", numpy.ulonglong: "Q", numpy.float16: "e6x", numpy.float32: "f4x", numpy.float64: "d",
}  # fmt: skip
"""How arguments lie in eight bytes, as formats of `struct`."""


class _Served(ModuleType):
    """A module that says what it lacks."""

    def __init__(self, name: str, contents: dict[str, Any]) -> None:
        super().__init__(name)
        vars(self).update(contents)
        vars(self)["__spec__"] = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        served = ", ".join(sorted(n for n in vars(self) if not n.startswith("_")))
        raise AttributeError(
            f"{self.__name__}.{name} is not served: kernels are the candidate's own; there are {served}"
        )


class ndarray:
    """A tensor of torch's, as an argument of a raw kernel."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    @property
    def data(self) -> SimpleNamespace:
        """Its address, as `data.ptr`."""
        return SimpleNamespace(ptr=self._tensor.data_ptr())

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self._tensor.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self._tensor.numel()


def asarray(value: Any) -> ndarray:
    """A view of a tensor on the GPU.

    Raises:
        TypeError: for anything else, which CuPy would have to copy.
    """
    if isinstance(value, ndarray):
        return value
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        raise TypeError(f"only tensors on the GPU become arrays of CuPy's here, not {type(value).__name__}")
    return ndarray(value)


def argument(value: Any) -> tuple[str, Any, Any]:
    """A kernel's argument as CuPy passes it: (format, what goes there, what a record of the launch is told).

    Raises:
        TypeError: for a type that is not passed.
    """
    form = _FORMATS.get(type(value))
    if form is not None:
        return form, value, int(value) if form in "qQ" else value
    if isinstance(value, ndarray | torch.Tensor):
        tensor = asarray(value)._tensor
        return "Q", tensor.data_ptr(), tensor
    if value is None:
        return "Q", 0, None
    raise TypeError(f"Unsupported type of a kernel's argument: {type(value).__name__}")


def make(
    load: Callable[[BuildSpec], Any], launcher: Callable[[Any], Callable[..., None]], driver: Any
) -> dict[str, ModuleType]:
    """The modules `cupy` and `cupy.cuda` for sys.modules.

    Args:
        load: a request → the loaded cubin (bare.Module).
        launcher: a function of it → what launches it.
        driver: bare.Driver.
    """
    streams: list[Any] = []
    kernel, module = _raw_classes(load, launcher, driver, streams)
    cuda = _Served("cupy.cuda", {"ExternalStream": _stream_class(streams)})
    contents = {"RawKernel": kernel, "RawModule": module, "ndarray": ndarray, "cuda": cuda}
    contents |= {"asarray": asarray, "from_dlpack": asarray, **{name: getattr(numpy, name) for name in SCALARS}}
    return {"cupy": _Served("cupy", contents), "cupy.cuda": cuda}


def _stream_class(streams: list[Any]) -> type:
    class ExternalStream:
        """A stream by its address; inside `with`, raw kernels go there."""

        def __init__(self, ptr: int, device_id: int = -1) -> None:
            self.ptr, self.device_id = int(ptr), device_id

        def __enter__(self) -> Any:
            streams.append(self)
            return self

        def __exit__(self, *_: Any) -> None:
            streams.pop()

    return ExternalStream


def _raw_classes(
    load: Callable[[BuildSpec], Any], launcher: Callable[[Any], Callable[..., None]], driver: Any, streams: list[Any]
) -> tuple[type, type]:
    class RawKernel:
        """One kernel of a source of its own."""

        def __init__(
            self, code: str, name: str, options: Sequence[str] = (), backend: str = "nvrtc", **flags: Any
        ) -> None:
            _check(backend, flags)
            self._hold(name, load(device_request(code, (name,), options, name=name)).function(name))

        def _hold(self, name: str, function: Any) -> None:
            self.name, self._launch, self._limit = name, launcher(function), 0
            self._allow = lambda count: driver.allow_shared(function, count)

        def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0, stream: Any = None) -> None:
            """Launch."""
            if stream is None and streams:
                stream = streams[-1]
            self._launch(grid, block, args, shared_mem, stream)

        @property
        def max_dynamic_shared_size_bytes(self) -> int:
            """Bytes of dynamic shared memory that a launch may ask for, where set."""
            return self._limit

        @max_dynamic_shared_size_bytes.setter
        def max_dynamic_shared_size_bytes(self, count: int) -> None:
            self._allow(count)
            self._limit = count

    class RawModule:
        """A source with several kernels."""

        def __init__(
            self, *, code: str | None = None, path: str | None = None, options: Sequence[str] = (),
            backend: str = "nvrtc", name_expressions: Sequence[str] | None = None, **flags: Any,
        ) -> None:  # fmt: skip
            _check(backend, flags)
            if path is not None:
                raise Refused("cupy.RawModule is built from code, not from a file")
            self._function = load(device_request(code, name_expressions or (), options)).function

        def get_function(self, name: str) -> RawKernel:
            """The kernel of that name."""
            kernel = RawKernel.__new__(RawKernel)
            kernel._hold(name, self._function(name))
            return kernel

    return RawKernel, RawModule


def _check(backend: str, flags: dict[str, Any]) -> None:
    known = ("translate_cucomplex", "enable_cooperative_groups", "jitify")
    unknown = sorted(set(flags) - set(known))
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
    for name in known:
        if flags.get(name):
            raise Refused(f"raw kernels are built without {name}")
    if backend not in ("nvrtc", "nvcc"):
        raise ValueError(f"Invalid backend {backend!r}")
