"""Why a program's kernels are as they are, after the four principles: tiling, fusion, pipelining, reordering."""

from __future__ import annotations

from kernelzero.coldstart.rulebook.loops.expr import walk
from kernelzero.coldstart.rulebook.loops.value import Elements, Kernel, Product, Program, Rows, size

_QUIET = ("reshape", "slice", "permute", "expand", "bias", "copy")


def explain(program: Program, backend: str) -> str:
    """A few sentences: what is one kernel and what is not, then each kernel's own."""
    kernels = program.kernels
    unit = "program" if backend == "triton" else "block"
    parts = []
    if len(kernels) > 1:
        parts.append(f"{len(kernels)} kernels, as each needs all of what the one before it stores.")
    for number, kernel in enumerate(kernels, 1):
        head = f"Kernel {number}, {_names(kernel)}. " if len(kernels) > 1 else ""
        sentences = (_tiling(kernel, unit), _fusion(kernel), _pipelining(kernel), _reordering(kernel))
        parts.append(head + " ".join(s for s in sentences if s))
    return " ".join(parts)


def _names(kernel: Kernel) -> str:
    return ", ".join(w for w in kernel.operators if w not in _QUIET) or "a copy"


def _tiling(kernel: Kernel, unit: str) -> str:
    core = kernel.core
    if isinstance(core, Elements):
        return f"Tiling: the {size(kernel.out.shape)} elements are independent and split among {unit}s."
    if isinstance(core, Rows):
        length = size([core.space[d] for d in core.inner])
        return f"Tiling: one row of {length} a {unit}, so that its folds need no other {unit}."
    if isinstance(core, Product):
        m, n, k = size(core.m), size(core.n), size(core.k)
        return f"Tiling: tiles of the {m} x {n} result, walking the inner dimension of {k} in steps."
    return f"Tiling: one row of {core.space[core.dim]} a {unit}, as a running fold goes through all of it."


def _fusion(kernel: Kernel) -> str:
    words = [w for w in kernel.operators if w != "copy"]
    if len(words) < 2:
        return ""
    return f"Fusion: {', '.join(words)} in one kernel, so that nothing between them goes through memory."


def _pipelining(kernel: Kernel) -> str:
    if isinstance(kernel.core, Product):
        return "Pipelining: the next step's tiles can be loaded while the last ones are multiplied."
    return ""


def _reordering(kernel: Kernel) -> str:
    core = kernel.core
    if isinstance(core, Rows):
        if any(stage.fold == "max" for stage in core.stages) and len(core.stages) > 1:
            return "Reordering: the row's maximum is taken out before exp, so that nothing overflows."
        if len(core.stages) > 1:
            return "Reordering: the mean comes first and squares are taken around it, which keeps their digits."
    if isinstance(core, Product) and "linear" in kernel.operators:
        return "Reordering: the weight is read transposed where it lies, without a copy."
    if isinstance(core, Elements) and _has_loop(kernel, core):
        return "Reordering: each sum stays in a register and is stored once."
    return ""


def _has_loop(kernel: Kernel, core: Elements) -> bool:
    from kernelzero.coldstart.rulebook.loops.expr import bounded

    index = tuple(bounded(f"c{d}", n) for d, n in enumerate(kernel.out.shape))
    return any(n.op == "fold" for n in walk(core.at(index)))
