"""Tensors that lie at the end or the start of mapped memory, so that a kernel which leaves one of them is caught.

PyTorch's allocator puts tensors side by side in large blocks: a store one element too far, or a load without its mask,
mostly goes unseen, and breaks something one day. In two of the checked calls each tensor has memory of its own, mapped
between addresses that are not (CUDA's virtual memory management): the GPU itself stops whoever goes there. Tensors
start at multiples of `ALIGN` bytes, as much as vector loads and tensor cores ask for; what is left between a tensor's
end and the mapping's is filled with a pattern that is looked at afterwards.
Not covered: what lies within one tensor, memory that the candidate's own C++ allocates, and weights.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch

from kernelzero.keck.gpu.cudart import CudaError
from kernelzero.keck.values import map_tensors

ALIGN = 256
_PATTERNS = range(0xFF, 0xF7, -1)
"""Bytes beyond tensors: NaN or huge in every floating-point type. One tensor's differ from the next one's, or a kernel
that copies one element too many would copy the pattern."""
_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", _Location), ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )  # fmt: skip


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class MappedMemory:
    """CUDA's calls for memory at chosen addresses, looked up before untrusted code is loaded."""

    def __init__(self) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        self._reserve, self._create, self._map = driver.cuMemAddressReserve, driver.cuMemCreate, driver.cuMemMap
        self._access, self._unmap = driver.cuMemSetAccess, driver.cuMemUnmap
        self._release, self._give_back = driver.cuMemRelease, driver.cuMemAddressFree
        here = _Location(_ON_DEVICE, 0)
        self._properties, self._allowed = _Properties(_PINNED, 0, here), _Access(here, _READ_AND_WRITE)
        grain = ctypes.c_size_t()
        _check(driver.cuMemGetAllocationGranularity(ctypes.byref(grain), ctypes.byref(self._properties), 0))
        self.grain = grain.value

    def allocate(self, count: int) -> tuple[int, int]:
        """(address, bytes) of mapped memory for `count` bytes, with a grain that is not mapped on each side.

        Raises:
            CudaError: there is no room.
        """
        room = -(-count // self.grain) * self.grain
        base, handle = ctypes.c_uint64(), ctypes.c_uint64()
        size, whole = ctypes.c_size_t(room), ctypes.c_size_t(room + 2 * self.grain)
        nothing, zero = ctypes.c_uint64(0), ctypes.c_size_t(0)
        _check(self._create(ctypes.byref(handle), size, ctypes.byref(self._properties), nothing))
        try:
            _check(self._reserve(ctypes.byref(base), whole, zero, nothing, nothing))
            start = ctypes.c_uint64(base.value + self.grain)
            _check(self._map(start, size, zero, handle, nothing))
            _check(self._access(start, size, ctypes.byref(self._allowed), ctypes.c_size_t(1)))
        finally:
            self._release(handle)  # the mapping keeps it
        return start.value, room

    def free(self, address: int, room: int) -> None:
        """Unmap what `allocate` gave."""
        self._unmap(ctypes.c_uint64(address), ctypes.c_size_t(room))
        whole = ctypes.c_size_t(room + 2 * self.grain)
        self._give_back(ctypes.c_uint64(address - self.grain), whole)


class _Region:
    """Mapped memory for one tensor; whoever looks at a part of it keeps it."""

    def __init__(self, memory: MappedMemory, count: int, at_end: bool) -> None:
        self._memory, self._room = memory, 0
        padded = -(-count // ALIGN) * ALIGN
        self._base, self._room = memory.allocate(padded)
        self.start = self._base + (self._room - padded if at_end else 0)
        self.slack = padded - count

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # after a fault on the GPU nothing works, and nothing is left to free
            if self._room:
                torch.cuda.synchronize()
                self._memory.free(self._base, self._room)


class _Part:
    """What torch.as_tensor needs to look at bytes of a region."""

    def __init__(self, region: _Region, address: int, count: int) -> None:
        self._region = region
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2, "strides": None,
        }  # fmt: skip


class Fence:
    """The fence of one call.

    Args:
        at_end: whether tensors end where mapped memory ends, or start where it starts.
    """

    def __init__(self, memory: MappedMemory, at_end: bool) -> None:
        self._memory, self._at_end = memory, at_end
        self._slack: list[tuple[torch.Tensor, int]] = []
        """Bytes between a tensor's end and its fence, and what is in them."""

    def around(self, value: Any, copied: bool = True) -> Any:
        """The value with its tensors inside of fences, their contents `copied`; as they are where there is no room."""
        return map_tensors(value, lambda tensor: self._placed(tensor, copied))

    def _placed(self, tensor: torch.Tensor, copied: bool) -> torch.Tensor:
        count = tensor.untyped_storage().nbytes()
        if not (tensor.is_cuda and count) or torch.cuda.is_current_stream_capturing():
            return tensor
        try:
            region = _Region(self._memory, count, self._at_end)
        except CudaError:
            return tensor
        inside = _bytes(region, region.start, count)
        if region.slack:
            pattern = _PATTERNS[len(self._slack) % len(_PATTERNS)]
            self._slack.append((_bytes(region, region.start + count, region.slack).fill_(pattern), pattern))
        placed = torch.as_strided(inside.view(tensor.dtype), tensor.shape, tensor.stride(), tensor.storage_offset())
        return placed.copy_(tensor) if copied else placed

    def was_crossed(self) -> bool:
        """Whether something was stored between a tensor's end and its fence; waits for the GPU."""
        return any(bool((slack != pattern).any()) for slack, pattern in self._slack)


def _bytes(region: _Region, address: int, count: int) -> torch.Tensor:
    part: Any = _Part(region, address, count)
    return torch.as_tensor(part, device="cuda")


def _check(code: int) -> None:
    if code:
        raise CudaError(f"mapped memory: error {code} of the driver")
