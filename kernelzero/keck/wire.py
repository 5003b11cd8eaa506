"""Values between Keck's processes: a JSON header and raw tensor bytes. Never pickle.

One side of every connection may be hostile, so nothing that arrives is executed, sizes are bounded before memory
is taken, and a value that does not fit is an error about the sender. Tensors keep shape, strides and shared storage,
because a transposed input must reach a candidate transposed. Sparse, quantised and subclassed tensors do not travel.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

import torch

_PREFIX = struct.Struct("<QQ")
MAX_HEADER_BYTES = 16 << 20
MAX_PAYLOAD_BYTES = 4 << 30

_DTYPES: dict[str, torch.dtype] = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
    )
}  # fmt: skip


Buffer = bytes | bytearray | torch.Tensor
"""Raw bytes: host memory, or a flat uint8 tensor where values live on a GPU."""

_device = torch.device("cpu")


def use_device(name: str) -> None:
    """Where the values of this process live, "cpu" or "cuda"; said once, before anything is encoded."""
    global _device
    _device = torch.device(name)


def on_gpu() -> bool:
    """Whether values of this process live on a GPU."""
    return _device.type != "cpu"


class WireError(Exception):
    """A value that cannot be sent, or bytes that are not what they claim to be."""


class NoRoom(Exception):
    """The device has no memory left for what is to be sent or received."""


class PeerGone(Exception):
    """The other side closed the connection."""


class DeadlinePassed(Exception):
    """The other side did not answer in time."""


def encode(value: Any) -> tuple[Any, list[Any]]:
    """Split a nested structure of tensors and plain values into a JSON tree and raw buffers (see `Buffer`).

    Raises:
        WireError: for a type that does not travel; the message names it.
    """
    buffers: list[Any] = []
    storages: dict[int, int] = {}
    return _encode(value, buffers, storages), buffers


def _encode(value: Any, buffers: list[Any], storages: dict[int, int]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return {"v": value}
    if kind is float:
        return {"f": value.hex() if math.isfinite(value) else str(value)}
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, buffers, storages)
    if isinstance(value, dict):
        return {"d": [[_encode(k, buffers, storages), _encode(v, buffers, storages)] for k, v in dict.items(value)]}
    if kind is torch.Size:
        return {"l": [{"v": int(item)} for item in value], "tuple": True}
    if isinstance(value, list | tuple):
        return {"l": [_encode(item, buffers, storages) for item in value], "tuple": isinstance(value, tuple)}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": str(value)}
    raise WireError(f"a value of type {kind.__module__}.{kind.__qualname__} cannot leave its process")


def _encode_tensor(value: torch.Tensor, buffers: list[Any], storages: dict[int, int]) -> Any:
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise WireError(f"a tensor of type {type(value).__qualname__} cannot leave its process")
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise WireError(f"a {value.layout} tensor on {value.device} cannot leave its process")
    name = str(value.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise WireError(f"a tensor of dtype {name} cannot leave its process")
    with torch.no_grad():
        value = torch.Tensor.detach(value).resolve_conj().resolve_neg().to(_device)
        shape, stride = tuple(value.shape), tuple(value.stride())
        node = {"t": name, "shape": shape, "stride": stride}
        if value.numel() == 0:
            return {**node, "b": -1, "offset": 0}
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        # Views of one storage travel as one buffer, so that aliasing survives the journey.
        address = value.untyped_storage().data_ptr()
        whole = value.untyped_storage().nbytes() // value.element_size()
        key = hash((address, name))
        small = whole <= 2 * span + 64
        if small and key in storages:
            return {**node, "b": storages[key], "offset": value.storage_offset()}
        offset, length = (0, whole) if small else (value.storage_offset(), span)
        flat = torch.as_strided(value, (length,), (1,), offset)
        buffers.append(_raw_bytes(flat))
        if small:
            storages[key] = len(buffers) - 1
        return {**node, "b": len(buffers) - 1, "offset": value.storage_offset() - offset}


def _raw_bytes(flat: torch.Tensor) -> Any:
    raw = flat.contiguous().view(torch.uint8)
    return raw if on_gpu() else raw.numpy().tobytes()


def decode(tree: Any, buffers: list[Any]) -> Any:
    """Inverse of `encode`. Tensors of one buffer share storage.

    Raises:
        WireError: when the tree does not describe the buffers.
    """
    try:
        return _decode(tree, buffers)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
        raise WireError(f"malformed value: {error}") from error


def _decode(tree: Any, buffers: list[Any]) -> Any:
    if "t" in tree:
        return _decode_tensor(tree, buffers)
    if "v" in tree:
        return tree["v"]
    if "f" in tree:
        text = tree["f"]
        return float.fromhex(text) if text not in ("inf", "-inf", "nan") else float(text)
    if "l" in tree:
        items = [_decode(item, buffers) for item in tree["l"]]
        return tuple(items) if tree["tuple"] else items
    if "d" in tree:
        return {_decode(k, buffers): _decode(v, buffers) for k, v in tree["d"]}
    if "dtype" in tree:
        return _DTYPES[tree["dtype"]]
    if "device" in tree:
        return torch.device(tree["device"])
    raise KeyError("unknown node")


def _decode_tensor(tree: Any, buffers: list[Any]) -> torch.Tensor:
    dtype = _DTYPES[tree["t"]]
    shape, stride = [int(s) for s in tree["shape"]], [int(s) for s in tree["stride"]]
    if tree["b"] == -1:
        return torch.empty(shape, dtype=dtype, device=_device)
    raw = buffers[tree["b"]]
    flat = raw.view(dtype) if isinstance(raw, torch.Tensor) else torch.frombuffer(raw, dtype=dtype)
    return torch.as_strided(flat, shape, stride, int(tree["offset"]))


def copies(buffers: list[Any]) -> list[Any]:
    """The buffers again, for a reader that may write to what it decodes."""
    return [b.clone() if isinstance(b, torch.Tensor) else bytearray(b) for b in buffers]


def tensor_specs(tree: Any) -> list[tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of every tensor of an encoded tree, in order, without touching its bytes."""
    if "t" in tree:
        return [(tree["t"], tuple(tree["shape"]))]
    if "l" in tree:
        return [spec for item in tree["l"] for spec in tensor_specs(item)]
    if "d" in tree:
        return [spec for _, item in tree["d"] for spec in tensor_specs(item)]
    return []


@dataclass
class Channel:
    """A framed message channel over a connected Unix socket."""

    sock: socket.socket

    def send(self, message: dict[str, Any], buffers: list[Any] | None = None, deadline: float | None = None) -> None:
        """Send one message.

        Args:
            message: JSON-compatible header.
            buffers: raw bytes that the header's tree refers to.
            deadline: `time.monotonic()` value after which to give up.

        Raises:
            PeerGone, DeadlinePassed.
        """
        buffers = buffers or []
        header = json.dumps({"m": message, "sizes": [len(b) for b in buffers]}).encode()
        self._set_timeout(deadline)
        try:
            self.sock.sendall(_PREFIX.pack(len(header), sum(len(b) for b in buffers)) + header)
            for buffer in buffers:
                self.sock.sendall(buffer)
        except TimeoutError as error:
            raise DeadlinePassed from error
        except (BrokenPipeError, ConnectionResetError, OSError) as error:
            raise PeerGone from error

    def receive(
        self, deadline: float | None = None, max_payload: int = MAX_PAYLOAD_BYTES
    ) -> tuple[dict[str, Any], list[Any]]:
        """Receive one message and its buffers.

        Raises:
            PeerGone, DeadlinePassed, and WireError for a malformed or oversized message.
        """
        header_bytes, payload_bytes = _PREFIX.unpack(self._read(_PREFIX.size, deadline))
        if header_bytes > MAX_HEADER_BYTES or payload_bytes > max_payload:
            raise WireError(f"a message of {header_bytes + payload_bytes} bytes is larger than what is due")
        try:
            header = json.loads(bytes(self._read(header_bytes, deadline)))
            message, sizes = header["m"], [int(s) for s in header["sizes"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WireError(f"malformed message: {error}") from error
        if not isinstance(message, dict) or min(sizes, default=0) < 0 or sum(sizes) != payload_bytes:
            raise WireError("malformed message: sizes do not add up")
        return message, [self._read(size, deadline) for size in sizes]

    def _read(self, size: int, deadline: float | None) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view.nbytes:
            self._set_timeout(deadline)
            try:
                count = self.sock.recv_into(view)
            except TimeoutError as error:
                raise DeadlinePassed from error
            except (ConnectionResetError, OSError) as error:
                raise PeerGone from error
            if count == 0:
                raise PeerGone
            view = view[count:]
        return data

    def _set_timeout(self, deadline: float | None) -> None:
        # A timeout of 0 would make the socket non-blocking, so the last moment is a millisecond long.
        self.sock.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
