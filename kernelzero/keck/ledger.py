"""What was observed of a child while it ran: sticky, so that code which swallows an exception hides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernelzero.keck.cost import Meter


class Violation(BaseException):
    """A rule was broken. Not an Exception, so that `except Exception` does not swallow it."""


class Unsupported(BaseException):
    """This device cannot judge what the candidate does."""


class KernelFault(Exception):
    """A kernel did something that is wrong on every device, such as an access outside its tensors."""


class CompileFault(Exception):
    """A kernel does not compile."""


@dataclass
class Ledger:
    """Observations of one child; the first of each kind is the one that is reported."""

    violations: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    compile_faults: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)
    random: list[str] = field(default_factory=list)
    """Operators of a reference that drew from the generator."""
    in_forward: bool = False
    full_precision: bool = False
    """Whether the task is float32 or wider throughout, so that narrower arithmetic breaks a rule."""
    scalars_read: int = 0
    """Values that the host read out of small tensors in this call."""
    kernel_launches: int = 0
    """Launches of the candidate's own kernels in this call."""
    hybrid: bool = False
    """Whether PyTorch may compute beside the candidate's kernels."""
    protected: frozenset[int] = frozenset()
    """Storages of inputs and weights, which stay when kernels leave zeros."""
    blank: bool = False
    """Whether kernels leave zeros in this call, to see whether they matter."""
    candidate: bool = False
    """Whether this process runs a candidate and not a reference."""
    forms: set[Any] = field(default_factory=set)
    """Compiled forms of kernels that were looked at."""
    own_names: set[str] = field(default_factory=set)
    """On a GPU: what the compiler called the kernels that the candidate launched."""
    fence: Callable[[Any], Any] | None = None
    """On a GPU, in some calls: puts what forward allocates where leaving it is a fault."""
    turn_due: Callable[[], None] | None = None
    """Has the judge take the GPU; asked before the first kernel of a call that starts without it."""
    turn_taken: bool = False
    addresses: list[Any] = field(default_factory=list)
    """Tensors whose address the host asked for in this call: device code that is launched bare is given numbers."""
    capturing: list[Any] | None = None
    """Tensors given to kernels while a CUDA graph is captured; None where none is."""
    torch_kernels: int = 0
    """On a GPU: allowed operators and fills of this call, each of which may launch a kernel of PyTorch's."""

    def take_turn(self, again: bool = False) -> None:
        """Wait for the GPU where this call has to: once, and `again` to start the clock of what runs anew."""
        if self.turn_due is not None and (again or not self.turn_taken):
            self.turn_taken = True
            self.turn_due()

    def violate(self, reason: str) -> Violation:
        """Record a broken rule and give the exception to raise."""
        self.violations.append(reason)
        return Violation(reason)

    def cannot(self, reason: str) -> Unsupported:
        """Record that this device cannot judge the candidate and give the exception to raise."""
        self.unsupported.append(reason)
        return Unsupported(reason)

    def narrowed(self, what: str) -> None:
        """Record a cast to fewer than 32 bits; a broken rule inside a float32 task."""
        if self.full_precision:
            raise self.violate(f"reduced precision inside a float32 task: {what}")

    def fault(self, reason: str) -> KernelFault:
        """Record a fault inside a kernel and give the exception to raise."""
        self.faults.append(reason)
        return KernelFault(reason)

    def compile_fault(self, reason: str) -> CompileFault:
        """Record a kernel that does not compile and give the exception to raise."""
        self.compile_faults.append(reason)
        return CompileFault(reason)

    def finding(self) -> tuple[str, str] | None:
        """(status, reason) of the gravest observation, None where there is none."""
        for status, reasons in (
            ("rejected", self.violations),
            ("unsupported", self.unsupported),
            ("compile_error", self.compile_faults),
            ("runtime_error", self.faults),
        ):
            if reasons:
                return status, reasons[0]
        return None


ACTIVE = Ledger()
"""The ledger of this process. A child runs exactly one module, so one is enough."""
