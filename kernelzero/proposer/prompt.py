"""What the Proposer is told: the APIs to use, the form of a module, and what makes a module a usable task.

The full prompt shows a skeleton with placeholders that does not parse, never a finished module: small models copy a
finished example word for word. The compact style, for models trained by us, is the names of the APIs and nothing else.
"""

from __future__ import annotations

from string import Template

from kernelzero.policy.base import Style
from kernelzero.records import ApiSet, Prompt

_SYSTEM = "You are an expert in PyTorch. You design modules that are worth turning into fast GPU kernels."

SKELETON = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, <sizes>):
        super().__init__()
        <layers and parameters>

    def forward(self, <inputs>):
        <the computation>
        return <result>


def get_inputs():
    return [<one random float32 tensor for each input of forward>]


def get_init_inputs():
    return [<one value for each argument of Model.__init__>]
"""

_FULL = Template("""\
Write one runnable PyTorch module whose `forward` uses ALL of these APIs:

$apis

Someone else will have to rewrite the module as a kernel for an $target, and will be checked against it.

## Form
One fenced block that begins with ```python and holds a complete Python file of this shape, every <…> replaced by code:

$skeleton
`Model(*get_init_inputs())(*get_inputs())` has to run as it stands.

## What makes it count
- Every API above is really called, in the form in which it is named, and its result changes the output.
- The output depends on the values of every input, and is not constant, zero or a copy of an input.
- Deterministic: the same inputs give the same output. No dropout, no random numbers in `forward`.
- Finite: no NaN and no infinity, whatever torch.randn draws. Keep logarithms, roots, divisions and powers in their
  domain.
- float32 throughout; inputs come from torch.rand or torch.randn; the outputs are tensors of ordinary size (around 1).
- Large enough that the work outweighs the launch of a kernel (at least a million elements), small enough to run in
  well under a second with less than 1 GiB for all tensors together.
- No printing, files, network, threads, training or gradients.
- Beyond this be inventive: choose shapes, order and structure that suit just these APIs, and add a few other
  operators where they make the computation more natural.
""")


def proposer_prompt(api_set: ApiSet, style: Style = "full", target: str = "NVIDIA H200") -> Prompt:
    """The prompt that asks for a module using every API of the set."""
    if style == "compact":
        return Prompt(({"role": "user", "content": " ".join(api_set.apis)},))
    names = "\n".join(f"- {api}" for api in api_set.apis)
    text = _FULL.substitute(apis=names, target=target, skeleton=SKELETON)
    return Prompt(({"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}))
