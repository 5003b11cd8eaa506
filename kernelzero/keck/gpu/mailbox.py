"""Tensors between judge and child without a copy through the host.

A child owns two allocations, one for what it is sent and one for what it sends, and exports both; the judge opens them.
The child never gets a handle on memory of the judge, where the answers are. Each side copies out before it goes on, so
that what the other side writes later changes nothing. On the socket travel the JSON header and the sizes.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import torch

from kernelzero.keck import wire
from kernelzero.keck.gpu.cudart import CudaError, CudaRuntime, device_bytes

_ALIGN = 512
_GRAIN = 2 << 20


def _offsets(sizes: list[int]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGN) * _ALIGN
    return offsets, end


def _fill(box: torch.Tensor, buffers: list[torch.Tensor]) -> None:
    offsets, _ = _offsets([b.numel() for b in buffers])
    for offset, buffer in zip(offsets, buffers, strict=True):
        box[offset : offset + buffer.numel()].copy_(buffer)


def _empty(box: torch.Tensor, sizes: list[int]) -> list[Any]:
    """Copies, finished before the other side is told anything and writes again."""
    offsets, _ = _offsets(sizes)
    copies = [box[offset : offset + size].clone() for offset, size in zip(offsets, sizes, strict=True)]
    torch.cuda.current_stream().synchronize()
    return copies


class _Owned:
    """An allocation of this process that the other side has opened."""

    def __init__(self, cuda: CudaRuntime) -> None:
        self.cuda, self.address, self.count, self.handle, self.number = cuda, 0, 0, "", 0

    def grow(self, count: int) -> None:
        if count <= self.count:
            return
        if self.address:
            self.cuda.free(self.address)
        self.address, self.count = 0, 0
        torch.cuda.empty_cache()
        try:
            rounded = -(-count // _GRAIN) * _GRAIN
            self.address = self.cuda.allocate(rounded)
        except CudaError as error:
            raise wire.NoRoom(f"out of memory: {error}") from None
        self.count = rounded
        self.handle = self.cuda.export(self.address)
        self.number += 1

    @property
    def view(self) -> torch.Tensor:
        return device_bytes(self.address, self.count)

    def describe(self) -> dict[str, Any]:
        return {"handle": self.handle, "bytes": self.count, "number": self.number}


class ChildChannel(wire.Channel):
    """The child's end."""

    def __init__(self, sock: socket.socket, cuda: CudaRuntime) -> None:
        super().__init__(sock)
        self._inbox, self._outbox = _Owned(cuda), _Owned(cuda)

    def send(self, message: dict[str, Any], buffers: list[Any] | None = None, deadline: float | None = None) -> None:
        """Send one message; buffers are flat uint8 tensors on the GPU."""
        mail: dict[str, Any] = {"sizes": []}
        if buffers:
            box = self._outbox
            sizes = [b.numel() for b in buffers]
            box.grow(_offsets(sizes)[1])
            _fill(box.view, buffers)
            torch.cuda.current_stream().synchronize()
            mail = {"sizes": sizes, "box": box.describe()}
        super().send({"mail": mail, "body": message}, None, deadline)

    def receive(
        self, deadline: float | None = None, max_payload: int = wire.MAX_PAYLOAD_BYTES
    ) -> tuple[dict[str, Any], list[Any]]:
        """Receive one message; first makes room where the judge asks for it."""
        while True:
            message, _ = super().receive(deadline, max_payload)
            if "grow" not in message:
                break
            try:
                self._inbox.grow(int(message["grow"]))
                super().send({"box": self._inbox.describe()}, None, deadline)
            except wire.NoRoom as error:
                super().send({"no_room": str(error)}, None, deadline)
        sizes = message["mail"]["sizes"]
        return message["body"], _empty(self._inbox.view, sizes) if sizes else []


class _Opened:
    """Memory of the child in the judge's process."""

    def __init__(self, cuda: CudaRuntime, told: Any) -> None:
        try:
            self.number, self.count = int(told["number"]), int(told["bytes"])
            self.address = cuda.open(str(told["handle"]), self.count)
        except (CudaError, KeyError, TypeError, ValueError) as error:
            raise wire.WireError(f"the child's memory cannot be opened: {error}") from None
        self.cuda = cuda
        self.view = device_bytes(self.address, self.count)

    def close(self) -> None:
        with contextlib.suppress(CudaError):  # the child may be dead; its memory is gone then
            self.cuda.close(self.address)


class JudgeChannel(wire.Channel):
    """The judge's end. Nothing that the child says about its memory is believed before it is opened and measured."""

    def __init__(self, sock: socket.socket, cuda: CudaRuntime) -> None:
        super().__init__(sock)
        self._cuda = cuda
        self._inbox: _Opened | None = None
        """Where the child reads."""
        self._outbox: _Opened | None = None
        """Where the child writes."""

    def send(self, message: dict[str, Any], buffers: list[Any] | None = None, deadline: float | None = None) -> None:
        """Send one message; buffers are flat uint8 tensors on the GPU."""
        sizes = [b.numel() for b in buffers or []]
        if buffers:
            inbox = self._room(_offsets(sizes)[1], deadline)
            _fill(inbox.view, buffers)
            torch.cuda.current_stream().synchronize()
        super().send({"mail": {"sizes": sizes}, "body": message}, None, deadline)

    def receive(
        self, deadline: float | None = None, max_payload: int = wire.MAX_PAYLOAD_BYTES
    ) -> tuple[dict[str, Any], list[Any]]:
        """Receive one message and copies of its buffers.

        Raises:
            PeerGone, DeadlinePassed, and WireError for anything malformed.
        """
        message, _ = super().receive(deadline, max_payload)
        try:
            mail, body = message["mail"], message["body"]
            sizes = [int(size) for size in mail["sizes"]]
        except (KeyError, TypeError, ValueError) as error:
            raise wire.WireError(f"malformed message: {error}") from error
        if not isinstance(body, dict) or min(sizes, default=0) < 0 or sum(sizes) > max_payload:
            raise wire.WireError("malformed message: sizes are not what is due")
        return body, self._taken(mail.get("box"), sizes) if sizes else []

    def _taken(self, told: Any, sizes: list[int]) -> list[Any]:
        if self._outbox is None or not isinstance(told, dict) or told.get("number") != self._outbox.number:
            old, self._outbox = self._outbox, None
            if old is not None:
                old.close()
            self._outbox = _Opened(self._cuda, told)
        if _offsets(sizes)[1] > self._outbox.count:
            raise wire.WireError("malformed message: it is larger than the memory that it lies in")
        return _empty(self._outbox.view, sizes)

    def _room(self, count: int, deadline: float | None) -> _Opened:
        if self._inbox is None or self._inbox.count < count:
            old, self._inbox = self._inbox, None
            if old is not None:
                old.close()
            super().send({"grow": count}, None, deadline)
            told, _ = super().receive(deadline)
            if "no_room" in told:
                raise wire.WireError(f"CUDA out of memory: no room for inputs of {count >> 20} MiB")
            self._inbox = _Opened(self._cuda, told.get("box"))
            if self._inbox.count < count:
                raise wire.WireError("the child makes no room for its inputs")
        return self._inbox

    def close(self) -> None:
        """Close the socket and unmap the child's memory."""
        super().close()
        for box in (self._inbox, self._outbox):
            if box is not None:
                box.close()
        self._inbox = self._outbox = None
