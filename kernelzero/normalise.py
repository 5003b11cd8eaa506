"""The static dataflow of a PyTorch module, and the normal form by which two modules count as the same task.

Both come from the syntax tree alone: nothing is imported or run, so the source may be hostile. The normal form keeps
which operators are applied to which tensors and drops the rest: names, temporaries, comments, layout, shapes, numbers,
and the spelling of an operator (`nn.ReLU()(x)`, `F.relu(x)`, `torch.relu(x)` and `x.relu()` are one). It therefore errs
on one side: a training set that leaves out everything equal to a benchmark task also leaves out the same chain with
other shapes or another `dim`. What it does not see: algebra (`x + x` against `2 * x`, operand order), and what goes
on inside modules that the file defines itself.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

_OPERATORS = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "div", "MatMult": "matmul", "Pow": "pow", "Mod": "remainder",
    "FloorDiv": "floordivide", "USub": "neg", "Invert": "bitwisenot", "BitAnd": "bitwiseand", "BitOr": "bitwiseor",
    "BitXor": "bitwisexor", "Gt": "gt", "GtE": "ge", "Lt": "lt", "LtE": "le", "Eq": "eq", "NotEq": "ne", "Not": "not",
}  # fmt: skip
_SYNONYMS = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "truedivide": "div", "negative": "neg", "clip": "clamp",
    "swish": "silu", "greater": "gt", "less": "lt", "absolute": "abs", "hardtanh": "clamp", "mm": "matmul",
    "bmm": "matmul", "special.expit": "sigmoid", "expit": "sigmoid", "mT": "t", "T": "t", "transpose": "t",
}  # fmt: skip
OPERATOR_LABELS = frozenset(_OPERATORS.values()) | {"getitem", "setitem", "tuple", "if … else"}
"""Labels of nodes that come from syntax, not from a call: none of them is a name that the source chose."""
_NOT_TENSORS = {"size", "shape", "dim", "ndim", "numel", "device", "dtype", "training", "stride", "item"}
_MAX_INLINE_DEPTH = 8
_REGISTRATIONS = ("self.register_buffer", "self.register_parameter")
_Scope = dict[str, int | None]


@dataclass(frozen=True)
class Node:
    """One value in `forward`: an input, a parameter, the result of an operator, or the output."""

    id: int
    op: str
    """Canonical operator, e.g. "layernorm"; "input", "parameter" and "output" are the ends."""
    label: str
    """As the source spells it, e.g. "nn.LayerNorm"."""
    inputs: tuple[int, ...] = ()
    detail: str = ""
    """Arguments that are no tensors, as the source spells them, e.g. "dim=-1"."""


@dataclass(frozen=True)
class Dataflow:
    """The nodes of `forward` in order of evaluation, and the statements of control flow around them."""

    nodes: tuple[Node, ...]
    control: tuple[str, ...] = ()
    """E.g. ("for", "if"): such bodies are read once, as if they ran once."""


def canonical_operator(dotted: str) -> str:
    """One name for all spellings of an operator: "torch.nn.LogSoftmax" and "x.log_softmax" give "logsoftmax"."""
    last = dotted.rsplit(".", 1)[-1]
    if last in _SYNONYMS:
        return _SYNONYMS[last]
    plain = last.lower().replace("_", "")
    return _SYNONYMS.get(plain, plain)


@functools.lru_cache(maxsize=256)
def dataflow(source: str) -> Dataflow:
    """The dataflow of `Model.forward`.

    Raises SyntaxError where the source does not parse and ValueError where it has no `Model` with a `forward`.
    """
    tree = ast.parse(source)
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if model is None:
        raise ValueError("the source defines no class Model")
    return _Reader(tree, model).read()


@functools.lru_cache(maxsize=65536)
def normalised(source: str) -> str:
    """The normal form: operators over tensors, e.g. "gelu(linear(x0))"; equal for equal chains.

    Numbers, shapes and names are dropped. Raises as `dataflow` does.
    """
    flow = dataflow(source)
    texts: dict[int, str] = {}
    inputs = 0
    for node in flow.nodes:
        if node.op == "input":
            texts[node.id] = f"x{inputs}"
            inputs += 1
        else:
            arguments = ",".join(texts[i] for i in node.inputs)
            # A repeated sub-expression would double the text at each level, so long texts are named by their hash.
            texts[node.id] = _shortened(f"{node.op}({arguments})")
    used = texts[flow.nodes[-1].id]
    return ";".join([used, f"inputs={inputs}", *flow.control])


def is_held_out(source: str, tasks: Iterable[object]) -> bool:
    """Whether the source has the normal form of one of the tasks (anything with a `source`): keep it from training.

    Raises as `dataflow` does.
    """
    return normalised(source) in {normalised(task.source) for task in tasks}  # type: ignore[attr-defined]


def _shortened(text: str, limit: int = 2000) -> str:
    if len(text) <= limit:
        return text
    import hashlib

    return "#" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


@dataclass
class _Reader:
    """Walks `forward` and notes a node for every value; local names hold node ids, None is no tensor."""

    tree: ast.Module
    model: ast.ClassDef
    nodes: list[Node] = field(default_factory=list)
    control: list[str] = field(default_factory=list)
    depth: int = 0

    def __post_init__(self) -> None:
        self.aliases = _import_aliases(self.tree)
        self.methods = {n.name: n for n in self.model.body if isinstance(n, ast.FunctionDef)}
        self.members = _members(self.methods.get("__init__"))
        self.own_classes = {n.name for n in self.tree.body if isinstance(n, ast.ClassDef)}
        self.parameters: dict[str, int] = {}

    def read(self) -> Dataflow:
        forward = self.methods.get("forward")
        if forward is None:
            raise ValueError("class Model has no forward")
        arguments = forward.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)][1:]
        scope: _Scope = {name: self.add("input", name) for name in names}
        results = self.body(forward.body, scope)
        self.add("output", "output", _distinct(results))
        return Dataflow(tuple(self.nodes), tuple(self.control))

    def add(self, op: str, label: str, inputs: Iterable[int | None] = (), detail: str = "") -> int:
        known = tuple(i for i in inputs if i is not None)
        self.nodes.append(Node(len(self.nodes), op, label, known, detail))
        return self.nodes[-1].id

    # Statements

    def body(self, statements: list[ast.stmt], scope: _Scope) -> list[int]:
        results: list[int] = []
        for statement in statements:
            results += self.statement(statement, scope)
        return results

    def statement(self, node: ast.stmt, scope: _Scope) -> list[int]:
        if isinstance(node, ast.Return):
            return self.values(node.value, scope)
        if isinstance(node, ast.Assign):
            self.assign(node.targets, node.value, scope)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign([node.target], node.value, scope)
        elif isinstance(node, ast.AugAssign):
            self.bind(node.target, self.binary(node.op, [node.target, node.value], scope), scope)
        elif isinstance(node, ast.Expr):
            self.in_place(node.value, scope)
        elif isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
            return self.compound(node, scope)
        return []

    def compound(self, node: ast.stmt, scope: _Scope) -> list[int]:
        self.control.append(type(node).__name__.lower())
        bodies = [*getattr(node, "body", []), *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
        return self.body(bodies, scope)

    def assign(self, targets: list[ast.expr], value: ast.expr, scope: _Scope) -> None:
        for target in targets:
            both = (target, value)
            if all(isinstance(side, ast.Tuple | ast.List) for side in both) and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
                results = [self.value(part, scope) for part in value.elts]  # type: ignore[attr-defined]
                for part, result in zip(target.elts, results, strict=True):  # type: ignore[attr-defined]
                    self.bind(part, result, scope)
            else:
                self.bind(target, self.value(value, scope), scope)

    def bind(self, target: ast.expr, value: int | None, scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for index, part in enumerate(target.elts):
                self.bind(part, None if value is None else self.add("getitem", "getitem", [value], str(index)), scope)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            old = self.value(target.value, scope)
            scope[target.value.id] = self.add("setitem", "setitem", [old, value])

    def in_place(self, node: ast.expr, scope: _Scope) -> None:
        """A call whose result is dropped changes its receiver, if anything: `x.relu_()`."""
        result = self.value(node, scope)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            self.bind(node.func.value, result, scope)

    # Expressions

    def values(self, node: ast.expr | None, scope: _Scope) -> list[int]:
        """The tensors in an expression that may be a tuple, list or dictionary of them."""
        if isinstance(node, ast.Tuple | ast.List):
            return [found for part in node.elts for found in self.values(part, scope)]
        if isinstance(node, ast.Dict):
            return [found for part in node.values for found in self.values(part, scope)]
        if isinstance(node, ast.Starred):
            return self.values(node.value, scope)
        found = None if node is None else self.value(node, scope)
        return [] if found is None else [found]

    def value(self, node: ast.expr, scope: _Scope) -> int | None:
        if isinstance(node, ast.Name):
            return scope.get(node.id)
        if isinstance(node, ast.BinOp):
            return self.binary(node.op, [node.left, node.right], scope)
        if isinstance(node, ast.UnaryOp):
            return self.binary(node.op, [node.operand], scope)
        if isinstance(node, ast.Compare):
            return self.binary(node.ops[0], [node.left, *node.comparators], scope)
        if isinstance(node, ast.Call):
            return self.call(node, scope)
        if isinstance(node, ast.Attribute):
            return self.attribute(node, scope)
        if isinstance(node, ast.Subscript):
            inner = self.value(node.value, scope)
            return None if inner is None else self.add("getitem", "getitem", [inner], _text(node.slice))
        return self.other(node, scope)

    def other(self, node: ast.expr, scope: _Scope) -> int | None:
        if isinstance(node, ast.NamedExpr):
            self.bind(node.target, self.value(node.value, scope), scope)
            return scope.get(node.target.id)
        if isinstance(node, ast.IfExp):
            parts = self.values(node.body, scope) + self.values(node.orelse, scope)
            return self.add("ifexp", "if … else", parts) if parts else None
        parts = self.values(node, scope) if isinstance(node, ast.Tuple | ast.List | ast.Dict) else []
        return self.add("tuple", "tuple", parts) if parts else None

    def binary(self, operator: ast.AST, operands: list[ast.expr], scope: _Scope) -> int | None:
        inputs = [self.value(operand, scope) for operand in operands]
        if all(i is None for i in inputs):
            return None
        name = _OPERATORS.get(type(operator).__name__, type(operator).__name__.lower())
        plain = [_text(o) for o, i in zip(operands, inputs, strict=True) if i is None]
        return self.add(name, name, inputs, ", ".join(plain))

    def attribute(self, node: ast.Attribute, scope: _Scope) -> int | None:
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return self.parameter(node.attr)
        inner = self.value(node.value, scope)
        if inner is None or node.attr in _NOT_TENSORS:
            return None
        return self.add(canonical_operator(node.attr), "." + node.attr, [inner])

    def parameter(self, name: str) -> int | None:
        value = self.members.get(name)
        kind = _member_kind(value, self.aliases)
        if kind is None:
            return None
        if name not in self.parameters:
            self.parameters[name] = self.add("parameter", "self." + name)
        return self.parameters[name]

    def call(self, node: ast.Call, scope: _Scope) -> int | None:
        function = node.func
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        tensors = [found for argument in arguments for found in self.values(argument, scope)]
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
            return self.own_call(function.attr, node, tensors, scope)
        if isinstance(function, ast.Call):  # nn.ReLU()(x)
            return self.apply(function, tensors, scope)
        dotted = _dotted(function)
        head = dotted.split(".")[0] if dotted else ""
        if dotted and head not in scope and head != "self":
            return self.free_call(dotted, node, tensors, scope)
        if isinstance(function, ast.Attribute):
            return self.method_call(function, node, tensors, scope)
        return self.add("call", "call", tensors) if tensors else None

    def free_call(self, dotted: str, node: ast.Call, tensors: list[int], scope: _Scope) -> int | None:
        resolved = self.resolve(dotted)
        if not tensors and not resolved.startswith("torch."):
            return None
        return self.add(canonical_operator(resolved), _short(resolved), tensors, self.plain(node, scope))

    def method_call(self, function: ast.Attribute, node: ast.Call, tensors: list[int], scope: _Scope) -> int | None:
        receiver = self.value(function.value, scope)
        if (receiver is None and not tensors) or function.attr in _NOT_TENSORS:
            return None
        label = "." + function.attr
        return self.add(canonical_operator(function.attr), label, [receiver, *tensors], self.plain(node, scope))

    def own_call(self, name: str, node: ast.Call, tensors: list[int], scope: _Scope) -> int | None:
        if name in self.methods and self.depth < _MAX_INLINE_DEPTH:
            return self.inline(self.methods[name], node, scope)
        constructor = self.members.get(name)
        if isinstance(constructor, ast.Call):
            return self.apply(constructor, tensors, scope)
        return self.add("submodule", "self." + name, tensors)

    def inline(self, method: ast.FunctionDef, node: ast.Call, scope: _Scope) -> int | None:
        names = [a.arg for a in method.args.args][1:]
        inner: _Scope = dict.fromkeys(names)
        inner.update(zip(names, (self.value(a, scope) for a in node.args), strict=False))
        inner.update({k.arg: self.value(k.value, scope) for k in node.keywords if k.arg})
        self.depth += 1
        results = self.body(method.body, inner)
        self.depth -= 1
        return results[0] if len(results) == 1 else self.add("tuple", "tuple", results) if results else None

    def apply(self, constructor: ast.Call, tensors: list[int], scope: _Scope) -> int:
        """A submodule at work: its constructor names the operator; a Sequential is the chain of its parts."""
        resolved = self.resolve(_dotted(constructor.func) or "submodule")
        if canonical_operator(resolved) == "sequential":
            for part in constructor.args:
                if isinstance(part, ast.Call):
                    tensors = [self.apply(part, tensors, scope)]
            return tensors[0] if len(tensors) == 1 else self.add("sequential", "nn.Sequential", tensors)
        op = "submodule" if resolved in self.own_classes else canonical_operator(resolved)
        return self.add(op, _short(resolved), tensors, self.plain(constructor, {}))

    def plain(self, node: ast.Call, scope: _Scope) -> str:
        """The arguments that name no tensor, as text."""
        texts = [_text(a) for a in node.args if not _mentions(a, scope)]
        texts += [f"{k.arg or '**'}={_text(k.value)}" for k in node.keywords if not _mentions(k.value, scope)]
        return ", ".join(texts)

    def resolve(self, dotted: str) -> str:
        head, _, rest = dotted.partition(".")
        full = self.aliases.get(head, head)
        return f"{full}.{rest}" if rest else full


def _import_aliases(tree: ast.Module) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
    return aliases


def _members(init: ast.FunctionDef | None) -> dict[str, ast.expr]:
    """What `__init__` binds to `self`: attribute name → the expression; registered buffers and parameters too."""
    members: dict[str, ast.expr] = {}
    for node in ast.walk(init) if init else ():
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and _dotted(target.value) == "self":
                    members[target.attr] = node.value
        elif isinstance(node, ast.Call) and _dotted(node.func) in _REGISTRATIONS and node.args:
            members[str(getattr(node.args[0], "value", ""))] = node
    return members


def _member_kind(value: ast.expr | None, aliases: dict[str, str]) -> str | None:
    """ "parameter" for an attribute that holds a tensor, None for a number or a shape."""
    if not isinstance(value, ast.Call):
        return None
    dotted = _dotted(value.func) or ""
    head = aliases.get(dotted.split(".")[0], dotted.split(".")[0])
    return "parameter" if head.split(".")[0] in ("torch", "self") else None


def _dotted(node: ast.AST) -> str | None:
    """ "torch.nn.functional.relu" for an attribute chain on a name, None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def _short(resolved: str) -> str:
    for long, short in (("torch.nn.functional.", "F."), ("torch.nn.", "nn.")):
        if resolved.startswith(long):
            return short + resolved[len(long) :]
    return resolved


def _mentions(node: ast.AST, scope: _Scope) -> bool:
    return any(isinstance(n, ast.Name) and scope.get(n.id) is not None for n in ast.walk(node))


def _text(node: ast.AST, limit: int = 40) -> str:
    text = ast.unparse(node)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _distinct(values: list[int]) -> list[int]:
    return list(dict.fromkeys(values))
