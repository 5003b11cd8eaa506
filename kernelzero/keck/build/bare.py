"""The candidate's side of device code alone: `torch.cuda._compile_kernel` and CuPy's raw kernels, built by the judge.

NVRTC is never called. A source goes to the trusted builder, which answers with a cubin; it is loaded and launched here
through the CUDA driver, whose functions are bound before untrusted code runs: a child's audit hook denies look-ups.
Arguments are converted by torch's own class, or as CuPy does it (cupy_module.py). Not covered: instances of templates,
cooperative launches, managed memory, and what a kernel does with an address that is not its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import operator
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.cuda._utils as utils

from kernelzero.keck.build import cupy_module
from kernelzero.keck.build.spec import BuildSpec, device_request, kernel_symbol

Launching = Callable[[Sequence[Any]], contextlib.AbstractContextManager[None]]
"""Context of one launch, made of its arguments."""
"""Told after each launch what the kernel was given: tensors, and addresses as integers among other values."""
_MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


class Slots:
    """Room for a kernel's arguments, eight bytes each: the driver copies them out at every launch."""

    def __init__(self, count: int) -> None:
        self._room = (ctypes.c_uint64 * max(1, count))()
        self.pointers = (ctypes.c_void_p * max(1, count))()
        for place in range(count):
            self.pointers[place] = ctypes.cast(ctypes.byref(self._room, 8 * place), ctypes.c_void_p)

    def fill(self, formats: Iterable[str], values: Iterable[Any]) -> None:
        """Put arguments in; a format is that of `struct` and fills eight bytes."""
        struct.pack_into("<" + "".join(formats), self._room, 0, *values)


@dataclass(frozen=True)
class Function:
    """A kernel of a loaded cubin."""

    name: str
    parameters: int
    """How many arguments it takes."""
    handle: ctypes.c_void_p
    module: ctypes.c_void_p
    slots: Slots

    def check_count(self, given: int) -> None:
        """Raise TypeError for too few arguments: the driver would read beyond the list."""
        if given < self.parameters:
            raise TypeError(f"the kernel {self.name} takes {self.parameters} arguments, {given} are given")


class Driver:
    """The few functions of the CUDA driver that launching takes; also what torch's own class calls."""

    def __init__(self, library: Any) -> None:
        self.cuLaunchKernel, self.cuFuncSetAttribute = library.cuLaunchKernel, library.cuFuncSetAttribute
        # torch asks for a sentence, "invalid argument" for one; the name says more.
        self.cuGetErrorString = library.cuGetErrorName
        self._load, self._find = library.cuModuleLoad, library.cuModuleGetFunction

    def load(self, path: str) -> ctypes.c_void_p:
        """Load a cubin by its path: the driver reads the file, as Python may not."""
        module = ctypes.c_void_p()
        self.check(self._load(ctypes.byref(module), path.encode()))
        return module

    def find(self, module: ctypes.c_void_p, symbol: str) -> ctypes.c_void_p:
        """The kernel that the compiler called `symbol`."""
        function = ctypes.c_void_p()
        self.check(self._find(ctypes.byref(function), module, symbol.encode()))
        return function

    def allow_shared(self, function: Function, count: int) -> None:
        """Let a kernel be launched with `count` bytes of dynamic shared memory, beyond 48 KiB."""
        self.check(self.cuFuncSetAttribute(function.handle, ctypes.c_int(_MAX_DYNAMIC_SHARED), ctypes.c_int(count)))

    def launch(self, function: Function, grid: Iterable[int], block: Iterable[int], shared: int) -> None:
        """Launch on torch's current stream, with the arguments that lie in the function's slots.

        Args:
            function: what.
            grid: up to three numbers of blocks.
            block: up to three numbers of threads.
            shared: bytes of dynamic shared memory.

        Raises:
            RuntimeError: with CUDA's name of the error.
        """
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        sizes = (*_three(grid), *_three(block), operator.index(shared))
        self.check(self.cuLaunchKernel(function.handle, *sizes, stream, function.slots.pointers, None))

    def check(self, code: int) -> None:
        """Raise RuntimeError unless a call succeeded."""
        if code:
            name = ctypes.c_char_p()
            self.cuGetErrorString(code, ctypes.byref(name))
            raise RuntimeError(f"CUDA error: {(name.value or str(code).encode()).decode()}")


def _three(sizes: Iterable[int]) -> tuple[int, int, int]:
    x, y, z, *more = (*(operator.index(size) for size in sizes), 1, 1, 1)  # as many are left over as were given
    if not 1 <= len(more) <= 3:
        raise ValueError(f"a grid or block has one to three sizes, not {len(more)}")
    return x, y, z


class Module:
    """A cubin in this process; `answer` is the builder's."""

    def __init__(self, driver: Driver, answer: dict[str, Any]) -> None:
        self._driver, self._module = driver, driver.load(str(answer["path"]))
        self._kernels = {str(symbol): (str(name), int(count)) for symbol, name, count in answer["kernels"]}

    def function(self, name: str) -> Function:
        """The kernel of that name, the compiler's or a person's.

        Raises:
            RuntimeError: there is none.
        """
        try:
            symbol = kernel_symbol([(symbol, readable) for symbol, (readable, _) in self._kernels.items()], name)
        except LookupError as error:
            raise RuntimeError(f"CUDA_ERROR_NOT_FOUND: {error.args[0]}") from None
        count = self._kernels[symbol][1]
        return Function(name, count, self._driver.find(self._module, symbol), self._module, Slots(count))


def install(build: Callable[[BuildSpec], dict[str, Any]], launching: Launching, library: Any = None) -> None:
    """Replace torch's way to compile device code, and serve the module `cupy`, for the rest of this process.

    Args:
        build: answers {"path": …, "kernels": …}, or {"status": …, "reason": …}.
        launching: gives the context in which a kernel is launched with these arguments.
        library: the CUDA driver, None: the system's; the process has to have a context.
    """
    driver = Driver(library if library is not None else ctypes.CDLL("libcuda.so.1"))
    modules: dict[str, Module] = {}

    def load(spec: BuildSpec) -> Module:
        answer = build(spec)
        if "path" not in answer:
            raise RuntimeError(f"Kernel compilation failed: {answer['reason']}")
        path = str(answer["path"])
        if path not in modules:
            modules[path] = Module(driver, answer)
        return modules[path]

    utils._get_gpu_runtime_library = lambda: driver  # type: ignore[assignment, return-value]
    torch.cuda._compile_kernel = _compile_kernel(load, launching)  # type: ignore[assignment]
    sys.modules.update(cupy_module.make(load, lambda function: _raw_launch(driver, function, launching), driver))


# --- torch.cuda._compile_kernel --------------------------------------------------------------------------------------


def _compile_kernel(load: Callable[[BuildSpec], Module], launching: Launching) -> Callable[..., utils._CudaKernel]:
    """What stands in for torch's function; it takes what the installed torch's takes."""
    signature = inspect.signature(torch.cuda._compile_kernel)

    def compile_kernel(*args: Any, **kwargs: Any) -> utils._CudaKernel:
        given = signature.bind(*args, **kwargs).arguments
        return _watched(load(_torch_request(given)).function(given["kernel_name"]), launching)

    compile_kernel.__name__ = "_compile_kernel"
    compile_kernel.__signature__ = signature  # type: ignore[attr-defined]
    return compile_kernel


def _torch_request(given: dict[str, Any]) -> BuildSpec:
    source, name = given["kernel_source"], given["kernel_name"]
    if given.get("header_code"):
        source = f"{given['header_code']}\n{source}"
    options = [*(given.get("nvcc_options") or ()), *utils._get_gpu_rtc_compatible_flags()]
    if given.get("compute_capability"):
        options.append(f"-arch=sm_{given['compute_capability']}")
    return device_request(source, (name,), options, given.get("cuda_include_dirs") or (), name=name)


def _watched(function: Function, launching: Launching) -> utils._CudaKernel:
    # A class for each kernel: what it closes over is no attribute that a candidate could call.
    class WatchedKernel(utils._CudaKernel):
        """torch's own kernel, and a record of its launches."""

        def __call__(
            self,
            grid: tuple[int, int, int] = (1, 1, 1),
            block: tuple[int, int, int] = (1, 1, 1),
            args: list[Any] | None = None,
            shared_mem: int = 0,
            stream: Any | None = None,
        ) -> None:
            """Launch; arguments as torch takes them."""
            values = list(args or ())
            function.check_count(len(values))
            with launching(values), entered(stream):
                super().__call__(grid, block, values, shared_mem)

    return WatchedKernel(function.handle, function.module)


# --- CuPy's raw kernels ----------------------------------------------------------------------------------------------


def _raw_launch(driver: Driver, function: Function, launching: Launching) -> Callable[..., None]:
    def launch(grid: Any, block: Any, args: Any, shared_mem: int, stream: Any) -> None:
        function.check_count(len(args))
        arguments = [cupy_module.argument(value) for value in args[: function.parameters]]
        with launching([seen for _, _, seen in arguments]), entered(stream):
            function.slots.fill([form for form, _, _ in arguments], [value for _, value, _ in arguments])
            driver.launch(function, grid, block, shared_mem)

    return launch


def entered(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Make a stream torch's current one, which is where all launches go.

    A stream that is not current is entered as a candidate would enter it, so that what watches over streams sees it.

    Args:
        stream: torch's, anything with the address of one as `ptr`, or None.
    """
    address = getattr(stream, "ptr", None) if stream is not None else None
    if stream is not None and address is None:
        address = stream.cuda_stream
    if address is None or address == torch.cuda.current_stream().cuda_stream:
        return contextlib.nullcontext()
    if isinstance(stream, torch.cuda.Stream):
        return torch.cuda.stream(stream)
    return torch.cuda.stream(torch.cuda.ExternalStream(address) if address else torch.cuda.default_stream())
