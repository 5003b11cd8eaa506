"""What a judge needs to know of the device that it judges on, and where a correct candidate's time comes from."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Protocol

from kernelzero.keck import wire
from kernelzero.keck.client import CPU_DEVICE
from kernelzero.keck.onboard import Reference
from kernelzero.keck.zygote import ChildHandle
from kernelzero.records import Basis, Timing


class Machine(Protocol):
    """One device, as seen by a judge."""

    device: str
    """What verdicts call it."""
    on_gpu: bool
    cache_bytes: int
    """Size of its L2 cache; 0 where times are modelled."""
    seconds: dict[str, float]
    """Of all work so far: "wait" for others in order to compute beside them, "wait_alone" until they are done, and
    "alone" without them."""

    @property
    def builder(self) -> Any:
        """Builds CUDA extensions; None where they do not run."""
        ...

    def connect(self, sock: socket.socket) -> wire.Channel:
        """The judge's end of a connection to a child."""
        ...

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Context in which outputs are computed beside other judges' work."""
        ...

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Context in which nobody else's work is under way."""
        ...

    def wait_for_memory(self) -> None:
        """Return when there is room again after somebody took too much."""
        ...

    def give_back_memory(self) -> None:
        """Let others have memory that this process holds for nothing."""
        ...

    def time(
        self,
        reference: Reference,
        at_reference: ChildHandle | None,
        at_candidate: ChildHandle,
        work_ms: float,
        own: frozenset[str] | None = frozenset(),
        libraries: bool = False,
    ) -> Timing:
        """Times of reference and candidate.

        Args:
            reference: the task.
            at_reference: a living child that has it loaded, on a GPU.
            at_candidate: the candidate's child.
            work_ms: the candidate's modelled milliseconds, on a CPU.
            own: names of the candidate's kernels that its compiler told the judge; None: any kernel may run, where a
                reference is timed for a test.
            libraries: whether kernels of PyTorch and its libraries may run beside them.

        Raises:
            Untimeable: the candidate cannot be timed honestly.
        """
        ...


class Untimeable(Exception):
    """A correct candidate broke a rule while it was timed; `kind` is the status of the verdict."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class CpuMachine:
    """Triton's interpreter: time is modelled from bytes, operations and launches."""

    device = CPU_DEVICE
    on_gpu = False
    cache_bytes = 0
    builder = None

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def connect(self, sock: socket.socket) -> wire.Channel:
        """Tensors travel as bytes."""
        return wire.Channel(sock)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Judges do not disturb one another here."""
        yield

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Nor do they here."""
        return self.shared()

    def wait_for_memory(self) -> None:
        """Each child has its own limit here."""

    def give_back_memory(self) -> None:
        """The system sees to it."""

    def time(
        self,
        reference: Reference,
        at_reference: ChildHandle | None,
        at_candidate: ChildHandle,
        work_ms: float,
        own: frozenset[str] | None = frozenset(),
        libraries: bool = False,
    ) -> Timing:
        """The ratio of the modelled times; there is no interval."""
        ratio = reference.work_ms / work_ms
        return Timing(Basis.MODELLED, reference.work_ms, work_ms, ratio, ratio, ratio)


def open_machine(device: str) -> Machine:
    """The machine of a judge, after its zygote was forked: from here on a GPU is in use."""
    if device == "cpu":
        return CpuMachine()
    from kernelzero.keck.gpu.timing import GpuMachine

    return GpuMachine()
