"""From a draft to source text, in one of several styles."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from kernelzero.proposer.composer.draft import Draft, Node, Value
from kernelzero.proposer.composer.sizes import Size, Sizes

WIDTH = 104
"""Characters of a line of `forward`, at most, where expressions are nested."""


@dataclass(frozen=True)
class Style:
    """How a module is spelled."""

    nested: bool = False
    """Whether a call that is used once is written inside of the one that uses it."""
    distinct: bool = False
    """Whether every line has a name of its own; otherwise `x = f(x)`."""
    arguments: bool = True
    """Whether layers' sizes are arguments of `__init__`."""
    constants: bool = False
    """Whether sizes are named above `get_inputs`."""
    typed: bool = False
    """Whether `forward` has annotations."""
    returns: bool = False
    """Whether the last expression is returned without a name."""


PLAIN = Style()


def any_style(rng: random.Random) -> Style:
    """A style; about a third of all are one operator a line with one name."""
    flags = [rng.random() < p for p in (0.4, 0.4, 0.5, 0.4, 0.25, 0.5)]
    return Style(*flags)


def render(draft: Draft, style: Style = PLAIN, sizes: Sizes = "small", *, wrap: str = "") -> str:
    """The module's source.

    Args:
        wrap: name of a function that every call is passed through, with its number first; for trials only.
    """
    return _Writer(draft, style, sizes, wrap).source()


class _Writer:
    def __init__(self, draft: Draft, style: Style, sizes: Sizes, wrap: str) -> None:
        self.draft, self.style, self.sizes, self.wrap = draft, style, sizes, wrap
        self.arguments: dict[Size, str] = {}
        """Arguments of `__init__`, in order."""
        self.constants: dict[Size, str] = {}
        self.names = {leaf.value.number: leaf.name for leaf in draft.leaves if leaf.kind == "input"}
        self.bracketed: set[int] = set()
        """Values whose text needs brackets inside of an expression."""
        self.names |= {leaf.value.number: f"self.{leaf.name}" for leaf in draft.leaves if leaf.kind != "input"}

    def source(self) -> str:
        forward = self._forward()
        init = self._init()
        inputs = self._inputs()
        constructor = ", ".join(self._number(size) for size in self.arguments)
        functional = "import torch.nn.functional as F\n" if "F." in init + forward else ""
        constants = "".join(f"{name} = {size.of(self.sizes)}\n" for size, name in self.constants.items())
        return (
            f"import torch\nimport torch.nn as nn\n{functional}\n\nclass Model(nn.Module):\n{init}{forward}\n\n"
            f"{constants}{'' if not constants else chr(10) * 2}def get_inputs():\n    return [{inputs}]\n\n\n"
            f"def get_init_inputs():\n    return [{constructor}]\n"
        )

    # --- __init__ ---

    def _init(self) -> str:
        lines = [
            f"self.{layer.name} = {layer.build.format(**self._built(layer.params))}" for layer in self.draft.layers
        ]
        for leaf in (leaf for leaf in self.draft.leaves if leaf.kind != "input"):
            made = leaf.fill.format(**self._built(leaf.params))
            if leaf.kind == "parameter":
                lines.append(f"self.{leaf.name} = nn.Parameter({made})")
            elif leaf.kind == "buffer":
                lines.append(f'self.register_buffer("{leaf.name}", {made})')
        if not lines:
            return ""
        head = ", ".join(["self", *(self.arguments.values())])
        body = "".join(f"        {line}\n" for line in ["super().__init__()", *lines])
        return f"    def __init__({head}):\n{body}\n"

    def _built(self, params: dict[str, Any]) -> dict[str, str]:
        return {key: self._built_one(key, value) for key, value in params.items()}

    def _built_one(self, key: str, value: Any) -> str:
        if isinstance(value, tuple):
            return ", ".join(self._built_one(f"size{k}", v) for k, v in enumerate(value)) or "()"
        if not (isinstance(value, Size) and self.style.arguments) or value.small == value.gpu:
            return self._number(value) if not isinstance(value, Size) else str(value.of(self.sizes))
        if value not in self.arguments:
            usual = {"size0": "num_features", "size1": "in_features", "size2": "width"}
            name = self.draft.roles.get(value, usual.get(key, key)) if key[:4] == "size" else key
            taken = {*self.arguments.values(), *(leaf.name for leaf in self.draft.leaves)}
            free = [n for n in (name, f"hidden_{name}", *(f"{name}{k}" for k in range(2, 20))) if n not in taken]
            self.arguments[value] = free[0]
        return self.arguments[value]

    # --- forward ---

    def _forward(self) -> str:
        draft, style = self.draft, self.style
        uses = Counter(v.number for node in draft.nodes for v in node.operands.values())
        uses.update(v.number for v in draft.outputs)
        ends = {v.number for v in draft.outputs}
        lines: list[str] = []
        for place, node in enumerate(draft.nodes):
            text = self._text(node, place)
            is_last = place == len(draft.nodes) - 1
            inlined = (
                node.value.dtype != "tuple"
                and style.nested
                and not self.wrap
                and uses[node.value.number] == 1
                and len(text) < WIDTH - 40
            )
            if node.value.number not in ends and inlined and self._can_inline(node, place):
                self.names[node.value.number] = text
                self.bracketed |= {node.value.number} if node.infix else set()
            elif is_last and style.returns and len(draft.outputs) == 1 and not self.wrap:
                self.names[node.value.number] = text
            else:
                name = self._target(node, place)
                lines.append(f"        {name} = {text}")
                self.names[node.value.number] = name
        arguments = [leaf.name for leaf in draft.leaves if leaf.kind == "input"]
        given = ", ".join(["self", *(f"{name}: torch.Tensor" if style.typed else name for name in arguments)])
        back = " -> torch.Tensor" if style.typed and len(draft.outputs) == 1 else ""
        result = ", ".join(self.names[v.number] for v in draft.outputs)
        return "\n".join([f"    def forward({given}){back}:", *lines, f"        return {result}", ""])

    def _text(self, node: Node, place: int) -> str:
        operands = {key: self.names[v.number] for key, v in node.operands.items()}
        template = node.text
        for key, v in node.operands.items():
            if v.number in self.bracketed:  # an argument of a call needs none
                template = re.sub(rf"(?<![(\[])(?<!, )\{{{key}\}}|\{{{key}\}}(?![),\]])", f"({{{key}}})", template)
        text = template.format(**operands, **{key: self._param(value) for key, value in node.params.items()})
        return f"{self.wrap}({place}, {text})" if self.wrap else text

    def _can_inline(self, node: Node, place: int) -> bool:
        """Whether no name that the text reads is given to another value before the text is used."""
        if self.style.distinct:
            return True
        following = self.draft.nodes[place + 1 : place + 2]
        return bool(following) and any(v.number == node.value.number for v in following[0].operands.values())

    def _param(self, value: Any) -> str:
        if isinstance(value, tuple):
            return ", ".join(self._param(v) for v in value)
        return str(value.of(self.sizes)) if isinstance(value, Size) else str(value)

    def _target(self, node: Node, place: int) -> str:
        """`x` again where the old one is not needed any more, else a name of its own."""
        if not self.style.distinct:
            for operand in node.operands.values():
                name = self.names[operand.number]
                if name.isidentifier() and not self._needed_after(operand, place):
                    return name
        taken = set(self.names.values()) | {leaf.name for leaf in self.draft.leaves}
        names = ("h", "out", "g", "a", "b", "c", "d", "e", "m", "n", *(f"h{k}" for k in range(2, 60)))
        if self.style.distinct:
            names = (*(f"h{k}" for k in range(1, 60)),)
        return next(name for name in names if name not in taken)

    def _needed_after(self, value: Value, place: int) -> bool:
        later = (v for node in self.draft.nodes[place + 1 :] for v in node.operands.values())
        return any(v.number == value.number for v in (*later, *self.draft.outputs))

    # --- get_inputs ---

    def _inputs(self) -> str:
        made = []
        for leaf in self.draft.leaves:
            if leaf.kind == "input":
                shape = ", ".join(self._number(size) for size in leaf.value.shape)
                shape = f"({shape},)" if "({shape}" not in leaf.fill and len(leaf.value.shape) == 1 else shape
                params = {key: self._param(value) for key, value in leaf.params.items() if key != "shape"}
                made.append(leaf.fill.format(shape=shape, **params))
        return ", ".join(made)

    def _number(self, size: Any) -> str:
        if not isinstance(size, Size):
            return str(size)
        if self.style.constants and size in self.draft.roles and size.small != 1:
            taken = set(self.constants.values())
            name = self.draft.roles[size]
            free = next(n for n in (name, *(f"{name}_{k}" for k in range(2, 20))) if n not in taken)
            return self.constants.setdefault(size, free)
        return str(size.of(self.sizes))
