"""Samplers without a model: what rules alone reach, and a check of the harness by the reference itself.

`ReferenceSampler` answers with the task's own module, whose output goes through one kernel that copies it. That is
against the strict rules on purpose; under the policy "hybrid" it has to be found correct for every task that can be
judged, by every tolerance. What it is not is a kernel: its speed says what one more copy costs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from kernelzero.policy.base import Drawn, Progress, Style, tell_group
from kernelzero.records import Backend, Completion, Finish, Prompt, Sampling, Task

Write = Callable[[Task, int, Backend], str]
"""A task, the number of the sample and the backend to a kernel's source. Raises an exception that says why not."""


class WritingSampler:
    """A sampler that asks a function; its prompts hold the module's source and nothing else."""

    style: Style = "compact"

    def __init__(self, name: str, write: Write, backend: Backend) -> None:
        self.name = name
        self._write, self._backend = write, backend

    def sample(
        self,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        progress: Progress | None = None,
        drawn: Drawn | None = None,
    ) -> list[list[Completion]]:
        """`n` answers to every prompt, without counted tokens."""
        groups = [[self._answer(Task(p.messages[-1]["content"]), i) for i in range(n)] for p in prompts]
        for number, group in enumerate(groups):
            tell_group(drawn, number, group)
        return groups

    def close(self) -> None:
        """Nothing to give back."""

    def _answer(self, task: Task, number: int) -> Completion:
        try:
            text = f"```python\n{self._write(task, number, self._backend)}```\n"
        except Exception as error:  # a module that a writer cannot read is one without an answer, not the end of a run
            text = " ".join(f"No kernel: {error}".split())
        return Completion(text, 0, Finish.STOP)


def reference_sampler(backend: Backend) -> WritingSampler:
    """The check of the harness."""
    return WritingSampler("reference", lambda task, _, language: reference_as_candidate(task, language), backend)


def reference_as_candidate(task: Task, backend: Backend) -> str:
    """The module under the name `ModelNew`, whose output goes through a kernel that copies it.

    Raises:
        SyntaxError: the module's source does not parse.
    """
    module = _Renamed().visit(ast.parse(task.source))
    return f"{ast.unparse(module)}\n\n\n{_COPY[backend]}\n\n{_COPIED_TREE}"


class _Renamed(ast.NodeTransformer):
    """`Model` becomes `ModelNew`, its `forward` the part of a new one."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("ModelNew", node.ctx) if node.id == "Model" else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        if node.name == "Model":
            node.name = "ModelNew"
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "forward":
                    part.name = "_reference_forward"
            node.body += ast.parse(_FORWARD).body
        return node


_FORWARD = """\
def forward(self, *inputs, **named):
    return _copied_tree(self._reference_forward(*inputs, **named))
"""


_TRITON_COPY = """\
import torch
import triton
import triton.language as tl


@triton.jit
def _copy_kernel(source, target, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < n), mask=i < n)


def _copied(value):
    source = value.contiguous()
    target = torch.empty_like(source)
    n = source.numel()
    if n:
        _copy_kernel[(triton.cdiv(n, 1024),)](source, target, n, BLOCK=1024)
    return target
"""

_CUDA_COPY = '''\
import torch
from torch.utils.cpp_extension import load_inline

_copier = load_inline(
    name="reference_copy",
    cpp_sources="torch::Tensor copied(torch::Tensor source);",
    cuda_sources=r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

__global__ void copy_kernel(const char* source, char* target, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) target[i] = source[i];
}

torch::Tensor copied(torch::Tensor source) {
  auto target = torch::empty_like(source);
  long long n = source.numel() * source.element_size();
  if (n > 0) {
    copy_kernel<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        (const char*)source.data_ptr(), (char*)target.data_ptr(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return target;
}
""",
    functions=["copied"],
)


def _copied(value):
    return _copier.copied(value.contiguous())
'''

_COPIED_TREE = """\
def _copied_tree(value):
    if isinstance(value, torch.Tensor):
        return _copied(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_copied_tree(item) for item in value)
    return value
"""

_COPY = {Backend.TRITON: _TRITON_COPY, Backend.CUDA: _CUDA_COPY}
