"""Which values become kernels: expensive ones do, and take what follows them element by element along.

A value is "open" while it could still get an epilogue. It is closed, that is stored by a kernel, when somebody needs it
in another way than element by element at the same index, or when it is used twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kernelzero.coldstart.rulebook.loops.expr import (
    Buffer,
    Expr,
    bounded,
    flat,
    kind_of,
    result,
    rewritten,
    substituted,
    walk,
)
from kernelzero.coldstart.rulebook.loops.value import (
    At,
    Core,
    Elements,
    Index,
    Kernel,
    Program,
    Value,
    size,
    stored,
)
from kernelzero.coldstart.rulebook.operators import CannotWrite

_LARGE_EXPRESSION = 24
"""Expressions with more nodes are not computed twice."""


class Scheduler:
    """Builds a program value by value, in the order of the graph."""

    def __init__(self) -> None:
        self.program = Program()
        self._open: dict[str, tuple[Core, Value, tuple[str, ...]]] = {}
        """Name → core, value as its core gives it, operators."""
        self._closed: dict[str, Value] = {}
        self._count = itertools.count()
        self._operators: dict[int, tuple[str, ...]] = {}
        """id(value) → operators that its expression stands for."""
        self._kept: list[Value] = []

    # --- making values ---

    def leaf(self, buffer: Buffer, access: str | None = None) -> Value:
        """An input of `forward`, or with `access` a parameter."""
        if access is None:
            self.program.inputs.append(buffer)
        else:
            self.program.parameters[buffer] = access
        return stored(buffer)

    def name(self, stem: str) -> str:
        """A name that nothing else has."""
        return f"{stem}_{next(self._count)}"

    def heavy(self, core: Core, shape: Sequence[int], dtype: str, operator: str) -> Value:
        """A value with a core of its own."""
        name = self.name("core")
        value = Value(tuple(shape), dtype, lambda index: result(name, index, kind_of(dtype)))
        self._open[name] = core, value, (operator,)
        return value

    def cheap(self, shape: Sequence[int], dtype: str, at: At, operator: str, sources: Sequence[Value]) -> Value:
        """A value that is an expression of others, open ones among them where they meet element by element."""
        value = Value(tuple(shape), dtype, at)
        self._settle(value, sources)
        names = [name for source in sources for name in self._operators.get(id(source), ())]
        self._operators[id(value)] = tuple(dict.fromkeys([*names, operator]))
        self._kept.append(value)
        return value

    def read(self, value: Value) -> Value:
        """The value for use at any index: with no open core in it."""
        self.twice(value)
        return Value(value.shape, value.dtype, self._snapshot(value))

    def twice(self, value: Value) -> None:
        """The value is used in several places: it is stored, if something in it is expensive."""
        if self._open_in(value):
            value.at = stored(self._store(value)).at
            self._operators[id(value)] = ()  # they are that kernel's now

    def keep(self, value: Value) -> Value:
        """The value in memory."""
        return stored(self._store(value))

    def finish(self, outputs: Sequence[Value], is_tuple: bool) -> Program:
        """Store what is returned."""
        if any(value.dtype == "float64" for value in outputs):
            raise CannotWrite("an output of dtype float64")
        self.program.outputs = [self._store(value) for value in outputs]
        self.program.is_tuple = is_tuple
        return self.program

    def is_large(self, value: Value) -> bool:
        """Whether its expression is too long to be computed in two places."""
        return sum(1 for node in walk(self._canonical(value)) if node.op not in ("const", "var")) > _LARGE_EXPRESSION

    # --- inside ---

    def _canonical(self, value: Value) -> Expr:
        index = tuple(bounded(f"c{d}", n) for d, n in enumerate(value.shape))
        return self._resolved(value).at(index)

    def _snapshot(self, value: Value) -> At:
        """What the value's elements are now, whatever is stored later."""
        expression = self._canonical(value)
        names = [f"c{d}" for d in range(len(value.shape))]
        return lambda index: substituted(expression, dict(zip(names, index, strict=True)))

    def _open_in(self, value: Value) -> list[str]:
        found = {n.args[0] for n in walk(self._canonical(value)) if n.op == "result"}
        return sorted((name for name in found if name in self._open), key=lambda name: int(name.split("_")[1]))

    def _settle(self, value: Value, sources: Sequence[Value]) -> None:
        """Store sources that the value does not use as an epilogue would, and all but the last of several."""
        index = tuple(bounded(f"c{d}", n) for d, n in enumerate(value.shape))
        expression = self._canonical(value)
        names = self._open_in(value)
        for number, name in enumerate(names):
            uses = {n.args[1] for n in walk(expression) if n.op == "result" and n.args[0] == name}
            same_shape = self._open[name][1].shape == value.shape
            if number < len(names) - 1 or uses != {index} or not same_shape:
                for source in [v for v in sources if name in self._open_in(v)]:
                    self.twice(source)
                if name in self._open:
                    self._close(name)

    def _resolved(self, value: Value) -> Value:
        """With closed cores read from memory."""

        def change(node: Expr) -> Expr | None:
            if node.op == "result" and node.args[0] in self._closed:
                return self._closed[node.args[0]].at(node.args[1])
            return None

        return Value(value.shape, value.dtype, lambda index: rewritten(value.at(index), change))

    def _close(self, name: str) -> None:
        core, value, operators = self._open.pop(name)
        buffer = self._emit(name, core, value.shape, value.dtype, value.at, operators)
        self._closed[name] = stored(buffer)

    def _store(self, value: Value) -> Buffer:
        names = self._open_in(value)
        operators = self._operators.get(id(value), ())
        if not names:
            view = self._view(value)
            if view is not None:
                return view
            name = self.name("core")
            return self._emit(
                name, Elements(self._snapshot(value)), value.shape, value.dtype, None, operators or ("copy",)
            )
        for name in names[:-1]:
            self._close(name)
        core, _, first = self._open.pop(names[-1])
        known = tuple(dict.fromkeys([*first, *operators]))
        return self._emit(names[-1], core, value.shape, value.dtype, self._snapshot(value), known)

    def _view(self, value: Value) -> Buffer | None:
        """The value as another shape of what a kernel has stored, where it is no more than that."""
        index = tuple(bounded(f"c{d}", n) for d, n in enumerate(value.shape))
        expression = self._canonical(value)
        if expression.op != "load" or expression.args[2] is not None or expression.args[1] != flat(index, value.shape):
            return None
        buffer = expression.args[0]
        if (size(buffer.shape), buffer.dtype) != (size(value.shape), value.dtype):
            return None
        if buffer not in [k.out for k in self.program.kernels]:
            return None
        if buffer.shape == value.shape:
            return buffer
        view = Buffer(f"{buffer.name}_view{len(self.program.views)}", value.shape, value.dtype)
        self.program.views[view] = buffer
        return view

    def _emit(
        self, name: str, core: Core, shape: Sequence[int], dtype: str, epilogue: At | None, operators: tuple[str, ...]
    ) -> Buffer:
        dtype = "float32" if dtype == "float64" else dtype  # kernels compute in 32 bits
        taken = {b.name for b in (*self.program.inputs, *self.program.parameters)}
        stem = f"t{len(self.program.kernels)}"
        buffer = Buffer(f"{stem}_" if stem in taken else stem, tuple(shape), dtype)

        def only(index: Index) -> Expr:
            return result(name, index, kind_of(dtype))

        self.program.kernels.append(Kernel(name, core, buffer, epilogue or only, operators))
        return buffer
