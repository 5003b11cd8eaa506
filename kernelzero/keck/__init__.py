"""Keck (Kernel Execution and Correctness checK): the only place where untrusted code runs."""

from __future__ import annotations

from kernelzero.keck.client import CPU_DEVICE, Keck, LocalKeck, limits_for, open_keck
from kernelzero.keck.limits import Limits

__all__ = ["CPU_DEVICE", "Keck", "Limits", "LocalKeck", "limits_for", "open_keck"]
