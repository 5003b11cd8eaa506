"""The few calls of the CUDA runtime that torch does not offer: memory that can be shared, and its limits.

Functions are looked up once, before untrusted code is loaded: a child's audit hook denies later look-ups.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path
from typing import Any

import torch

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_BLOCKING_SYNC = 4


class CudaError(RuntimeError):
    """A CUDA call failed."""


class _Handle(ctypes.Structure):
    _fields_ = (("data", ctypes.c_ubyte * _HANDLE_BYTES),)


class _DeviceBytes:
    """What torch.as_tensor needs to look at memory that it does not own."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2, "strides": None,
        }  # fmt: skip


def library(name: str) -> ctypes.CDLL:
    """A shared library of CUDA: the one that torch has loaded, else the one that came with torch, else the system's.

    Raises:
        CudaError: there is none.
    """
    beside = Path(torch.__file__).parent.parent / "nvidia"
    places = [_mapped(name), *sorted(map(str, beside.glob(f"*/lib/{name}.so.*"))), f"{name}.so.13", f"{name}.so.12"]
    for place in [*places, f"{name}.so"]:
        with contextlib.suppress(OSError):
            if place:
                return ctypes.CDLL(place)
    raise CudaError(f"{name} was not found")


def _mapped(name: str) -> str | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.search(rf"\s(/\S*/{re.escape(name)}\.so\S*)$", line)
        if match:
            return match.group(1)
    return None


class CudaRuntime:
    """Bound functions of the CUDA runtime that torch loaded, and of the driver."""

    def __init__(self) -> None:
        runtime = library("libcudart")
        driver = ctypes.CDLL("libcuda.so.1")
        self._malloc, self._free = runtime.cudaMalloc, runtime.cudaFree
        self._get_handle, self._open_handle = runtime.cudaIpcGetMemHandle, runtime.cudaIpcOpenMemHandle
        self._close_handle, self._error_text = runtime.cudaIpcCloseMemHandle, runtime.cudaGetErrorString
        self._range = driver.cuMemGetAddressRange_v2
        self._error_text.restype = ctypes.c_char_p
        self._last_error = runtime.cudaGetLastError

    def allocate(self, count: int) -> int:
        """Address of `count` bytes on the current device, an allocation of its own."""
        address = ctypes.c_void_p()
        self._check(self._malloc(ctypes.byref(address), ctypes.c_size_t(count)))
        return int(address.value or 0)

    def free(self, address: int) -> None:
        """Give an allocation back."""
        self._check(self._free(ctypes.c_void_p(address)))

    def export(self, address: int) -> str:
        """A handle, in hexadecimal, by which another process can open the allocation."""
        handle = _Handle()
        self._check(self._get_handle(ctypes.byref(handle), ctypes.c_void_p(address)))
        return bytes(handle.data).hex()

    def open(self, handle: str, count: int) -> int:
        """Address of another process's allocation in this one.

        Raises:
            CudaError: the handle is none, or the allocation is shorter than `count` bytes.
        """
        raw = bytes.fromhex(handle)
        if len(raw) != _HANDLE_BYTES:
            raise CudaError("a handle of the wrong length")
        address = ctypes.c_void_p()
        self._check(
            self._open_handle(ctypes.byref(address), _Handle.from_buffer_copy(raw), ctypes.c_uint(_LAZY_PEER_ACCESS))
        )
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        failed = self._range(ctypes.byref(base), ctypes.byref(size), address)
        room = int(base.value or 0) + size.value - int(address.value or 0)
        if failed or room < count:
            self.close(int(address.value or 0))
            raise CudaError(f"the allocation holds {room} bytes, not {count}")
        return int(address.value or 0)

    def close(self, address: int) -> None:
        """Unmap what `open` mapped."""
        self._check(self._close_handle(ctypes.c_void_p(address)))

    def _check(self, code: int) -> None:
        if code:
            self._last_error()  # or the next call of somebody else reports it again
            raise CudaError(self._error_text(code).decode())


def wait_without_spinning() -> None:
    """Let this process sleep while it waits for the GPU; called before it takes the GPU.

    By default a waiting process keeps a core busy, and with a dozen of them nobody compiles any more.
    """
    library("libcudart").cudaSetDeviceFlags(ctypes.c_uint(_BLOCKING_SYNC))


def device_bytes(address: int, count: int) -> torch.Tensor:
    """A flat uint8 view of `count` bytes of device memory that somebody else owns."""
    shared: Any = _DeviceBytes(address, count)
    return torch.as_tensor(shared, device="cuda")
