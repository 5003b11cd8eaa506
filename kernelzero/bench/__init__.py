"""Benchmark: tasks in KernelBench's format, one-shot samples, verdicts by Keck, and the field's metrics."""

from __future__ import annotations

from kernelzero.bench.builtin import builtin_tasks, load_tasks, named_tasks

__all__ = ["builtin_tasks", "load_tasks", "named_tasks"]
