"""What counts as a benchmark task, exactly or nearly, and as the same text."""

from __future__ import annotations

import pytest

from kernelzero.bench import builtin_tasks
from kernelzero.coldstart.forms import text_form
from kernelzero.coldstart.nearness import Excluder, count_operators, grams, jaccard
from kernelzero.records import Task


def module(body: str, init: str = "pass", inputs: str = "x, y") -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"""import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {inputs}):
{lines}

def get_inputs():
    return [torch.randn(4, 8), torch.randn(4, 8)]

def get_init_inputs():
    return []
"""


CHAIN = module("h = F.gelu(x @ y)\nh = torch.softmax(h, dim=-1)\nreturn h.sum(1) + y.mean(1)")


def nearness(a: str, b: str) -> float:
    return jaccard(grams(a), grams(b))


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("benchmark", CHAIN),
        (
            "benchmark",
            CHAIN.replace("h =", "g =").replace("(h", "(g").replace("h.sum", "g.sum").replace("(4, 8)", "(128, 512)"),
        ),
        ("benchmark", CHAIN.replace("F.gelu(x @ y)", "nn.GELU()(torch.matmul(x, y))")),
        ("near", CHAIN.replace("h.sum(1) + y.mean(1)", "y.mean(1) + h.sum(1)")),
        ("near", CHAIN.replace("x @ y", "x @ y.transpose(0, 1).contiguous().T")),
        ("near", CHAIN.replace("y.mean(1)", "x.mean(1)")),
    ],
)
def test_a_task_and_its_neighbours_are_found(kind: str, other: str) -> None:
    match = Excluder([Task(CHAIN, name="chain")]).match(other)
    assert match is not None and (match.kind, match.name) == (kind, "chain")


@pytest.mark.parametrize(
    "other",
    [
        module("return F.gelu(x @ y)"),
        module("h = torch.softmax(x @ y, dim=-1)\nreturn h.sum(1) + y.mean(1)"),
        module("h = torch.softmax(F.gelu(x) @ y, dim=-1)\nreturn torch.exp(h.sum(1)) * y.mean(1)"),
        CHAIN.replace("return h.sum(1) + y.mean(1)", "return torch.tanh(h.sum(1) * y.mean(1)).exp()"),
    ],
)
def test_other_chains_of_the_same_family_are_not(other: str) -> None:
    assert Excluder([Task(CHAIN)]).match(other) is None


def test_a_long_task_with_one_operator_more_is_near() -> None:
    long = "h = torch.relu(x)\n" + "\n".join(f"h = torch.{f}(h)" for f in ("exp", "tanh", "sin", "cos", "abs", "erf"))
    task, more = module(long + "\nreturn h"), module(long + "\nreturn torch.sqrt(h)")
    assert 0.75 <= nearness(task, more) < 1
    found = Excluder([Task(task)]).match(more)
    assert found is not None and found.kind == "near"


def test_no_two_built_in_tasks_are_near_each_other() -> None:
    tasks = builtin_tasks()
    for index, task in enumerate(tasks):
        assert Excluder(tasks[:index]).match(task.source) is None, task.name


def test_operators_are_counted_without_views() -> None:
    assert count_operators(CHAIN) == 6
    assert count_operators(module("return x.view(-1).contiguous()")) == 0


def test_doubling_text_is_no_bomb() -> None:
    body = "h = (x, y)\n" + "h = torch.cat((h, h))\n" * 60 + "g = (h, h)\n" + "g = (g, g)\n" * 60 + "return g"
    assert count_operators(module(body)) == 60


@pytest.mark.parametrize("source", ["def (", "x = 1", "class Model: pass"])
def test_what_is_no_module_is_said(source: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        Excluder([]).match(source)


def test_forms_drop_names_and_comments_and_keep_numbers() -> None:
    renamed = CHAIN.replace("h =", "value =").replace("(h", "(value").replace("h.sum", "value.sum")
    assert text_form(renamed + "\n# a comment\n") == text_form(CHAIN)
    assert text_form(CHAIN.replace("(4, 8)", "(4, 16)")) != text_form(CHAIN)
    assert text_form(CHAIN.replace("gelu", "silu")) != text_form(CHAIN)


def test_forms_of_cuda_drop_comments_and_spaces_in_strings() -> None:
    cuda = 's = r"""\n__global__ void k(float* x) {\n  x[0] = 1; // one\n}"""\n'
    assert text_form(cuda) == text_form(cuda.replace("  x[0] = 1; // one", "    x[0] = 1; /* 1 */"))
    assert text_form(cuda) != text_form(cuda.replace("= 1", "= 2"))
