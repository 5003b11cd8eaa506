from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelzero.apis import mine, read_counts, write_counts
from kernelzero.apis.build import filter_counts
from kernelzero.errors import UsageError

FILES = {
    "__init__.py": "raise RuntimeError('a package that is counted is not imported')\n",
    "base.py": (
        "from torch import nn as m\nclass Base(m.Module):\n    def __init__(self):\n        self.a = m.ReLU()\n"
    ),
    "sub/__init__.py": "",
    "sub/model.py": (
        "import torch as t\nimport torch.nn.functional as G\nfrom ..base import Base\n"
        "from torch.nn import Linear as L\n"
        "class Model(Base):\n    def __init__(self): self.l = L(2, 2)\n"
        "    def forward(self, x): return G.relu(self.l(x)) + G.relu(t.exp(x)).tanh()\n"
        "class Small(Model):\n    def forward(self, x): return t.exp(x)\n"
        "class Plain:\n    def f(self, x): return t.exp(x)\n"
        "class Weight(t.nn.Parameter):\n    def f(self, x): return t.exp(x)\n"
    ),
    "broken.py": "class X(:\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, text in FILES.items():
        path = tmp_path / "counted_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "counted_package"


def test_counts_of_a_small_package(package: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    counts = mine([package, package], lambda *step: seen.append(step))
    assert package not in sys.modules
    assert (counts["modules"], counts["files"], counts["skipped"]) == (3, 5, 1)
    assert counts["api"] == [["torch.exp", 2], ["F.relu", 1], ["nn.Linear", 1], ["nn.ReLU", 1]]
    assert counts["pairs"] == [["F.relu", "nn.Linear", 1], ["F.relu", "torch.exp", 1], ["nn.Linear", "torch.exp", 1]]
    assert [step[:2] for step in seen] == [(n, 5) for n in range(1, 6)]
    write_counts(tmp_path / "counts.json.gz", counts)
    assert filter_counts(read_counts(tmp_path / "counts.json.gz"))["api"][0] == ["torch.exp", 2]


def test_part_of_a_package(package: str) -> None:
    assert mine([package + ".base"])["api"] == [["nn.ReLU", 1]]
    assert mine([package + ".sub"])["modules"] == 0  # its base class lies outside


def test_an_installed_package() -> None:
    counts = mine(["peft"])
    assert counts["modules"] > 50
    assert dict(counts["api"])["F.linear"] > 5


@pytest.mark.parametrize("names", [[], ["no_such_package_here"], ["sys"], ["no such-package!"]])
def test_unknown_packages_are_usage_errors(names: list[str]) -> None:
    with pytest.raises(UsageError):
        mine(names)
