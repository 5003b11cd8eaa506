"""The rulebook teacher: right where it writes, honest where it cannot."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys

import pytest

from kernelzero.coldstart.rulebook import VARIANTS, CannotWrite, reasoning, write_kernel
from kernelzero.coldstart.rulebook.prove import random_sets
from kernelzero.proposer.composer import CannotCompose, compose
from kernelzero.records import Backend, Task

_PROVE = """
import json, os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch
torch.set_num_threads(1)
from pathlib import Path
from kernelzero.coldstart.rulebook import VARIANTS, CannotWrite, reasoning, write_kernel
from kernelzero.coldstart.rulebook.prove import fault, prove
from kernelzero.records import Backend, Task
report = prove(40, seed=77)
extra = {}
for name, source in json.load(sys.stdin).items():
    for variant in (0, 1):
        task = Task(source)
        extra[f"{name} {variant}"] = fault(task, write_kernel(task, variant=variant), Path(sys.argv[1]))
json.dump({"report": report, "extra": extra}, sys.stdout)
"""

_COMPILE = """
import importlib.util, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
kernel = module.fused_kernel
signature = {n: "*fp32" if n.endswith("_ptr") else "constexpr" if n == "BLOCK" else "i32" for n in kernel.arg_names}
source = ASTSource(fn=kernel, signature=signature, constexprs={"BLOCK": 64})
print(len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]))
"""


def _task(*lines: str, arguments: str = "x", inputs: str = "torch.randn(6, 20)", init: str = "") -> Task:
    body = "\n".join(f"        {line}" for line in lines)
    setup = f"    def __init__(self):\n        super().__init__()\n        {init}\n\n" if init else ""
    return Task(
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
        f"class Model(nn.Module):\n{setup}    def forward(self, {arguments}):\n{body}\n        return x\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n"
    )


_LINEAR = "self.linear = nn.Linear(20, 24)"
_RIGHT = {
    "methods": _task("x = (x * 2.0).softmax(-1)"),
    "three dimensions": _task("x = F.softmax(torch.relu(x), dim=-1)", inputs="torch.randn(2, 3, 20)"),
    "rows input": _task("x = torch.tanh(x) * y", arguments="x, y", inputs="torch.randn(6, 20), torch.randn(6, 1)"),
    "strided input": _task("x = torch.amax(x, dim=1)", inputs="torch.randn(20, 6).t()"),
    "residual around a product": _task("x = x + F.linear(x, w)", arguments="x, w",
                                       inputs="torch.randn(6, 20), torch.randn(20, 20)"),
    "gate from a product": _task("x = x * torch.sum(self.linear(x), dim=1, keepdim=True)", init=_LINEAR),
    "work on the second operand first": _task("y = torch.abs(y) + 1.0", "x = self.linear(torch.tanh(x)) / y",
                                              arguments="x, y", init=_LINEAR,
                                              inputs="torch.randn(6, 20), torch.randn(6, 24)"),
    "unused value": _task("y = torch.relu(x)", "x = torch.exp(-torch.abs(x))"),
    "wide product": _task("x = torch.relu(x @ w)", arguments="x, w",
                          inputs="torch.randn(6, 300), torch.randn(300, 40)"),
    "reduced, then pointwise": _task("x = torch.sqrt(torch.var(x, dim=1, unbiased=False) + 1.0)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    """One interpreter process for all: Triton has to be imported with TRITON_INTERPRET set."""
    given = json.dumps({name: task.source for name, task in _RIGHT.items()})
    folder = tmp_path_factory.mktemp("kernels")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROVE, str(folder)], input=given, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_composed_modules_get_right_kernels(proof):
    counts = proof["report"]["counts"]
    assert counts.get("wrong", 0) == 0, proof["report"]["messages"]
    assert counts["right"] >= 36


@pytest.mark.parametrize("variant", range(VARIANTS))
@pytest.mark.parametrize("name", _RIGHT)
def test_forms_that_the_composer_does_not_write(proof, name, variant):
    assert proof["extra"][f"{name} {variant}"] == ""


def test_real_front_end_compiles(tmp_path):
    pytest.importorskip("triton")
    path = tmp_path / "kernel.py"
    path.write_text(write_kernel(_task("x = F.gelu(x)", "x = torch.log_softmax(x, dim=1)"), variant=0))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", _COMPILE, str(path)], capture_output=True, text=True,
                         env=environment)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 1000


@pytest.mark.parametrize(
    "task, named",
    [
        (_task("x = torch.fft.fft(x)"), "fft"),
        (_task("x = torch.sort(x)[0]"), "sort"),
        (_task("if x.sum() > 0:", "    x = -x"), "control flow"),
        (_task("x = torch.relu(x)", inputs="torch.randn(6, 20).double()"), "float64"),
    ],
)
@pytest.mark.parametrize("backend", Backend)
def test_refusals_name_what_is_missing(task, named, backend):
    with pytest.raises(CannotWrite, match=re.escape(named)):
        write_kernel(task, variant=0, backend=backend)


def test_what_one_kernel_cannot_do_several_can():
    task = _task("x = torch.relu(x) + self.linear(torch.relu(x))[:, :20]", init=_LINEAR)
    source = write_kernel(task)
    assert source.count("@triton.jit") == 3
    text = reasoning(task)
    assert text.startswith("3 kernels")
    for principle in ("Tiling", "Fusion", "Reordering"):
        assert principle in text
    assert "load_inline" in write_kernel(task, backend=Backend.CUDA)


def test_variants_differ_and_others_do_not_exist():
    for name in ("methods", "wide product"):
        assert len({write_kernel(_RIGHT[name], variant=v) for v in range(VARIANTS)}) == VARIANTS
    with pytest.raises(ValueError, match="variant 9"):
        write_kernel(_RIGHT["methods"], variant=9)


def test_forward_only_allocates_and_launches():
    allowed = {"empty", "empty_like", "contiguous", "numel", "cdiv", "next_power_of_2", "max", "fused_kernel"}
    for seed, api_set in enumerate(random_sets(20, 3)):
        try:
            source = write_kernel(compose(api_set, seed), variant=seed % VARIANTS)
        except CannotCompose:
            continue
        nodes = list(ast.walk(ast.parse(source)))
        forward = next(n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == "forward")
        calls = [ast.unparse(n.func) for n in ast.walk(forward) if isinstance(n, ast.Call)]
        called = {call.split("[")[0].split(".")[-1] for call in calls}
        assert called <= allowed


def test_parameters_keep_their_names():
    source = write_kernel(_task("x = torch.relu(self.linear(x))", init=_LINEAR), variant=0)
    assert _LINEAR in source and "self.linear.weight, self.linear.bias" in source


def test_modules_without_weights_are_dropped():
    assert "nn.ReLU" not in write_kernel(_task("x = self.act(x)", init="self.act = nn.ReLU()"), variant=0)


def test_reasoning_names_what_is_done():
    text = reasoning(_task("x = torch.softmax(self.linear(x), dim=1)", init=_LINEAR), 0)
    assert "Tiling" in text and "linear, softmax in one kernel" in text and "maximum is subtracted" in text
