"""What one evaluation may use."""

from __future__ import annotations

from dataclasses import dataclass

from kernelzero.records import Record


@dataclass(frozen=True)
class Limits(Record):
    """Bounds on one reference or candidate."""

    timeout_s: float = 10.0
    """Wall-clock seconds for loading and all calls together."""
    memory_mib: int = 4096
    """Memory that it may take beyond what a child starts with."""
    case_mib: int = 512
    """Memory for the stored inputs and outputs of one task; larger tasks get fewer distinct inputs."""

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return self.memory_mib << 20

    @property
    def cpu_s(self) -> int:
        """Processor seconds: a little more than the wall clock allows on one core."""
        return int(self.timeout_s * 2) + 10
