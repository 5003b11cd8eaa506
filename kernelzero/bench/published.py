"""Figures that others published, with where they stand, what judged them, and why they may not be comparable.

One record a system, language and level. A figure is here only if its source was read; what a paper's figures show and
its text does not say is left out. No harness below is the one of this repository: compare with care.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from kernelzero.records import Backend


@dataclasses.dataclass(frozen=True)
class Published:
    """What one source says about one system on one level of KernelBench."""

    system: str
    backend: Backend
    level: int
    figures: dict[str, float]
    """Name of the metric, as "pass@1" or "fast_1@1", to a share between 0 and 1."""
    source: str
    harness: str
    caveat: str


_KERNELZERO = "Ke et al., KernelZero, arXiv 2609.33074 (2026)"
_KERNELZERO_HARNESS = "the paper's Keck: atol = rtol = 1e-2, one shot"
_KERNELZERO_CAVEAT = "The number of samples is not stated in what was read; 10 fits the figures"

_KERNELLM = "KernelLLM, model card of facebook/KernelLLM (2025)"
_KERNELLM_HARNESS = "KernelBench-Triton, the authors' variant of KernelBench, on H100"
_KERNELLM_CAVEAT = "Temperature 1.0, top-p 0.97 for KernelLLM; best checkpoint's validation results"
_OTHERS_CAVEAT = "Measured by the authors of KernelLLM; sampling not stated"
_DR_KERNEL = "Liu et al., Dr. Kernel, arXiv 2602.05885 (2026)"
_DR_KERNEL_HARNESS = "KernelGYM: correctness with a check for cheating, against the Torch reference"
_DR_KERNEL_CAVEAT = (
    "A subset of Level 2, at least 1.2 times as fast; the number of turns is not stated in what was read"
)


def _kernelzero(backend: Backend, level: int, caveat: str = "", **figures: float) -> Published:
    return Published(
        "KernelZero-7B", backend, level, _named(figures), _KERNELZERO, _KERNELZERO_HARNESS, _KERNELZERO_CAVEAT + caveat
    )


def _kernelllm(system: str, caveat: str = _OTHERS_CAVEAT, **figures: float) -> Published:
    return Published(system, Backend.TRITON, 1, _named(figures), _KERNELLM, _KERNELLM_HARNESS, caveat)


def _dr_kernel(system: str, fast_12: float) -> Published:
    figures = {"fast_1.2@1": fast_12}
    return Published(system, Backend.TRITON, 2, figures, _DR_KERNEL, _DR_KERNEL_HARNESS, _DR_KERNEL_CAVEAT)


def _named(figures: dict[str, float]) -> dict[str, float]:
    """pass_10=1.0 → {"pass@10": 1.0}; fast_1=0.4 → {"fast_1@1": 0.4}."""
    return {f"pass@{k[5:]}" if k.startswith("pass_") else f"{k}@1": value for k, value in figures.items()}


PUBLISHED: tuple[Published, ...] = (
    _kernelzero(
        Backend.CUDA, 1, "; fast_1@1 was read in an account of the paper", pass_1=0.758, pass_10=1.0, fast_1=0.176
    ),
    _kernelzero(Backend.CUDA, 2, pass_1=0.696, pass_10=0.97),
    _kernelzero(
        Backend.TRITON,
        1,
        "; pass@10 and fast_1@1 were read in an account of the paper",
        pass_1=0.772,
        pass_10=0.99,
        fast_1=0.439,
    ),
    _kernelzero(Backend.TRITON, 2, "; the pass@10 was read in an account of the paper", pass_1=0.725, pass_10=0.98),
    _kernelllm("KernelLLM-8B", _KERNELLM_CAVEAT, pass_1=0.202, pass_10=0.518, pass_20=0.571),
    _kernelllm("DeepSeek V3 (671B)", pass_1=0.16),
    _kernelllm("DeepSeek R1 (671B)", pass_1=0.30),
    _kernelllm("GPT-4o", pass_1=0.15),
    _kernelllm("Qwen2.5-32B", pass_1=0.15),
    _kernelllm("Llama 3.3-70B", pass_1=0.13),
    _kernelllm("Llama 3.1-8B", pass_1=0.06, pass_20=0.14),
    _dr_kernel("Dr. Kernel-14B", 0.316),
    _dr_kernel("Claude-4.5-Sonnet", 0.267),
    _dr_kernel("GPT-5", 0.286),
)


def published_for(backend: str | None, groups: Iterable[str]) -> list[Published]:
    """The figures for one language and the groups ("level 1", …) of a run."""
    wanted = set(groups)
    return [p for p in PUBLISHED if p.backend.value == backend and f"level {p.level}" in wanted]
