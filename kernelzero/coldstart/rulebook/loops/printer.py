"""Prints expressions as statements of a C-like language: what is used twice or is long gets a name of its own."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from kernelzero.coldstart.rulebook.loops.expr import Expr, children, walk

_LONG = 64


class Language(Protocol):
    """How a language spells things."""

    def constant(self, value: bool | int | float) -> str:
        """A literal."""
        ...

    def spell(self, node: Expr, parts: list[str]) -> str:
        """Everything that is one expression: arithmetic, functions, casts, choices."""
        ...

    def load(self, printer: Printer, node: Expr) -> str:
        """A read from memory."""
        ...

    def fold(self, printer: Printer, node: Expr) -> str:
        """A loop; gives the name of the variable that holds the outcome."""
        ...

    def assign(self, name: str, kind: str, text: str) -> str:
        """A statement that gives something a name."""
        ...


class Printer:
    """Statements so far, and the names of what they have computed."""

    def __init__(self, language: Language, indent: int = 1) -> None:
        self.language, self.indent = language, indent
        self.lines: list[str] = []
        self.names: list[dict[Expr, str]] = [{}]
        self.variables: dict[str, str] = {}
        """How indices are spelled here."""
        self._count = 0
        self._uses: Counter[Expr] = Counter()

    def line(self, text: str) -> None:
        """A statement."""
        self.lines.append("    " * self.indent + text)

    def fresh(self, stem: str = "v") -> str:
        """A name that is not taken."""
        self._count += 1
        return f"{stem}{self._count - 1}"

    @contextlib.contextmanager
    def block(self, head: str, tail: str = "") -> Iterator[None]:
        """Statements inside of a loop; what they name is not known after it."""
        self.line(head)
        self.indent += 1
        self.names.append({})
        yield
        self.names.pop()
        self.indent -= 1
        if tail:
            self.line(tail)

    def bind(self, node: Expr, name: str) -> None:
        """What a node is called from now on."""
        self.names[-1][node] = name

    def value(self, node: Expr) -> str:
        """Text of a node, after the statements that it needs."""
        self._count_uses(node)
        return self._text(node)

    def _count_uses(self, root: Expr) -> None:
        seen: set[Expr] = set()
        waiting = [root]
        while waiting:
            node = waiting.pop()
            for child in children(node):
                self._uses[child] += 1
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)

    def _text(self, node: Expr) -> str:
        for known in reversed(self.names):
            if node in known:
                return known[node]
        if node.op == "const":
            return self.language.constant(node.args[0])
        if node.op == "var":
            return self.variables.get(node.args[0], node.args[0])
        if node.op == "stage":
            return str(node.args[0])
        if node.op == "load":
            return self._named(node, self.language.load(self, node), always=True)
        if node.op == "fold":
            name = self.language.fold(self, node)
            self.bind(node, name)
            return name
        parts = [self._text(child) for child in children(node)]
        return self._named(node, self.language.spell(node, parts))

    def named(self, node: Expr) -> str:
        """The node's name; it gets one where it has none."""
        text = self._text(node)
        if text.isidentifier():
            return text
        name = self.fresh()
        self.line(self.language.assign(name, node.kind, text))
        self.bind(node, name)
        return name

    def _named(self, node: Expr, text: str, always: bool = False) -> str:
        if not (always or self._uses[node] > 1 or len(text) > _LONG):
            return text
        name = self.fresh()
        self.line(self.language.assign(name, node.kind, text))
        self.bind(node, name)
        return name


def steady(node: Expr, moving: set[str], seen: set[Expr]) -> Iterator[Expr]:
    """The largest parts of a loop's body that use none of its indices and are worth a name before it."""
    if node in seen:
        return
    seen.add(node)
    if node.op in ("fold", "load", "floordiv", "mod") and not any(
        n.op == "var" and n.args[0] in moving for n in walk(node)
    ):
        yield node
        return
    inside = moving | {name for name, _ in node.args[1]} if node.op == "fold" else moving
    for child in children(node):
        yield from steady(child, inside, seen)


def summed(node: Expr, parts: list[str]) -> str:
    """A sum of multiples, which both languages spell alike; `parts` are those of its variables."""
    texts, names = [], iter(parts)
    for expression, factor in node.args:
        if expression is None:
            texts.append(str(factor))
            continue
        name = next(names)
        texts.append(name if factor == 1 else f"-{name}" if factor == -1 else f"{name} * {factor}")
    return "(" + " + ".join(texts).replace("+ -", "- ") + ")"


def bare(text: str) -> str:
    """The text without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]
