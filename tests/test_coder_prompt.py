"""The Coder's prompts say what Keck enforces, and their examples are themselves in order."""

from __future__ import annotations

import ast

import pytest

from kernelzero.coder.examples import CUDA_EXAMPLE, EXAMPLE_MODULE, TRITON_EXAMPLE
from kernelzero.coder.extract import extract_kernel
from kernelzero.coder.prompt import coder_prompt
from kernelzero.proposer.parse import parse_module
from kernelzero.records import Backend, Task

TASK = Task("class Model:\n    price = '$9 and ${x}'\n")


@pytest.mark.parametrize("backend", Backend)
def test_full_prompt_is_complete(backend: Backend) -> None:
    system, user = coder_prompt(TASK, backend, "full", target="NVIDIA B300").messages
    assert system["role"] == "system"
    for needed in [
        "Tiling",
        "Fusion",
        "Pipelining",
        "Reordering",
        "NVIDIA B300",
        "cuBLAS",
        "torch.compile",
        "ModelNew",
    ]:
        assert needed in user["content"]
    assert TASK.source.strip() in user["content"]
    assert ("@triton.jit" in user["content"]) == (backend is Backend.TRITON)
    assert ("load_inline" in user["content"]) == (backend is Backend.CUDA)


def test_compact_prompt_is_the_source() -> None:
    assert coder_prompt(TASK, Backend.TRITON, "compact").messages == ({"role": "user", "content": TASK.source},)


@pytest.mark.parametrize("example", [TRITON_EXAMPLE, CUDA_EXAMPLE])
def test_examples_are_answers_that_would_count(example: str) -> None:
    ast.parse(example)
    assert extract_kernel(f"```python\n{example}```").code == example
    assert parse_module(f"```python\n{EXAMPLE_MODULE}```").code == EXAMPLE_MODULE
