"""What the Coder is told: the module, the GPU, four principles of fast kernels, the rules, the form of the answer.

Two styles: "full" for general models, "compact" for models trained by us, which see the module's source and nothing
else. The rules say what Keck enforces; enforcing them is not this file's task.
"""

from __future__ import annotations

from string import Template

from kernelzero.coder.examples import CUDA_EXAMPLE, EXAMPLE_MODULE, TRITON_EXAMPLE
from kernelzero.policy.base import Style
from kernelzero.records import Backend, Prompt, Task

PRINCIPLES = """\
- Tiling: cut the work into blocks that fit into registers and shared memory, and use every value you load from global
  memory as often as you can before you drop it.
- Fusion: do the whole chain of operations in as few kernels as possible; intermediate results stay in registers.
- Pipelining: load the next tile while the current one is being computed, so that memory and arithmetic overlap.
- Reordering: choose the order of loops, blocks and accesses so that neighbouring threads touch neighbouring addresses,
  blocks that run together share data in the L2 cache, and reductions need one pass instead of several."""

_SYSTEM = "You are an expert in GPU programming. You write kernels that are correct first and fast second."

_FULL = Template("""\
Write a class `ModelNew` that computes exactly what the PyTorch module `Model` below computes, with your own kernels in
$language for an $target.

## How to make it fast
$principles

## Rules
- All arithmetic happens in your kernels. In `forward`, PyTorch may allocate tensors, make views, copy and launch your
  kernels; it must not compute: no torch.* or torch.nn.functional operators, no calls of nn modules, no `@`, `+`, `*` or
  other operators on tensors.
- No vendor libraries (cuBLAS, cuDNN, CUTLASS), no torch.compile, no CUDA graphs of PyTorch operators.
- No fallback: no path, exception handler or condition that leads back to PyTorch's operators or to `Model`.
- Nothing is remembered between calls that depends on input values; every call computes its result anew.
- No reduced precision: inputs, accumulation and outputs have the reference's precision or more.
- The result has the reference's shape, dtype and structure for any input values, also large ones, and the kernels guard
  their bounds. Inputs may be non-contiguous; they must not be changed.
- `ModelNew.__init__` takes the same arguments as `Model.__init__` and creates parameters and buffers under the same
  names and with the same shapes, so that the weights of `Model` can be loaded. An nn.Linear or nn.Conv2d may be kept
  for its weights, but it must not be called.

## Form of the answer
One fenced block that begins with ```python and holds a complete Python file with all imports and the class `ModelNew`.
$form
No tests, no main program, no second block.

## A small example of the form
For this module

```python
$example_module```

an answer would be

```python
$example_answer```

## The module to translate
```python
$source
```
""")

_LANGUAGES = {Backend.TRITON: "Triton", Backend.CUDA: "CUDA C++"}
_FORMS = {
    Backend.TRITON: "The kernels are Triton functions decorated with @triton.jit and launched from `forward`.",
    Backend.CUDA: "The kernels are CUDA C++ in a string, built once when the file is imported with\n"
    "torch.utils.cpp_extension.load_inline (cpp_sources declare, cuda_sources define, functions name the\n"
    "exports; write no PYBIND11_MODULE of your own). Check every launch with C10_CUDA_KERNEL_LAUNCH_CHECK().",
}
_EXAMPLES = {Backend.TRITON: TRITON_EXAMPLE, Backend.CUDA: CUDA_EXAMPLE}


def coder_prompt(
    task: Task, backend: Backend = Backend.TRITON, style: Style = "full", target: str = "NVIDIA H200"
) -> Prompt:
    """The prompt that asks for a kernel for `task` on the GPU `target`; a compact one names no GPU and no backend."""
    if style == "compact":
        return Prompt(({"role": "user", "content": task.source},))
    text = _FULL.substitute(
        language=_LANGUAGES[backend],
        target=target,
        principles=PRINCIPLES,
        form=_FORMS[backend],
        example_module=EXAMPLE_MODULE,
        example_answer=_EXAMPLES[backend],
        source=task.source.rstrip("\n"),
    )
    return Prompt(({"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}))
