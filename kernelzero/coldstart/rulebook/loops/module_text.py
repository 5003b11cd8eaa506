"""The text of a `ModelNew`: kernels, constructor, and a `forward` that launches one after another."""

from __future__ import annotations

import re

from kernelzero.coldstart.rulebook.graph import _init_lines
from kernelzero.coldstart.rulebook.loops import cuda_text, triton_text
from kernelzero.coldstart.rulebook.loops.explain import explain
from kernelzero.coldstart.rulebook.loops.expr import Buffer
from kernelzero.coldstart.rulebook.loops.read import read
from kernelzero.coldstart.rulebook.loops.triton_text import HELPERS, Written
from kernelzero.coldstart.rulebook.loops.value import Kernel, Program
from kernelzero.coldstart.rulebook.operators import CannotWrite


def write_triton(source: str, variant: int = 0) -> str:
    """A complete `ModelNew` for a trusted module.

    Raises:
        CannotWrite: something in it has no rule, or none in Triton.
    """
    program, model = read(source)
    try:
        kernels = [triton_text.write(k, name_of(k, n), variant) for n, k in enumerate(program.kernels)]
    except KeyError as error:
        raise CannotWrite(f"{error.args[0]} is not in Triton's rulebook") from None
    helpers = _helpers("\n".join(k.text for k in kernels))
    parts = ["import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"]
    parts += [*helpers, *(k.text for k in kernels)]
    parts.append("\n".join(["class ModelNew(nn.Module):", *_constructor(source, model), *_forward(program, kernels)]))
    return "\n\n".join(parts) + "\n"


def _helpers(kernels: str) -> list[str]:
    """Device functions that kernels call, and those that these call, which come before them in HELPERS."""
    needed: list[str] = []
    for name, text in reversed(HELPERS.items()):
        if re.search(rf"\b{name}\b", "\n".join([kernels, *needed])):
            needed.insert(0, text)
    return needed


def write_cuda(source: str, variant: int = 0) -> str:
    """The same in CUDA C++, by torch's load_inline.

    Raises:
        CannotWrite: something in it has no rule.
    """
    program, model = read(source)
    kernels = [cuda_text.write(k, _stem(k, n), variant) for n, k in enumerate(program.kernels)]
    declarations, device, functions = cuda_text.module_text(program, kernels)
    if '"""' in device or "\\" in device:
        raise CannotWrite("source that a raw string cannot hold")
    names = "[" + ", ".join(f'"{name}"' for name in functions) + "]"
    extension = f'extension = load_inline(\n    "rulebook", CPP_SOURCE, CUDA_SOURCE, {names},\n)\n'
    parts = ["import torch\nimport torch.nn as nn\nfrom torch.utils.cpp_extension import load_inline\n"]
    parts += [f'CPP_SOURCE = r"""\n{declarations}\n"""\n\nCUDA_SOURCE = r"""\n{device}"""\n\n{extension}']
    parts.append("\n".join(["class ModelNew(nn.Module):", *_constructor(source, model), *_calls(program, kernels)]))
    return "\n\n".join(parts) + "\n"


def reasons(source: str, backend: str) -> str:
    """Why the kernels are as they are. Raises CannotWrite."""
    return explain(read(source)[0], backend)


def name_of(kernel: Kernel, number: int) -> str:
    """A name by what the kernel computes."""
    return f"{_stem(kernel, number)}_kernel"


def _stem(kernel: Kernel, number: int) -> str:
    words = [w for w in kernel.operators if w not in ("reshape", "slice", "permute", "expand", "bias")] or ["move"]
    text = "_".join(words)[:40].strip("_")
    return f"fused_{text}" if number == 0 else f"fused_{text}_{number}"


def _calls(program: Program, kernels: list[cuda_text.Written]) -> list[str]:
    """`forward` for functions that return what they compute."""
    names, lines = _head(program, {name for k in kernels for name in k.buffers})
    for kernel, written in zip(program.kernels, kernels, strict=True):
        _see(names, program, kernel.out)
        given = ", ".join(names[name] for name in written.buffers)
        lines.append(f"        {kernel.out.name} = extension.{written.name}({given})")
    return [*lines, _return(program, names)]


def _head(program: Program, used: set[str]) -> tuple[dict[str, str], list[str]]:
    """How buffers are called inside of `forward`, and its first lines."""
    names = {buffer.name: buffer.name for buffer in program.inputs}
    names |= {buffer.name: access for buffer, access in program.parameters.items()}
    lines = [f"    def forward(self, {', '.join(b.name for b in program.inputs)}):"]
    return names, lines + [f"        {b.name} = {b.name}.contiguous()" for b in program.inputs if b.name in used]


def _see(names: dict[str, str], program: Program, out: Buffer) -> None:
    """What the output of a kernel is called, and its views."""
    names[out.name] = out.name
    for view, seen in program.views.items():
        if seen == out:
            names[view.name] = f"{out.name}.view{_shape(view.shape) if view.shape else '(())'}"


def _return(program: Program, names: dict[str, str]) -> str:
    outputs = ", ".join(names[b.name] for b in program.outputs)
    return f"        return {f'({outputs},)' if program.is_tuple and len(program.outputs) == 1 else outputs}"


def _constructor(source: str, model: object) -> list[str]:
    lines = _init_lines(source, model)
    return [*lines, ""] if lines else []


def _forward(program: Program, kernels: list[Written]) -> list[str]:
    names, lines = _head(program, {name for k in kernels for name in k.buffers})
    device = next((b.name for b in program.inputs), "")
    for kernel, written in zip(program.kernels, kernels, strict=True):
        out = kernel.out
        lines.append(
            f"        {out.name} = torch.empty({_shape(out.shape)}, device={device}.device, dtype=torch.{out.dtype})"
        )
        _see(names, program, out)
        given = [names[name] for name in written.buffers[:-1]] + [out.name, *written.arguments]
        lines.append(f"        {written.name}[{written.grid}]({', '.join(given)})")
    return [*lines, _return(program, names)]


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
