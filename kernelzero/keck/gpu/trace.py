"""The kernels that really ran, by name and stream, from CUPTI's activity records.

Through ctypes and not through torch's profiler, whose first use in a process costs seconds. Of a record only the fields
are read whose place has not changed since CUDA 11 (kind, start, end, stream, name). Not covered: a child that was taken
over can leave records out; dispatch.py's watchers and the builder's symbols stand beside it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from kernelzero.keck.gpu.cudart import CudaError, library

_CONCURRENT_KERNEL = 10
_BUFFER_BYTES = 1 << 20
_BUFFERS = 4

_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


@dataclass(frozen=True)
class RanKernel:
    """One execution of one kernel on the GPU."""

    name: str
    """As the compiler wrote it, mangled."""
    stream: int
    start_ns: int
    end_ns: int


class _Record(ctypes.Structure):
    """The part of CUpti_ActivityKernel that all versions share."""

    _fields_ = (
        ("kind", ctypes.c_uint32), ("_a", ctypes.c_uint32 * 3), ("start", ctypes.c_uint64), ("end", ctypes.c_uint64),
        ("_b", ctypes.c_uint32 * 4), ("stream", ctypes.c_uint32), ("_c", ctypes.c_uint32 * 13),
        ("name", ctypes.c_char_p),
    )  # fmt: skip


_RecordAt = ctypes.POINTER(_Record)


class KernelTrace:
    """Start, run something, stop: the kernels that ran in between.

    Raises:
        CudaError: CUPTI is not there.
    """

    def __init__(self) -> None:
        cupti = library("libcupti")
        self._enable, self._disable = cupti.cuptiActivityEnable, cupti.cuptiActivityDisable
        self._flush, self._next = cupti.cuptiActivityFlushAll, cupti.cuptiActivityGetNextRecord
        self._memory = [(ctypes.c_uint64 * (_BUFFER_BYTES // 8))() for _ in range(_BUFFERS)]
        # Addresses are taken now: once untrusted code is loaded, asking for one counts as reaching out.
        self._free = [ctypes.addressof(memory) for memory in self._memory]
        self._found: list[RanKernel] = []
        self._callbacks = (_Requested(self._lend), _Completed(self._take))
        _check(cupti.cuptiActivityRegisterCallbacks(*self._callbacks), "register")

    def start(self) -> None:
        """Begin to record."""
        self._found = []
        _check(self._enable(_CONCURRENT_KERNEL), "enable")

    def stop(self) -> list[RanKernel]:
        """End, and what ran, in order of start. The device has to be idle, or late kernels are missed."""
        self._flush(1)
        _check(self._disable(_CONCURRENT_KERNEL), "disable")
        return sorted(self._found, key=lambda kernel: kernel.start_ns)

    def _lend(self, buffer: Any, size: Any, limit: Any) -> None:
        # Without a buffer CUPTI drops records; a call has far fewer kernels than these hold.
        buffer[0] = self._free.pop() if self._free else None
        size[0], limit[0] = _BUFFER_BYTES if buffer[0] else 0, 0

    def _take(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p()
        while valid and self._next(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)) == 0:
            found = ctypes.cast(record, _RecordAt).contents
            if found.kind == _CONCURRENT_KERNEL:
                name = (found.name or b"").decode(errors="replace")
                self._found.append(RanKernel(name, found.stream, found.start, found.end))
        self._free.append(buffer)


def _check(code: int, what: str) -> None:
    if code:
        raise CudaError(f"CUPTI cannot {what}: error {code}")
