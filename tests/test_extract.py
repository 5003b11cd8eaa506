"""Extraction from raw answers: every shape of fence and of reasoning that models were seen to produce."""

from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelzero.coder.extract import extract_kernel
from kernelzero.policy.reasoning import strip_reasoning
from kernelzero.proposer.parse import parse_module
from kernelzero.records import Finish

KERNEL = """import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return run(x, {mark})
"""
MODULE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""


def kernel(mark: str = "1") -> str:
    return KERNEL.replace("{mark}", mark)


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}```"


A, B = kernel("'a'"), kernel("'b'")
BROKEN = "import torch\nclass ModelNew(nn.Module)\n    pass\n"


@pytest.mark.parametrize(
    "language", ["python", "py", "Python3", "triton", "cuda", "cpp", "c++", "", " python", "model.py"]
)
def test_one_fence(language: str) -> None:
    assert extract_kernel(f"Here it is:\n\n{fenced(A, language)}\n\nIt is fast.").code == A


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{fenced(A)}\nBetter:\n{fenced(B)}", B),
        (f"{fenced(A)}\nBroken:\n{fenced(BROKEN)}", A),
        (f"{fenced(BROKEN)}\nMended:\n{fenced(B)}", B),
        (f"{fenced(BROKEN, '')}\nMended:\n{fenced(B, '')}\nDone.", B),
        (f"{fenced(A)}\nUse:\n{fenced('model = ModelNew()' + chr(10))}", A),
        (f"{fenced(A)}\n```bash\npip install triton\n```", A),
        (f"```cpp\n__global__ void f() {{}}\n```\n{fenced(B)}", B),
        (f"```python\n{A}```python\n{B}```", B),
        (f"The call ```tl.load``` reads.\n{fenced(B)}\nAnd ```tl.store``` writes.", B),
        (f"~~~python\n{A}~~~\nText", A),
        (f"Text\n~~~python\n{A}~~~\n\n~~~python\n{B}~~~", B),
        (f"~~~\nimport os\n~~~\n\n~~~\n{B}~~~", B),
        (f"````python\n{A}````", A),
        (f"Code: ```python\n{A}```", A),
        (f"1. First\n\n   ```python\n{'   ' + A.replace(chr(10), chr(10) + '   ').rstrip()}\n   ```", A),
        (fenced(A).replace("\n", "\r\n"), A),
        (fenced(A) + "<|im_end|>", A),
        (f"```python\n{A}<|im_end|>\n", A),
    ],
)
def test_the_last_block_that_parses_and_defines(text: str, expected: str) -> None:
    assert extract_kernel(text).code == expected
    assert extract_kernel(text + "\n" if "im_end" not in text else text).code == expected


@pytest.mark.parametrize(
    "text",
    [
        f"```python {A}```",
        f"```{A}```",
        f"```python{A}```",
        f"{A}```",
        f"{A}```\nThis kernel is fast.",
        f"Here is the kernel:\n{A}```\n",
        f"```python\n{A}``",
        f"```python\n{A}``\nThis kernel is fast.",
        f"```python\n{A.rstrip()}```",
        f"```python\n{A.rstrip()}``\n",
        f"```python\n{A}``` That was it.",
        f"```python\n{A}",
        A,
        f"\n\n{A}\n\n",
    ],
)
def test_broken_fences(text: str) -> None:
    assert extract_kernel(text).code == A


def test_code_on_the_fence_line_is_kept_only_where_it_is_code() -> None:
    assert extract_kernel(f"```python title here\n{A}```").code == A
    assert extract_kernel(f"```{{python}}\n{A}```").code == A
    assert extract_kernel(f"```@decorate\n{A[A.index('class') :]}```").code.startswith("@decorate\n")  # type: ignore[union-attr]


@pytest.mark.parametrize("inner", ["```\n    y = f(x)\n    ```", "```python\n    class ModelNew: ...\n    ```", "```"])
def test_back_ticks_inside_the_program(inner: str) -> None:
    code = f'class ModelNew:\n    """Use it so:\n\n    {inner}\n    """\n\n    mark = 1\n'
    assert extract_kernel(f"Text\n{fenced(code)}\nMore text").code == code
    assert extract_kernel(f"```python\n{code}").code == code
    assert extract_kernel(code).code == code


def test_a_comment_with_back_ticks_does_not_end_the_block() -> None:
    code = f"# see ```f```\n{A}"
    assert extract_kernel(fenced(code)).code == code


@pytest.mark.parametrize(
    "text", [f"```python\n{A}", A, f"Text\n```python\n{A[:-20]}", "Let me thi", f"{fenced('x = 1')}\n```\n{A}"]
)
def test_cut_off_by_length(text: str) -> None:
    extraction = extract_kernel(text, Finish.LENGTH)
    assert extraction.code is None
    assert "truncated" in extraction.reason


def test_a_closed_fence_counts_although_the_answer_was_cut_off_behind_it() -> None:
    assert extract_kernel(f"{fenced(A)}\nThis kernel", Finish.LENGTH).code == A
    assert extract_kernel(f"{fenced(A)}\nBetter:\n```python\n{B}", Finish.LENGTH).code == A


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning", "THINK", "thought"])
def test_nothing_inside_reasoning_counts(tag: str) -> None:
    draft = f"<{tag}>Maybe\n{fenced(A)}\n</{tag}>"
    assert extract_kernel(f"{draft}\n{fenced(B)}").code == B
    assert extract_kernel(f"{fenced(B)}\n{draft}").code == B
    assert extract_kernel(f"{draft}\nI am done.").reason == "no code block"
    assert extract_kernel(f"{draft}{B}").code == B
    assert extract_kernel(draft.removeprefix(f"<{tag}>") + fenced(B)).code == B
    assert extract_kernel(draft.removeprefix(f"<{tag}>")).code is None


def test_reasoning_with_an_open_fence_and_a_nested_tag() -> None:
    assert extract_kernel(f"<think>\n```python\n{A}\n</think>\n{fenced(B)}").code == B
    assert extract_kernel(f"<think>a <think> b\n{fenced(A)}</think> c\n{fenced(A)}</think>\n{fenced(B)}").code == B
    assert extract_kernel(f"<think>a <think> b\n{fenced(A)}</think> c\n{fenced(A)}</think>\n").code is None


def test_reasoning_that_never_ends() -> None:
    text = f"<think>\n{fenced(A)}\n"
    assert extract_kernel(text).reason == "the answer never left its reasoning"
    assert extract_kernel(text, Finish.LENGTH).reason == "truncated inside its reasoning"
    assert extract_kernel(f"{fenced(B)}\n{text}").code == B


def test_tags_inside_the_program_are_its_own() -> None:
    code = f"# not <think> about it\ntext = '</think>'\n{A}"
    assert extract_kernel(fenced(code)).code == code


def test_channels() -> None:
    analysis = f"<|channel|>analysis<|message|>{fenced(A)}<|end|>"
    final = f"<|start|>assistant<|channel|>final<|message|>{fenced(B)}<|return|>"
    assert extract_kernel(analysis + final).code == B
    assert extract_kernel(analysis).reason == "the answer never left its reasoning"
    assert extract_kernel(f"analysis{fenced(A)}assistantfinal{fenced(B)}").code == B


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no code block: the answer is empty"),
        ("I cannot do that.", "no code block"),
        (fenced(BROKEN), "the code does not parse: line 2: expected ':'"),
        (fenced("class Other:\n    pass\n"), "no class ModelNew"),
        (fenced("ModelNew = make()\n"), "no class ModelNew"),
        (fenced("def ModelNew():\n    pass\n").replace("def ModelNew", "def model"), "no class ModelNew"),
        (fenced("class Outer:\n    class ModelNew:\n        pass\n"), "no class ModelNew"),
        (fenced("# class ModelNew\nx = 1\n"), "no class ModelNew"),
    ],
)
def test_reasons(text: str, reason: str) -> None:
    assert extract_kernel(text).reason == reason


def test_proposer_needs_all_three() -> None:
    assert parse_module(fenced(MODULE)).code == MODULE
    assert parse_module(fenced(MODULE.replace("def get_inputs", "def inputs"))).reason == "no function get_inputs"
    assert parse_module(f"{fenced(MODULE)}\n{fenced(A)}").code == MODULE
    assert parse_module("```python\n" + MODULE[:80], Finish.LENGTH).reason == "truncated"


def test_notes_say_what_was_left_out() -> None:
    notes = extract_kernel(f"<think>x</think>{fenced(A)}\n```python\n{B}").notes
    assert notes == ("the reasoning was left out", "the last of 2 blocks", "the fence was never closed")
    assert extract_kernel(fenced(A)).notes == ()


@pytest.mark.parametrize(
    "text", ["```" * 5000, "```\n" * 5000, "<think>" * 5000, "class ModelNew(" * 3000, fenced(A) * 300]
)
def test_hostile_answers_take_little_time(text: str) -> None:
    start = time.perf_counter()
    extract_kernel(text)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    "noise", ["x = " + "(" * 5000, "x = " + "-" * 20000 + "1", "x = '\udc80'", "x = 1\x00", "x = " + "a+" * 20000 + "a"]
)
def test_code_that_breaks_the_parser_is_a_reason(noise: str) -> None:
    extraction = extract_kernel(fenced(f"class ModelNew:\n    pass\n{noise}\n"))
    assert extraction.code or extraction.reason.startswith("the code does not parse")


PIECES = st.sampled_from(
    ["```", "``", "~~~", "```python", "\n", A, B, BROKEN, "<think>", "</think>", "text ", '"""', "  "]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join), st.sampled_from(Finish))
def test_whatever_comes_out_parses_and_defines(text: str, finish: Finish) -> None:
    extraction = extract_kernel(text, finish)
    if extraction.code is None:
        assert extraction.reason and "\n" not in extraction.reason
        return
    names = [node.name for node in ast.walk(ast.parse(extraction.code)) if isinstance(node, ast.ClassDef)]
    assert "ModelNew" in names
    assert "".join(extraction.code.split()) in "".join(strip_reasoning(text).text.split())
