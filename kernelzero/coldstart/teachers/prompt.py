"""What a teaching model is told: the Coder's own prompt, one principle to follow, and reasoning before the code."""

from __future__ import annotations

from kernelzero.coder.prompt import coder_prompt
from kernelzero.coldstart.teachers.base import Assignment, Principle
from kernelzero.records import Prompt

_ADVICE = {
    Principle.TILING: "Cut the work into blocks that fit into registers and shared memory. Say which block sizes you\n"
    "choose, how much data each block holds, and how often each loaded value is used before it is dropped.",
    Principle.FUSION: "Do the whole chain of operations in as few kernels as you can. Say which intermediate results\n"
    "stay in registers, and where a kernel has to end because the next one needs all of its results.",
    Principle.PIPELINING: "Overlap loads with arithmetic: stages, prefetching, asynchronous copies, several\n"
    "elements a thread in flight. Say what is in flight at the same time and why that hides the latency of memory.",
    Principle.REORDERING: "Choose the order of loops, blocks and accesses. Say how neighbouring threads come to touch\n"
    "neighbouring addresses, what blocks that run together share, and how reductions need one pass only.",
}

_TEXT = """

## How to answer
This answer is a lesson for somebody who learns to write kernels. Its principle is **{principle}**.
{advice}
Where the principle does not help this module, say so in a sentence and write the simplest fast kernel.

Begin with the reasoning, in plain sentences, at most a page: what the module computes and with which shapes, what
limits its speed on an {gpu}, how you apply the principle, how the bounds are guarded. Show no code in the reasoning.
Then give the one fenced block with the complete file, and nothing after it.
"""


def teacher_prompt(assignment: Assignment) -> Prompt:
    """The prompt for one assignment; equal assignments, equal prompts."""
    asked = coder_prompt(assignment.task, assignment.backend, "full", assignment.gpu)
    *before, last = asked.messages
    advice = _ADVICE[assignment.principle]
    added = _TEXT.format(principle=assignment.principle.value, advice=advice, gpu=assignment.gpu)
    return Prompt((*before, {**last, "content": last["content"].rstrip("\n") + added}))
