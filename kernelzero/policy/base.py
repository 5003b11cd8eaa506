"""The one seam between KernelZero and language models: text in, text out.

Everything that writes modules or kernels is a `Sampler`: local weights, an endpoint, a fake. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

from kernelzero.records import Completion, Prompt, Sampling

Style = Literal["full", "compact"]
"""How a model wants its prompts: "full" instructions, or "compact", only the input, for models trained on that."""

Progress = Callable[[int, int], None]
"""Called with (completions done, completions asked for)."""

Drawn = Callable[[int, int, Completion], None]
"""Called with a prompt's number, the sample's number and the completion, as soon as it is there, from any thread."""


def tell_group(drawn: Drawn | None, prompt: int, group: Sequence[Completion]) -> None:
    """Tell of all completions of one prompt."""
    for number, completion in enumerate(group if drawn else ()):
        assert drawn is not None
        drawn(prompt, number, completion)


@runtime_checkable
class Sampler(Protocol):
    """Draws completions from one model."""

    name: str
    """Where the model comes from; written into run folders."""
    style: Style
    """The prompts this model expects."""

    def sample(
        self,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        progress: Progress | None = None,
        drawn: Drawn | None = None,
    ) -> list[list[Completion]]:
        """`n` completions of every prompt, in the order of `prompts`; `drawn` hears of each as soon as it is there.

        The same call with the same `sampling.seed` on the same machine gives the same completions wherever the model
        is ours to seed. Raises InfrastructureError where the model cannot be reached.
        """
        ...

    def close(self) -> None:
        """Give memory and connections back; the sampler is not used afterwards."""
        ...
