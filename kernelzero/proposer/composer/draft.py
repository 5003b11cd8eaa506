"""A module while it is being written: its inputs, weights, layers, and one node a call.

Texts are templates: `{x}`, `{y}`, … stand for operands, other names for sizes and numbers. The draft knows shapes and a
few facts of each value, so that operators are only put where they make sense; how it is spelled is `text.py`'s.
"""

from __future__ import annotations

import ast
import random
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kernelzero.proposer.composer.sizes import Shape, Size, numel

MOST = Size(6000, 1 << 28)
"""Elements of one value, at most."""
MOST_STEPS = 60
"""Steps of an interpreter in one call of `forward`, at most, roughly: a row, or one step of a loop for a block."""
MOST_WEIGHTS = Size(6000, 1 << 25)


class DoesNotFit(Exception):
    """An operator has no place here; another draft may have one."""


@dataclass(frozen=True)
class Value:
    """What one node, input or weight gives."""

    number: int
    shape: Shape
    dtype: str = "float"
    """"float", "int" or "bool"."""
    facts: frozenset[str] = frozenset()
    """"nonneg" (at least 0), "bounded" (of moderate size), "exact" (no rounding that another kernel could do
    differently, so that jumping operators may follow)."""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


@dataclass(frozen=True)
class Leaf:
    """An input, a parameter or a buffer."""

    value: Value
    name: str
    kind: str
    """"input", "parameter" or "buffer"."""
    fill: str
    """Expression that makes it, with `{shape}`."""
    params: dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """A submodule."""

    name: str
    build: str
    params: dict[str, Any]


@dataclass(frozen=True)
class Node:
    """One call of `forward`."""

    value: Value
    text: str
    operands: dict[str, Value]
    params: dict[str, Any]
    api: str
    """The catalogue's name of the API that it is there for; "" for what holds others together."""

    @property
    def infix(self) -> bool:
        """Whether the text needs brackets inside of another one."""
        return _is_infix(self.text)


@lru_cache(maxsize=4096)
def _is_infix(template: str) -> bool:
    body = ast.parse(re.sub(r"\{\w+\}", "a", template), mode="eval").body
    return not isinstance(body, ast.Call | ast.Name | ast.Attribute | ast.Subscript | ast.Constant)


@dataclass
class Draft:
    """The builder. All choices come from `rng`."""

    rng: random.Random
    nodes: list[Node] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    roles: dict[Size, str] = field(default_factory=dict)
    """Names of sizes that have one."""
    outputs: list[Value] = field(default_factory=list)
    steps: float = 0.0
    """Steps so far, see MOST_STEPS."""
    _count: int = 0

    # --- values ---

    def value(self, shape: Shape, dtype: str = "float", facts: str = "") -> Value:
        """A new value within the limits."""
        count = numel(shape)
        if count.small > MOST.small or count.gpu > MOST.gpu or any(s.least() < 1 for s in shape):
            raise DoesNotFit(f"a value of shape {[s.small for s in shape]} or {[s.gpu for s in shape]}")
        self._count += 1
        return Value(self._count, tuple(shape), dtype, frozenset(facts.split()))

    def input(self, shape: Shape, name: str = "", fill: str = "", dtype: str = "float", facts: str = "") -> Value:
        """A new argument of `forward`; `fill` makes it, `torch.randn` by default. Random numbers are exact."""
        fill = fill or "torch.randn({shape})"
        return self._leaf(self.value(shape, dtype, f"exact {facts}"), self._name(name, "xyzuvwpqrs"), "input", fill)

    def parameter(self, shape: Shape, name: str, scale: float = 1.0, kind: str = "parameter", fill: str = "") -> Value:
        """A new weight, normally distributed with standard deviation `scale`."""
        count = numel(shape)
        if count.small > MOST_WEIGHTS.small or count.gpu > MOST_WEIGHTS.gpu:
            raise DoesNotFit("a weight that is too large")
        fill = fill or "torch.randn({shape})" + ("" if scale == 1.0 else f" * {scale:g}")
        return self._leaf(self.value(shape, "float", "exact"), self._name(name, ""), kind, fill)

    def weight(self, shape: Shape, name: str, scale: float = 0.2) -> Value:
        """A weight that is the module's own or is handed in."""
        if self.rng.random() < 0.6:
            return self.parameter(shape, name, scale)
        return self.input(shape, name)

    def _leaf(self, value: Value, name: str, kind: str, fill: str) -> Value:
        self.leaves.append(Leaf(value, name, kind, fill, {"shape": value.shape}))
        return value

    def _name(self, wanted: str, letters: str) -> str:
        taken = {leaf.name for leaf in self.leaves} | {layer.name for layer in self.layers}
        candidates = [wanted, *(f"{wanted}{k}" for k in range(2, 9))] if wanted else list(letters)
        free = [name for name in candidates if name not in taken]
        if not free:
            raise DoesNotFit("too many names")
        return free[0]

    # --- calls ---

    def layer(self, build: str, **params: Any) -> str:
        """A submodule; gives its attribute's name."""
        words = re.match(r"nn\.(\w+?)(?:[123]d)?\(", build)
        special = {"ReLU": "Relu", "SiLU": "Silu", "PRelu": "Prelu", "LPPool": "LpPool"}
        word = words.group(1) if words else "layer"
        for long, short in special.items():
            word = word.replace(long, short)
        stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", word).lower()
        usual = {"conv": ["conv"], "linear": ["linear", "fc", "proj"], "batch_norm": ["bn", "norm"],
                 "layer_norm": ["norm", "layer_norm"], "group_norm": ["norm", "gn"]}  # fmt: skip
        name = self._name(self.rng.choice(usual.get(stem, [stem])), "")
        self.layers.append(Layer(name, build, params))
        return name

    def call(
        self,
        text: str,
        operands: dict[str, Value],
        shape: Shape,
        *,
        api: str = "",
        dtype: str = "float",
        facts: str = "",
        **params: Any,
    ) -> Value:
        """One call. A text that starts with "nn." builds a layer, which is called on all operands in order."""
        if text.startswith("nn."):
            names = ", ".join(f"{{{key}}}" for key in operands)
            text, params = f"self.{self.layer(text, **params)}({names})", {}
        value = self.value(shape, dtype, facts)
        self.spend(numel(shape), 1, 256)
        self.nodes.append(Node(value, text, operands, params, api))
        return value

    def spend(self, elements: Size, loop: Size | int = 1, block: int = 128) -> None:
        """Count the steps of a call that loops for each block of elements; with blocks of one, of one row each."""
        rounds = loop if isinstance(loop, int) else loop.small
        self.steps += -(-elements.small // block) * rounds
        if self.steps > MOST_STEPS:
            raise DoesNotFit("too much work for an interpreter")

    def pick(self, *choices: Any) -> Any:
        """One of the choices."""
        return self.rng.choice(choices)

    def chance(self, probability: float) -> bool:
        """A coin."""
        return self.rng.random() < probability

    def earlier(self, x: Value, shape: Shape | None = None) -> list[Value]:
        """Float values of a shape that came before `x`, weights left out."""
        shape = x.shape if shape is None else shape
        own = [leaf.value for leaf in self.leaves if leaf.kind == "input"] + [node.value for node in self.nodes]
        return [v for v in own if v.shape == shape and v.dtype == "float" and v.number != x.number]
