"""The built-in tasks are sound, and the normal form tells tasks apart the way training sets need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelzero.bench import builtin_tasks, load_tasks
from kernelzero.errors import UsageError
from kernelzero.normalise import dataflow, is_held_out, normalised
from kernelzero.records import Task

TASKS = builtin_tasks()
HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def module(forward: str, init: str = "pass", arguments: str = "x") -> str:
    return (
        f"{HEADER}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, {arguments}):\n        {forward}\n"
        "def get_inputs():\n    return [torch.randn(4, 8)]\ndef get_init_inputs():\n    return []\n"
    )


def run(task: Task, seed: int, replaced: int | None = None):
    import torch

    scope: dict = {}
    exec(compile(task.source, task.name, "exec"), scope)
    torch.manual_seed(0)
    model = scope["Model"](*scope["get_init_inputs"]())
    torch.manual_seed(seed)
    inputs = scope["get_inputs"]()
    if replaced is not None:
        inputs[replaced] = torch.randn_like(inputs[replaced])
    with torch.no_grad():
        return model(*inputs), inputs


def test_names_and_sources_are_distinct():
    assert len(TASKS) >= 32
    names = [task.name for task in TASKS]
    assert names == sorted(names) and len(set(names)) == len(names)
    assert len({normalised(task.source) for task in TASKS}) == len(TASKS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_no_null_candidate_passes_and_every_input_counts(task: Task):
    import torch

    def passes(guess, truth):
        return guess.shape == truth.shape and torch.allclose(guess, truth, atol=1e-2, rtol=1e-2)

    for seed in (1, 2, 3):
        truth, inputs = run(task, seed)
        assert truth.dtype is torch.float32 and truth.isfinite().all() and truth.numel() > 1
        nulls = [torch.zeros_like(truth), torch.ones_like(truth), truth.mean().expand_as(truth), run(task, seed + 9)[0]]
        nulls += [truth.mean(-1, keepdim=True).expand_as(truth)] if truth.dim() > 1 else []
        assert not any(passes(null, truth) for null in [*nulls, *inputs])
        for index in range(len(inputs)):
            assert not passes(run(task, seed, replaced=index)[0], truth)


@pytest.mark.parametrize("name", ["single_softmax", "chain_softplus_tanh_mul", "chain_add_gelu_clamp"])
def test_known_tasks_are_there(name: str):
    assert name in {task.name for task in TASKS}


SAME = [
    module("return torch.relu(x)"),
    module("return F.relu(x)  # a comment"),
    module("y = nn.ReLU()(x)\n        return y"),
    module("return self.act(inp)", "self.act = nn.ReLU()", "inp"),
    module('"""Docs."""\n        h = x.relu()\n        return h'),
    module("return self.net(x)", "self.net = nn.Sequential(nn.ReLU())"),
    module("x.relu_()\n        return x").replace("4, 8", "64, 128"),
]


def test_spelling_names_and_shapes_do_not_matter():
    assert {normalised(source) for source in SAME} == {"output(relu(x0));inputs=1"}


DIFFERENT = [
    module("return torch.relu(x)"),
    module("return torch.relu(torch.relu(x))"),
    module("return F.gelu(x)"),
    module("return torch.sub(x, y)", arguments="x, y"),
    module("return torch.sub(y, x)", arguments="x, y"),
    module("return x + self.w", "self.w = nn.Parameter(torch.ones(8))"),
    module("return x + 1"),
    module("for _ in range(3):\n            x = torch.relu(x)\n        return x"),
    module("return torch.relu(x), torch.gelu(x)"),
]


def test_operators_and_structure_matter():
    forms = [normalised(source) for source in DIFFERENT]
    assert len(set(forms)) == len(forms), forms


def test_held_out():
    assert is_held_out(module("return nn.Softmax(dim=1)(x)"), TASKS)
    assert not is_held_out(module("return torch.softmax(torch.exp(x), 1)"), TASKS)
    assert all(is_held_out(task.source, TASKS) for task in TASKS)


def test_dataflow_of_helpers_tuples_and_shared_parts():
    source = module("a, b = x.chunk(2)\n        return self.mix(a, b)")
    source = source.replace("    def forward", "    def mix(self, p, q):\n        return p * q\n    def forward")
    assert normalised(source) == "output(mul(getitem(chunk(x0)),getitem(chunk(x0))));inputs=1"
    assert [node.op for node in dataflow(source).nodes] == ["input", "chunk", "getitem", "getitem", "mul", "output"]


def test_deep_sharing_stays_small():
    source = module("\n        ".join(["x = x * x"] * 200) + "\n        return x")
    assert len(normalised(source)) < 5000


def test_sources_that_are_no_module():
    with pytest.raises(SyntaxError):
        normalised("class Model(:")
    with pytest.raises(ValueError, match="no class Model"):
        normalised("x = 1")


def test_load_tasks_in_natural_order(tmp_path: Path):
    for number in (10, 9, 100):
        (tmp_path / "level1").mkdir(exist_ok=True)
        (tmp_path / "level1" / f"{number}_op.py").write_text(module("return x"))
    (tmp_path / "__init__.py").write_text("")
    assert [t.name for t in load_tasks(tmp_path)] == ["level1/9_op", "level1/10_op", "level1/100_op"]


def test_load_tasks_says_what_is_wrong(tmp_path: Path):
    with pytest.raises(UsageError, match="no such folder"):
        load_tasks(tmp_path / "none")
    with pytest.raises(UsageError, match="no task"):
        load_tasks(tmp_path)
    (tmp_path / "a.py").write_text("class Model: pass")
    with pytest.raises(UsageError, match="get_inputs, get_init_inputs"):
        load_tasks(tmp_path)
    (tmp_path / "a.py").write_text("class Model(")
    with pytest.raises(UsageError, match="no Python module"):
        load_tasks(tmp_path)
