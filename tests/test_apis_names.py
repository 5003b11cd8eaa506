from __future__ import annotations

import ast

import pytest

from kernelzero.apis import called_apis, canonical, constructed_modules_unused
from kernelzero.apis.names import short

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


@pytest.mark.parametrize(("spelling", "name"), [
    ("F.relu", "torch.nn.functional.relu"), ("nn.functional.relu", "torch.nn.functional.relu"),
    ("torch.nn.functional.relu", "torch.nn.functional.relu"), ("torch.nn.ReLU", "nn.ReLU"), ("nn.ReLU", "nn.ReLU"),
    ("torch.nn.modules.activation.ReLU", "nn.ReLU"), ("nn.modules.Conv2d", "nn.Conv2d"), ("torch.relu", "torch.relu"),
    ("F.torch.cat", "torch.cat"), ("torch.functional.einsum", "torch.einsum"),
    ("nn.parameter.Parameter", "nn.Parameter"),
    ("torch.linalg.norm", "torch.linalg.norm"), ("torch.special.expit", "torch.special.expit"),
    ("torch.nn.init.zeros_", "nn.init.zeros_"), ("numpy.sum", "numpy.sum"),
])  # fmt: skip
def test_one_spelling_a_name(spelling: str, name: str) -> None:
    assert canonical(spelling) == name == canonical(name)
    assert canonical(short(name)) == name


@pytest.mark.parametrize(("source", "names"), [
    ("import torch as t\nt.relu(x)", {"torch.relu"}),
    ("import torch.nn.functional\ntorch.nn.functional.relu(x)", {"torch.nn.functional.relu"}),
    ("import torch.nn.functional as G\nG.relu(x)", {"torch.nn.functional.relu"}),
    ("from torch.nn import functional as G\nG.relu(x)", {"torch.nn.functional.relu"}),
    ("from torch.nn.functional import relu as r\nr(x)", {"torch.nn.functional.relu"}),
    ("from torch.nn import Linear as L\nL(2, 2)", {"nn.Linear"}),
    ("from torch.nn import *\nLinear(2, 2); Sequential()", {"nn.Linear", "nn.Sequential"}),
    ("from torch import *\nsum(x); print(x)", {"torch.sum"}),
    ("from torch import linalg as la\nla.norm(x)", {"torch.linalg.norm"}),
    (HEAD + "r = F.relu\nr(x)", {"torch.nn.functional.relu"}),
    (HEAD + "a, b = F.relu, torch.exp\nb(x)", {"torch.exp"}),
    (HEAD + "def f(x):\n    return g(x)\ng = torch.exp", {"torch.exp"}),
    (HEAD + "getattr(torch, 'exp')(x)", {"torch.exp"}),
    (HEAD + "from functools import partial\ng = partial(F.gelu, approximate='tanh')\ng(x)",
     {"torch.nn.functional.gelu"}),
    (HEAD + "from functools import partial\npartial(F.gelu)", set()),
    (HEAD + "class M(nn.Module):\n    def forward(s, x): pass\n    op = torch.exp\n", set()),
    (HEAD + "class M:\n    def forward(self, x): return self.a(x)\n    def __init__(self): self.a = F.relu",
     {"torch.nn.functional.relu"}),
    (HEAD + "class M:\n    a = torch.exp\n    def forward(self, x): return self.a(x)", {"torch.exp"}),
    (HEAD + "try:\n    from torch.nn import RMSNorm\nexcept ImportError:\n    RMSNorm = None\nRMSNorm(3)",
     {"nn.RMSNorm"}),
    (HEAD + "[torch.exp(y) for y in ys]; (lambda y: torch.log(y))(x)", {"torch.exp", "torch.log"}),
    (HEAD + "F.relu", set()),
    (HEAD + "x.relu(); x @ x", set()),
    ("F.relu(x); nn.ReLU(); torch.relu(x)", set()),
    (HEAD + "def f(torch, x):\n    return torch.relu(x)", set()),
    (HEAD + "def relu(x): return x\nrelu(x)", set()),
    ("from torch import relu\ndef relu(x): return x\nrelu(x)", set()),
    (HEAD + "class F:\n    relu = max\nF.relu(1, 2)", set()),
    (HEAD + "for F in y:\n    F.relu(x)", set()),
    (HEAD + "# torch.exp(x)\n'torch.exp(x)'", set()),
])  # fmt: skip
def test_calls_are_found_through_aliases_and_not_through_shadows(source: str, names: set[str]) -> None:
    assert set(called_apis(ast.parse(source))) == names


def test_every_call_is_listed_in_source_order() -> None:
    calls = called_apis(ast.parse(HEAD + "def f(x):\n    return F.relu(torch.exp(F.relu(x)))\nF.relu(y)"))
    assert [call.lineno for call in calls["torch.nn.functional.relu"]] == [5, 5, 6]
    assert len(calls["torch.exp"]) == 1


def model(init: str, forward: str, above: str = "") -> str:
    def block(text: str) -> str:
        return "".join(f"        {line}\n" for line in text.split("\n"))

    return (
        f"{HEAD}{above}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{block(init)}"
        f"    def forward(self, x):\n{block(forward)}    def helper(self, x):\n        return self.h(x)\n"
    )


BLOCK = "class B(nn.Module):\n    def __init__(self):\n        self.c = nn.Tanh()\n"
BLOCK += "    def forward(self, x):\n        return self.c(x)\n"


@pytest.mark.parametrize(("source", "unused"), [
    (model("self.a = nn.ReLU()", "return self.a(x)"), set()),
    (model("self.a = nn.ReLU()", "return x"), {"nn.ReLU"}),
    (model("self.a = nn.ReLU()", "self.a\nreturn x"), {"nn.ReLU"}),
    (model("self.a = nn.ReLU()", "y = self.a\nreturn x"), {"nn.ReLU"}),
    (model("self.a = nn.ReLU()", "y = self.a\nreturn y(x)"), set()),
    (model("self.a = nn.ReLU()\nself.b = nn.ReLU()", "return self.b(x)"), set()),
    (model("self.l = nn.Linear(3, 3)", "return F.linear(x, self.l.weight)"), {"nn.Linear"}),
    (model("l = []\nl.append(nn.Tanh())\nl += [nn.ReLU()]\nself.n = nn.Sequential(*l)", "return self.n(x)"), set()),
    (model("self.n = nn.ModuleList([nn.Tanh()])", "for m in self.n:\n    x = m(x)\nreturn x"), set()),
    (model("self.h = nn.Tanh()", "return self.helper(x)"), set()),
    (model("self.h = nn.Tanh()", "return x"), {"nn.Tanh"}),
    (model("self.b = B()", "return self.b(x)", BLOCK), set()),
    (model("self.b = B()", "return x", BLOCK), {"nn.Tanh"}),
    (model("pass", "return x", BLOCK), {"nn.Tanh"}),
    (model("self.n = make()", "return self.n(x)", "def make():\n    return nn.Sequential(nn.Tanh())\n"), set()),
    (model("pass", "return act(x)", "act = nn.ReLU()\n"), set()),
    (model("pass", "return nn.ReLU()(x)"), set()),
    (model("pass", "nn.ReLU()\ny = nn.Tanh()\nreturn x"), {"nn.ReLU", "nn.Tanh"}),
    (model("self.add_module('a', nn.ReLU())", "return self.a(x)"), set()),
    (model("self.add_module('a', nn.ReLU())", "return x"), {"nn.ReLU"}),
    (model("self.a = nn.ReLU()", "return getattr(self, 'a')(x)"), set()),
    (model("self.b = B()", "return self.b(x)",
           "class B(nn.Sequential):\n    def __init__(self):\n        super().__init__(nn.Tanh())\n"), set()),
])  # fmt: skip
def test_modules_that_are_only_built(source: str, unused: set[str]) -> None:
    assert constructed_modules_unused(ast.parse(source)) == unused
