"""From a module's source to a small graph of rulebook operators, through torch.fx.

The module is executed here, in this process: give it modules of our own composer or others that are trusted. Shapes
come from running the graph once on `get_inputs()`. What is not in the tables of `operators.py` is refused by name.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from kernelzero.coldstart.rulebook.operators import OPERANDS, CannotWrite, functions, modules


@dataclass(eq=False)
class Node:
    """One value of the graph."""

    name: str
    op: str
    """"input", "param" or an operator of `operators.py`."""
    shape: tuple[int, ...]
    dtype: str = "float32"
    operands: dict[str, Any] = field(default_factory=dict)
    """Argument name → Node or plain number."""
    attrs: dict[str, Any] = field(default_factory=dict)
    access: str = ""
    """For inputs and parameters: the Python expression inside `forward`, e.g. "self.linear.weight"."""
    contiguous: bool = True

    @property
    def sources(self) -> list[Node]:
        """The operands that are values of the graph."""
        return [value for value in self.operands.values() if isinstance(value, Node)]

    @property
    def is_leaf(self) -> bool:
        """Whether it is read from memory and not computed."""
        return self.op in ("input", "param")


@dataclass(frozen=True)
class Graph:
    """A module as the rulebook sees it."""

    inputs: tuple[Node, ...]
    """All inputs of `forward`, in order."""
    nodes: tuple[Node, ...]
    """Computed values in execution order, dead ones removed."""
    output: Node
    init: tuple[str, ...]
    """Source lines of `__init__` without modules that hold no weights; empty where nothing is left."""


def load(source: str) -> dict[str, Any]:
    """Execute a trusted module's source and return its namespace."""
    namespace: dict[str, Any] = {"__name__": "kernelzero_module"}
    exec(compile(source, "<module>", "exec"), namespace)
    return namespace


def read(source: str) -> Graph:
    """Trace a module. Raises CannotWrite for calls, shapes or outputs that the rulebook does not know."""
    import torch
    from torch.fx import Tracer

    namespace = load(source)
    state = torch.get_rng_state()
    try:
        model = namespace["Model"](*namespace["get_init_inputs"]()).eval()
        inputs = namespace["get_inputs"]()
    finally:
        torch.set_rng_state(state)
    reader = _Reader(model, inputs)
    with torch.no_grad():
        try:
            traced = Tracer().trace(model)
        except torch.fx.proxy.TraceError as error:
            raise CannotWrite(f"control flow that depends on data: {str(error).splitlines()[0]}") from error
        for fx_node in traced.nodes:
            reader.visit(fx_node)
    return Graph(tuple(reader.inputs), tuple(_live(reader)), reader.output, tuple(_init_lines(source, model)))


def _live(reader: _Reader) -> list[Node]:
    needed: set[int] = {id(reader.output)}
    for node in reversed(reader.nodes):
        if id(node) in needed:
            needed.update(id(source) for source in node.sources)
    return [node for node in reader.nodes if id(node) in needed]


class _Reader:
    """Walks the fx nodes once: runs each on the example and notes the rulebook's own node for it."""

    def __init__(self, model: Any, inputs: list[Any]) -> None:
        self.model, self._examples = model, list(inputs)
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []
        self.output: Node
        self._values: dict[Any, Any] = {}
        self._known: dict[Any, Any] = {}

    def visit(self, fx_node: Any) -> None:
        getattr(self, f"_{fx_node.op}")(fx_node)

    def _placeholder(self, fx_node: Any) -> None:
        if not self._examples:
            raise CannotWrite(f"argument {fx_node.target} of forward has no example input")
        value = self._examples.pop(0)
        node = self._leaf(fx_node.target, "input", value, fx_node.target)
        self.inputs.append(node)
        self._values[fx_node], self._known[fx_node] = value, node

    def _get_attr(self, fx_node: Any) -> None:
        value: Any = self.model
        for part in fx_node.target.split("."):
            value = getattr(value, part)
        self._values[fx_node] = value
        self._known[fx_node] = self._leaf(fx_node.target.replace(".", "_"), "param", value, f"self.{fx_node.target}")

    def _leaf(self, name: str, op: str, value: Any, access: str) -> Node:
        import torch

        if not isinstance(value, torch.Tensor):
            raise CannotWrite(f"{name} is not a tensor")
        if value.dtype != torch.float32:
            raise CannotWrite(f"{name} has dtype {str(value.dtype)[6:]}; the rulebook knows float32")
        return Node(name, op, tuple(value.shape), access=access, contiguous=value.is_contiguous())

    def _concrete(self, argument: Any) -> Any:
        from torch.fx.node import map_arg

        return map_arg(argument, lambda n: self._values[n])

    def _call_function(self, fx_node: Any) -> None:
        value = fx_node.target(*self._concrete(fx_node.args), **self._concrete(fx_node.kwargs))
        self._values[fx_node] = value
        if self._is_plain(fx_node, value):
            return
        picked = self._picked(fx_node)
        if picked is not None:
            self._known[fx_node] = picked
            return
        self._note(fx_node, fx_node.target, value)

    def _call_method(self, fx_node: Any) -> None:
        import torch

        first, *rest = self._concrete(fx_node.args)
        value = getattr(first, fx_node.target)(*rest, **self._concrete(fx_node.kwargs))
        self._values[fx_node] = value
        if self._is_plain(fx_node, value):
            return
        if fx_node.target == "contiguous":
            self._known[fx_node] = self._known[fx_node.args[0]]
            return
        self._note(fx_node, getattr(torch, fx_node.target, fx_node.target), value)

    def _is_plain(self, fx_node: Any, value: Any) -> bool:
        """Sizes and the like: known from the example, no operator of their own."""
        import torch

        plain = not isinstance(value, torch.Tensor) and not hasattr(value, "values")
        if plain:
            self._known[fx_node] = value
        return plain

    def _picked(self, fx_node: Any) -> Node | None:
        """`torch.max(x, dim=1)[0]` and `.values` are the value itself."""
        import operator

        if fx_node.target not in (operator.getitem, getattr):
            return None
        source, key = fx_node.args[0], fx_node.args[1]
        node = self._known.get(source)
        if isinstance(node, Node) and node.op in ("max", "min") and key in (0, "values"):
            return node
        raise CannotWrite(f"{'indexing' if fx_node.target is operator.getitem else key} is not in the rulebook")

    def _note(self, fx_node: Any, target: Any, value: Any) -> None:
        row = functions().get(target) if callable(target) else None
        if row is None:
            raise CannotWrite(f"{_spelled(target)} is not in the rulebook")
        op, names = row
        if len(fx_node.args) > len(names):
            raise CannotWrite(f"{_spelled(target)} with {len(fx_node.args)} arguments is not in the rulebook")
        bound = dict(zip(names, fx_node.args, strict=False)) | {_renamed(k): v for k, v in fx_node.kwargs.items()}
        self._add(fx_node, op, {key: self._resolve(argument) for key, argument in bound.items()}, value)

    def _call_module(self, fx_node: Any) -> None:
        module = self.model.get_submodule(fx_node.target)
        row = modules().get(type(module))
        if row is None:
            raise CannotWrite(f"nn.{type(module).__name__} is not in the rulebook")
        value = module(*self._concrete(fx_node.args), **self._concrete(fx_node.kwargs))
        self._values[fx_node] = value
        op, attributes = row
        bound = dict(zip(("x", "y"), (self._resolve(a) for a in fx_node.args), strict=False))
        bound |= {name: getattr(module, name) for name in attributes}
        for short, weight in (("w", "weight"), ("b", "bias")):
            parameter = getattr(module, weight, None)
            if parameter is not None:
                name = f"{fx_node.target}_{short}".replace(".", "_")
                bound[short] = self._leaf(name, "param", parameter, f"self.{fx_node.target}.{weight}")
        self._add(fx_node, op, bound, value)

    def _resolve(self, argument: Any) -> Any:
        from torch.fx.node import Node as FxNode

        if isinstance(argument, FxNode):
            return self._known[argument]
        return self._concrete(argument)

    def _add(self, fx_node: Any, op: str, bound: dict[str, Any], value: Any) -> None:
        value = value if hasattr(value, "shape") else value[0]
        operands = {key: item for key, item in bound.items() if key in OPERANDS and item is not None}
        attrs = {key: item for key, item in bound.items() if key not in OPERANDS}
        dtype = str(value.dtype).removeprefix("torch.")
        node = Node(fx_node.name, op, tuple(value.shape), dtype, operands, attrs)
        self.nodes.append(node)
        self._known[fx_node] = node

    def _output(self, fx_node: Any) -> None:
        node = self._known.get(fx_node.args[0]) if not isinstance(fx_node.args[0], tuple | list | dict) else None
        if not isinstance(node, Node) or node.is_leaf:
            raise CannotWrite("an output that is not one computed tensor")
        self.output = node


def _renamed(keyword: str) -> str:
    return {"input": "x", "other": "y", "condition": "cond", "weight": "w", "bias": "b", "correction": "unbiased",
            "x1": "x", "x2": "y", "axis": "dim", "mat2": "w"}.get(keyword, keyword)  # fmt: skip


def _spelled(target: Any) -> str:
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", "") or "torch"
    return f"{'F' if module.endswith('functional') else module.split('.')[0].lstrip('_')}.{name}"


def _init_lines(source: str, model: Any) -> list[str]:
    """The lines of `__init__`, without those that assign a module that holds no weights and so is not needed."""
    lines = source.splitlines()
    tree = ast.parse(source)
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model")
    init = next((n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None:
        return []
    kept = [s for s in init.body if not _assigns_stateless(s, model)]
    if len(kept) == 1 and len(init.args.args) == 1:
        return []
    head = lines[init.lineno - 1 : init.body[0].lineno - 1]
    return head + [line for s in kept for line in lines[s.lineno - 1 : s.end_lineno]]


def _assigns_stateless(statement: ast.stmt, model: Any) -> bool:
    if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)):
        return False
    submodule = model._modules.get(statement.targets[0].attr)
    return submodule is not None and not submodule.state_dict()
