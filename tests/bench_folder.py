"""A small folder in KernelBench's layout, with sound tasks, weak ones and one that cannot run; kernels for it."""

from __future__ import annotations

from pathlib import Path

_TASK = '''\
import torch
import torch.nn as nn


class Model(nn.Module):
    """{doc}"""

    def __init__(self{arguments}):
        super().__init__()
        {init}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        {forward}


rows = 16
columns = 24


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return {inputs}
'''

_KERNEL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def work(source, target, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + i, mask=i < n)
    tl.store(target + i, {expression}, mask=i < n)


class ModelNew(torch.nn.Module):
    def __init__(self, *arguments):
        super().__init__()

    def forward(self, x):
        y = torch.empty_like(x)
        work[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""


def task(forward: str, doc: str = "", init: str = "pass", arguments: str = "", inputs: str = "[]") -> str:
    """A module's source."""
    return _TASK.format(forward=forward, doc=doc, init=init, arguments=arguments, inputs=inputs)


def kernel(expression: str) -> str:
    """A Triton kernel that maps every element x."""
    return _KERNEL.format(expression=expression)


DOUBLED = task("return x * 2 + 1", "An affine map.")
NEARLY_NOTHING = task("return x * 0.0001", "So small that zeros would do at 1e-2.")
CONSTANT = task("return torch.zeros_like(x)", "No answer depends on anything.")
BROKEN = task("return x @ torch.ones(7, 7)", "Shapes that do not fit.")
SHIFTED = task("return torch.relu(x - 0.5)", "Two operators.", "self.shift = shift", ", shift", "[0.5]")

FILES = {
    "level1/1_Affine_map.py": DOUBLED,
    "level1/2_Nearly_nothing_.py": NEARLY_NOTHING,
    "level1/3_Constant.py": CONSTANT,
    "level1/10_Broken_matmul.py": BROKEN,
    "level2/1_Shifted_ReLU.py": SHIFTED,
}
RIGHT = {
    "level1/1_Affine_map": kernel("x * 2 + 1"),
    "level1/2_Nearly_nothing_": kernel("x * 0.0001"),
    "level2/1_Shifted_ReLU": kernel("tl.maximum(x - 0.5, 0.0)"),
}


def make_kernelbench(root: Path) -> Path:
    """A checkout: KernelBench/level1 and level2, and files beside that are no tasks."""
    for name, source in FILES.items():
        path = root / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (root / "src").mkdir()
    (root / "src" / "eval.py").write_text("print('not a task')\n")
    return root
