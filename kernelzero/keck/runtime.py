"""What a child does differently on each device: where tensors live, how the rules of `forward` see it.

The child's program is one (child.py); a runtime is chosen once, in the process that children are forked from. This file
has the CPU's, where Triton's interpreter runs the kernels; `gpu/runtime.py` has the GPU's.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from kernelzero.keck import emulate, guard, interpreter, wire


class Runtime(Protocol):
    """One device, as seen by a child."""

    on_gpu: bool

    def preload(self) -> None:
        """Prepare the process that children are forked from; it never touches the device itself."""
        ...

    def channel(self, sock: socket.socket) -> wire.Channel:
        """The child's end of its connection to the judge."""
        ...

    def start(self, connections: int) -> None:
        """Take the device, with room for this many streams; in the child, before anything untrusted is loaded."""
        ...

    def prepare(self, build: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Make ready for an untrusted module; `build` has the judge build a CUDA extension."""
        ...

    def seed(self, value: int) -> None:
        """Set every generator that the device's operators draw from."""
        ...

    def hosted(self, is_candidate: bool) -> Any:
        """Context for everything but `forward`: imports, constructors, `get_inputs`."""
        ...

    def forward(self, model: Any, inputs: list[Any], is_candidate: bool, reference_mode: Any) -> Any:
        """The model's output; a candidate's under the rules of `forward`, a reference's under `reference_mode`."""
        ...

    def placed(self, values: list[Any]) -> list[Any]:
        """What `get_inputs` returned, on the device."""
        ...

    def check_settled(self, output: Any) -> None:
        """Record a violation where the output was not finished when `forward` returned."""
        ...

    def fence(self, at_end: bool) -> Any:
        """A gpu.fence.Fence for one call; None where memory accesses are checked otherwise."""
        ...

    def memory_share(self) -> float:
        """What this process holds of the device's memory, as far as torch knows."""
        ...

    def start_trace(self) -> None:
        """Begin to record which kernels run."""
        ...

    def stop_trace(self) -> list[tuple[str, int, int]]:
        """(name, stream, nanoseconds) of the kernels that ran since."""
        ...

    def undo(self) -> None:
        """Take back what was patched for running kernels, so that global state can be compared."""
        ...


class CpuRuntime:
    """Triton's interpreter on a processor."""

    on_gpu = False

    def preload(self) -> None:
        """The interpreter's hooks, and what is slow the first time: dialects, NVIDIA's code generator."""
        from kernelzero.keck import warm_kernel

        interpreter.install()
        emulate.install()
        kernel = interpreter.KeckKernel(warm_kernel.scale)
        interpreter.compile_to_ttir(kernel, warm_kernel.SIGNATURE, warm_kernel.CONSTANTS, {})

    def channel(self, sock: socket.socket) -> wire.Channel:
        """Tensors travel as bytes."""
        return wire.Channel(sock)

    def start(self, connections: int) -> None:
        """Nothing to take."""

    def prepare(self, build: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """CUDA extensions do not run here."""

    def seed(self, value: int) -> None:
        """The one generator; torch.manual_seed also queues a call for every GPU, with a stack trace."""
        torch.default_generator.manual_seed(value)

    @contextlib.contextmanager
    def hosted(self, is_candidate: bool) -> Iterator[None]:
        """Code written for a GPU believes that it has one."""
        with guard.HostGuard(pretend=is_candidate):
            yield

    def forward(self, model: Any, inputs: list[Any], is_candidate: bool, reference_mode: Any) -> Any:
        """One call."""
        if is_candidate:
            with guard.watched_forward(guard.HostGuard(pretend=True)):
                return guard.plain(model(*inputs))
        with torch.no_grad(), guard.HostGuard(pretend=False), reference_mode:
            return model(*inputs)

    def placed(self, values: list[Any]) -> list[Any]:
        """They are where they have to be."""
        return values

    def check_settled(self, output: Any) -> None:
        """There is one order of execution."""

    def fence(self, at_end: bool) -> Any:
        """The interpreter checks every access."""
        return None

    def memory_share(self) -> float:
        """The host's memory has limits of its own."""
        return 0.0

    def start_trace(self) -> None:
        """The interpreter sees every kernel anyway."""

    def stop_trace(self) -> list[tuple[str, int, int]]:
        """Nothing beyond what the interpreter saw."""
        return []

    def undo(self) -> None:
        """The interpreter's own patches."""
        interpreter._unpatch()
