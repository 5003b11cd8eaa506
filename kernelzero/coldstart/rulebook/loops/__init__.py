"""The larger half of the rulebook: modules of any number of kernels, from expressions of what each element is.

    module → its calls (read) → rules (rules_*) → values (value) → kernels (schedule) → text (triton_text, cuda_text)

A rule says what one element of a call's result is; where that needs a row, a product or a running fold, it names the
core of a kernel. The schedule decides what is fused. Languages print the same kernels.
"""

from kernelzero.coldstart.rulebook.loops.module_text import reasons, write_cuda, write_triton

__all__ = ["reasons", "write_cuda", "write_triton"]
