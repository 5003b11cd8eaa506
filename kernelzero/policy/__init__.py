"""Language models as text generators behind one protocol, and how programs are read from their answers."""

from __future__ import annotations

from kernelzero.errors import UsageError
from kernelzero.policy.base import Progress, Sampler, Style
from kernelzero.policy.profile import nano_path, prompt_style

__all__ = ["Progress", "Sampler", "Style", "nano_path", "open_sampler", "prompt_style"]


def open_sampler(
    spec: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    batch_size: int | None = None,
    static_cache: bool = False,
    api_key: str | None = None,
    concurrency: int = 8,
    retries: int = 4,
    timeout_s: float = 600.0,
    style: Style | None = None,
) -> Sampler:
    """The sampler that a text names.

    "http://host:8000/v1#model" is an endpoint, "nano:coder" and "nano:proposer" are the embedded models, anything else
    is a model folder or a hub id. Options that do not concern that kind are ignored. Raises UsageError.
    """
    if spec.startswith(("http://", "https://")):
        from kernelzero.policy.endpoint import EndpointSampler

        base_url, _, model = spec.partition("#")
        if not model:
            raise UsageError(f"{spec}: say which model to ask for, as in {base_url}#model")
        limits = {"concurrency": concurrency, "retries": retries}
        return EndpointSampler(base_url, model, api_key, **limits, timeout_s=timeout_s, style=style or "full")
    from kernelzero.policy.hf import TransformersSampler

    source = str(nano_path(spec.removeprefix("nano:"))) if spec.startswith("nano:") else spec
    sampler = TransformersSampler(source, device, dtype, batch_size, style=style, static_cache=static_cache)
    sampler.name = spec
    return sampler
