"""Language models as text generators behind one protocol, and how programs are read from their answers."""

from __future__ import annotations

from typing import Literal

from kernelzero.errors import UsageError
from kernelzero.policy.base import Progress, Sampler, Style
from kernelzero.policy.profile import nano_path, prompt_style

__all__ = ["Engine", "Progress", "Sampler", "Style", "nano_path", "open_sampler", "prompt_style"]

Engine = Literal["auto", "transformers", "vllm"]
"""What runs a local model. "auto": vLLM where it is installed and has a GPU, but not for the embedded models."""


def open_sampler(
    spec: str,
    *,
    engine: Engine = "transformers",
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int | None = None,
    static_cache: bool = False,
    gpu_memory_utilization: float = 0.9,
    api_key: str | None = None,
    concurrency: int = 8,
    retries: int = 4,
    timeout_s: float = 600.0,
    style: Style | None = None,
) -> Sampler:
    """The sampler that a text names.

    "http://host:8000/v1#model" is an endpoint, "nano:coder" and "nano:proposer" are the embedded models, anything else
    is a model folder, an adapter's folder or a hub id, which `engine` runs. Of the card vLLM takes the share
    `gpu_memory_utilization`. Options that do not concern that kind are ignored. Raises UsageError.
    """
    if spec.startswith(("http://", "https://")):
        from kernelzero.policy.endpoint import EndpointSampler

        base_url, _, model = spec.partition("#")
        if not model:
            raise UsageError(f"{spec}: say which model to ask for, as in {base_url}#model")
        limits = {"concurrency": concurrency, "retries": retries}
        return EndpointSampler(base_url, model, api_key, **limits, timeout_s=timeout_s, style=style or "full")
    source = str(nano_path(spec.removeprefix("nano:"))) if spec.startswith("nano:") else spec
    sampler: Sampler
    if _runs_vllm(engine, spec, device):
        from kernelzero.policy.vllm import VllmSampler

        share = gpu_memory_utilization
        sampler = VllmSampler(source, device, dtype, batch_size, style=style, gpu_memory_utilization=share)
    else:
        from kernelzero.policy.hf import TransformersSampler

        sampler = TransformersSampler(source, device, dtype, batch_size, style=style, static_cache=static_cache)
    sampler.name = spec
    return sampler


def _runs_vllm(engine: Engine, spec: str, device: str | None) -> bool:
    if engine != "auto" or spec.startswith("nano:"):
        return engine == "vllm"
    from kernelzero.policy.vllm import vllm_can_run

    return vllm_can_run(device)
