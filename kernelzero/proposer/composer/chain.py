"""From an order of operators to the source of a module: shapes, names, guards and lines."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from kernelzero.proposer.composer.steps import STEPS, Step

_ROWS = (2, 4, 8, 12, 16, 20, 32, 48, 64)
_COLUMNS = (8, 10, 16, 20, 24, 32, 40, 48, 64, 80, 96, 100, 128)
_WIDE = (160, 192, 200, 256)
_NARROW = (8, 10, 12, 16)
_GUARDS = {
    "nonneg": ("torch.abs({x})", "torch.square({x})"),
    "bounded": ("torch.clamp({x}, max=2.0)", "torch.tanh({x})", "-torch.abs({x})"),
}
_SHRINKING = ("softmax", "normalize")


class DoesNotFit(Exception):
    """This order of operators cannot be written as a chain; another one may."""


@dataclass(frozen=True)
class Line:
    """One assignment of `forward`."""

    target: str
    source: str
    """The variable that it takes the place of, for leaving the line out."""
    text: str
    keeps_shape: bool


@dataclass
class Chain:
    """A module while it is being written."""

    rows: int
    columns: int
    lines: list[Line] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=lambda: ["x"])
    shapes: list[str] = field(default_factory=list)
    sizes: list[tuple[str, int]] = field(default_factory=list)
    """Arguments of `__init__` and their values."""
    width: int = 0
    """Columns of the running value; 0 once the row has been reduced, -1 once it is an index."""
    facts: str = ""
    """What is known of the running value: "nonneg", "bounded"."""

    def render(self, without: int | None = None) -> str:
        """Source of the module; `without` leaves one line's operator out."""
        body = [line if i != without else replace(line, text=line.source) for i, line in enumerate(self.lines)]
        code = [f"        {line.target} = {line.text}" for line in body if line.target != line.text]
        text = "\n".join([*self._init(), f"    def forward(self, {', '.join(self.arguments)}):", *code])
        functional = "import torch.nn.functional as F\n" if "F." in text else ""
        inputs = ", ".join(f"torch.randn({shape})" for shape in self.shapes)
        return (
            f"import torch\nimport torch.nn as nn\n{functional}\n\n"
            f"class Model(nn.Module):\n{text}\n        return x\n\n\n"
            f"def get_inputs():\n    return [{inputs}]\n\n\n"
            f"def get_init_inputs():\n    return [{', '.join(str(value) for _, value in self.sizes)}]\n"
        )

    def _init(self) -> list[str]:
        if not self.init:
            return []
        head = ", ".join(["self", *(name for name, _ in self.sizes)])
        lines = [f"    def __init__({head}):", "        super().__init__()"]
        return [*lines, *(f"        {line}" for line in self.init), ""]

    def size(self, value: int, name: str) -> str:
        """The `__init__` argument for a width, made on first use."""
        known = {v: n for n, v in self.sizes}
        if value in known:
            return known[value]
        taken = {n for n, _ in self.sizes}
        name = name if name not in taken else "hidden_features"
        self.sizes.append((name, value))
        return name

    def argument(self, shape: str, names: str = "yzuv") -> str:
        """A new input of the given shape."""
        name = next(n for n in names if n not in self.arguments)
        self.arguments.append(name)
        self.shapes.append(shape)
        return name

    def put(self, text: str, keeps_shape: bool = True) -> None:
        """`x = text`."""
        self.lines.append(Line("x", "x", text, keeps_shape))


def build(order: list[str], rng: random.Random) -> Chain:
    """Write the operators in the given order. Raises DoesNotFit where one has no place."""
    chain = Chain(rng.choice(_ROWS), _columns(order, rng))
    chain.width = chain.columns
    chain.shapes.append(f"{chain.rows}, {chain.columns}")
    for position, api in enumerate(order):
        step = STEPS[api]
        if chain.width < 0 or (chain.width == 0 and step.kind != "pointwise"):
            raise DoesNotFit(f"{api} after the rows were reduced")
        _guard(chain, step, rng)
        _WRITERS[step.kind](chain, step, rng, position == len(order) - 1 or _only_pointwise(order[position + 1 :], rng))
        chain.facts = _facts(chain, step)
    return chain


def _columns(order: list[str], rng: random.Random) -> int:
    if any(word in order[-1].lower() for word in _SHRINKING):
        return rng.choice(_NARROW)
    products = any(STEPS[api].kind == "product" for api in order)
    return rng.choice(_COLUMNS if products or rng.random() < 0.7 else _WIDE)


def _only_pointwise(rest: list[str], rng: random.Random) -> bool:
    return all(STEPS[api].kind == "pointwise" for api in rest) and rng.random() < 0.3


def _facts(chain: Chain, step: Step) -> str:
    text = chain.lines[-1].text
    if step.kind == "pointwise":
        clamped = "torch.clamp" in text
        return "nonneg" if (clamped and "max" not in text) or text.endswith(", 2)") else step.gives
    return step.gives if step.kind == "row" else ""


def _guard(chain: Chain, step: Step, rng: random.Random) -> None:
    if step.safe and step.safe not in chain.facts.split():
        form = rng.choice(_GUARDS[step.safe])
        chain.put(form.format(x="x"))


def _submodule(chain: Chain, step: Step, rng: random.Random, **sizes: str) -> None:
    if step.build:
        build_text = rng.choice(step.build).format(**sizes)
        chain.init.append(f"self.{step.name} = {build_text}")


def _pointwise(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    _submodule(chain, step, rng)
    chain.put(rng.choice(step.forms).format(x="x", s=step.name))


def _row(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    sizes = {"n": chain.size(chain.width, "features")} if any("{n}" in b for b in step.build) else {}
    _submodule(chain, step, rng, **sizes)
    chain.put(rng.choice(step.forms).format(x="x", s=step.name))


def _parameter(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    _submodule(chain, step, rng, n=chain.size(chain.width, "features"))
    form = rng.choice(step.forms)
    if "+" in form:
        chain.init[-1] = chain.init[-1].replace("self.scale", "self.bias")
    chain.put(form.format(x="x", s="scale" if "*" in form else "bias"))


def _binary(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    chain.put(step.forms[0].format(x="x", y=_second(chain, rng, step.forms[0])))


def _where(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    form = rng.choice(step.forms)
    chain.put(form.format(x="x", y=_second(chain, rng, form)))


def _second(chain: Chain, rng: random.Random, form: str) -> str:
    """The other operand: a branch of the chain, a number, or a new input."""
    draw = rng.random()
    if draw < 0.25 and chain.lines and chain.lines[-1].target == "x" and _can_branch(chain):
        chain.lines[-1] = replace(chain.lines[-1], target="h")
        return "h"
    if draw < 0.35 and form.startswith(("torch.add", "torch.mul", "torch.sub")):
        return rng.choice(("0.5", "2.0", "1.5", "3.0"))
    return chain.argument(f"{chain.rows}, {chain.width}")


def _can_branch(chain: Chain) -> bool:
    return chain.lines[-1].keeps_shape and not any(line.target != "x" for line in chain.lines)


def _reduce(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    call = step.forms[0]
    if not last:
        value = call.format(x="x", k=", keepdim=True")
        chain.put(rng.choice(step.middle).format(x="x", r=value))
        return
    keep = rng.random() < 0.3
    chain.put(call.format(x="x", k=", keepdim=True" if keep else ""), keeps_shape=False)
    chain.width = 0


def _index(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    chain.put(step.forms[0].format(x="x"), keeps_shape=False)
    chain.width = -1


def _similarity(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    if not last:
        raise DoesNotFit("a similarity in the middle of a chain")
    other = chain.argument(f"{chain.rows}, {chain.width}")
    chain.put(step.forms[0].format(x="x", y=other), keeps_shape=False)
    chain.width = 0


def _product(chain: Chain, step: Step, rng: random.Random, last: bool) -> None:
    width = rng.choice([c for c in _COLUMNS if c != chain.width])
    if step.build:
        inner = chain.size(chain.width, "in_features")
        _submodule(chain, step, rng, k=inner, n=chain.size(width, "out_features"))
        chain.put(step.forms[0].format(x="x", s=step.name), keeps_shape=False)
    else:
        shape = f"{width}, {chain.width}" if "F.linear" in step.forms[0] else f"{chain.width}, {width}"
        chain.put(step.forms[0].format(x="x", w=chain.argument(shape, "wvq")), keeps_shape=False)
    chain.width = width


_WRITERS = {
    "pointwise": _pointwise,
    "row": _row,
    "parameter": _parameter,
    "binary": _binary,
    "where": _where,
    "reduce": _reduce,
    "index": _index,
    "similarity": _similarity,
    "product": _product,
}
