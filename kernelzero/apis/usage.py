"""Which `nn` modules a source file builds but never calls in `forward`: best effort, by following names.

Built modules are followed through local variables, lists, containers, `self` attributes, helper functions and classes
of the same file, from `Model.forward` (or every class, if none is called Model) into what it calls. Where the code
looks its modules up dynamically (`getattr`, `children()`, a class with no `forward` of its own) everything it holds is
taken to be used: the answer errs towards "used". Holding a module only for its weights (`self.lin.weight`) is no use.
Conditions are not evaluated, and a result that is computed and thrown away is taken as a use: that is for a gate that
runs the module.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kernelzero.apis.names import resolved_calls

_ADDERS = ("append", "extend", "insert", "add", "update", "setdefault", "add_module", "register_module")
_DYNAMIC = ("children", "modules", "named_children", "named_modules", "_modules", "get_submodule")
_WEIGHT_LIKE = ("weight", "bias", "running_", "in_", "out_", "num_", "kernel_size", "stride", "padding", "training")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_EVERYTHING = "*"
"""Attribute that stands for modules whose name is not known."""


def constructed_modules_unused(tree: ast.AST) -> set[str]:
    """Canonical names of `nn` modules that are built somewhere in `tree` and of which no instance is ever used."""
    built = {id(call): name for name, call in resolved_calls(tree) if _is_module(name)}
    return set(built.values()) - _File(tree, built).used()


def _is_module(name: str) -> bool:
    return name.startswith("nn.") and name.count(".") == 1 and name[3].isupper() and name not in _NO_MODULES


_NO_MODULES = ("nn.Parameter", "nn.Buffer")


@dataclass
class _Scope:
    """What a class, or the file itself, holds: name → tokens, a token being an API or a definition of the file."""

    methods: dict[str, _Function] = field(default_factory=dict)
    attributes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    everything: set[str] = field(default_factory=set)


class _File:
    """One file's definitions and the flow of built modules between its names."""

    def __init__(self, tree: ast.AST, built: dict[int, str]) -> None:
        self.built = built
        self.classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
        methods = {id(m) for c in self.classes.values() for m in c.body}
        functions = (n for n in ast.walk(tree) if isinstance(n, _Function))
        self.functions = {n.name: n for n in functions if id(n) not in methods}
        self.locals: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.returned: dict[str, set[str]] = defaultdict(set)
        self.globals: dict[str, set[str]] = defaultdict(set)
        self.scopes = {name: self._scope(node, set()) for name, node in self.classes.items()}
        self._flow(tree)

    def _scope(self, node: ast.ClassDef, seen: set[str]) -> _Scope:
        scope = _Scope()
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes and base.id not in seen | {node.name}:
                scope.methods.update(self._scope(self.classes[base.id], seen | {node.name}).methods)
        scope.methods.update({n.name: n for n in node.body if isinstance(n, _Function)})
        return scope

    # Where modules go

    def _flow(self, tree: ast.AST) -> None:
        """Repeat the assignments until no name holds more than before."""
        before = -1
        while before != (before := self._size()):
            for statement in getattr(tree, "body", []):
                if not isinstance(statement, (_Function, ast.ClassDef)):
                    self._statement(statement, self.globals, None)
            for function in self.functions.values():
                self._body(function, None)
            for scope in self.scopes.values():
                for method in scope.methods.values():
                    self._body(method, scope)

    def _size(self) -> int:
        held = [*self.locals.values(), self.globals, self.returned, *(s.attributes for s in self.scopes.values())]
        return sum(len(tokens) for names in held for tokens in names.values())

    def _body(self, function: _Function, scope: _Scope | None) -> None:
        for statement in function.body:
            self._statement(statement, self.locals[id(function)], scope)
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                self.returned[function.name] |= self._tokens(node.value, self.locals[id(function)], scope)
        if scope is not None:
            scope.everything |= self._tokens(function, self.locals[id(function)], scope)

    def _statement(self, statement: ast.AST, names: dict[str, set[str]], scope: _Scope | None) -> None:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._put(targets, self._tokens(node.value, names, scope), names, scope)
            elif isinstance(node, (ast.For, ast.comprehension)):
                self._put([node.target], self._tokens(node.iter, names, scope), names, scope)
            elif isinstance(node, ast.Call):
                self._add(node, names, scope)

    def _put(
        self, targets: Iterable[ast.expr], tokens: set[str], names: dict[str, set[str]], scope: _Scope | None
    ) -> None:
        for target in targets:
            while isinstance(target, (ast.Subscript, ast.Starred)):
                target = target.value
            if isinstance(target, (ast.Tuple, ast.List)):
                self._put(target.elts, tokens, names, scope)
            elif isinstance(target, ast.Name) and tokens:
                names[target.id] |= tokens
            elif scope is not None and tokens and (attribute := _self_attribute(target)):
                scope.attributes[attribute] |= tokens

    def _add(self, call: ast.Call, names: dict[str, set[str]], scope: _Scope | None) -> None:
        """`layers.append(m)`, `self.layers.append(m)`, `self.add_module("a", m)`, `setattr(self, "a", m)`."""
        arguments = [*call.args, *(k.value for k in call.keywords)]
        if isinstance(call.func, ast.Name) and call.func.id == "setattr" and scope is not None:
            scope.attributes[_EVERYTHING] |= self._all_tokens(arguments, names, scope)
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _ADDERS:
            tokens = self._all_tokens(arguments, names, scope)
            if isinstance(call.func.value, ast.Name) and call.func.value.id == "self" and scope is not None:
                scope.attributes[_constant(arguments) or _EVERYTHING] |= tokens
            else:
                self._put([call.func.value], tokens, names, scope)

    def _all_tokens(self, nodes: Iterable[ast.AST], names: dict[str, set[str]], scope: _Scope | None) -> set[str]:
        return set().union(*(self._tokens(node, names, scope) for node in nodes))

    def _tokens(self, root: ast.AST, names: dict[str, set[str]], scope: _Scope | None) -> set[str]:
        """What an expression may hold: modules it builds, names it reads, results of functions it calls."""
        tokens: set[str] = set()
        for node in ast.walk(root):
            if id(node) in self.built:
                tokens.add(self.built[id(node)])
            elif isinstance(node, ast.Name) and _is_read(node):
                tokens |= self._name(node.id, names)
            elif scope is not None and (attribute := _self_attribute(node)):
                tokens |= scope.attributes[attribute] if _is_read(node) else set()
                tokens |= self.returned[attribute] if attribute in scope.methods else set()
        return tokens

    def _name(self, name: str, names: dict[str, set[str]]) -> set[str]:
        if name in names:
            return names[name]
        if name in self.classes:
            return {f"class {name}"}
        return self.returned[name] | {f"def {name}"} if name in self.functions else self.globals.get(name, set())

    # What is used

    def used(self) -> set[str]:
        """Tokens reached from the forward of the entry classes."""
        entries = ["Model"] if "Model" in self.classes else list(self.classes)
        waiting, reached = [f"class {name}" for name in entries], set()
        while waiting:
            token = waiting.pop()
            if token not in reached:
                reached.add(token)
                waiting += self._uses(token)
        return reached

    def _uses(self, token: str) -> set[str]:
        kind, _, name = token.partition(" ")
        if kind == "class":
            return self._class_uses(self.scopes[name])
        return self._function_uses(self.functions[name], None)[0] if kind == "def" else set()

    def _class_uses(self, scope: _Scope) -> set[str]:
        waiting: list[str] = [name for name in ("forward", "__call__") if name in scope.methods]
        if not waiting:
            return scope.everything
        uses: set[str] = set()
        seen: set[str] = set()
        while waiting:
            method = waiting.pop()
            if method not in seen:
                seen.add(method)
                tokens, called = self._function_uses(scope.methods[method], scope)
                uses |= tokens
                waiting += called
        return uses

    def _function_uses(self, function: _Function, scope: _Scope | None) -> tuple[set[str], list[str]]:
        """Tokens that a body uses, and the methods of its own class that it reaches."""
        names, uses, called = self.locals[id(function)], set(), []
        for node in _read(function):
            if id(node) in self.built:
                uses.add(self.built[id(node)])
            elif isinstance(node, ast.Name):
                uses |= scope.everything if scope and node.id in ("getattr", "super") else self._name(node.id, names)
            elif scope is not None and (attribute := _self_attribute(node)):
                uses |= scope.everything if attribute in _DYNAMIC else scope.attributes[attribute]
                called += [attribute] if attribute in scope.methods and attribute != "__init__" else []
        return uses, called


def _self_attribute(node: ast.AST) -> str | None:
    """The a of `self.a`, else None."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_own and isinstance(node, ast.Attribute) else None


def _is_read(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


def _constant(arguments: list[ast.expr]) -> str | None:
    first = arguments[0] if arguments else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _read(root: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a body that use what they name.

    Left out: statements that only mention or build (`self.act`, `nn.ReLU()`), the value of a plain assignment to a
    name where it only builds or renames (its use is where the name is read), and modules held for their weights.
    """
    for node in ast.iter_child_nodes(root):
        if isinstance(node, (ast.Expr, ast.Assign)) and _only_names(node):
            value = node.value
            parts = [*value.args, *(k.value for k in value.keywords)] if isinstance(value, ast.Call) else []
            for part in parts:
                yield from _read(ast.Expression(part))
        elif isinstance(node, ast.Attribute) and node.attr.startswith(_WEIGHT_LIKE) and _self_attribute(node) is None:
            yield from _read(ast.Expression(node.value.value)) if isinstance(node.value, ast.Subscript) else ()
        else:
            if not isinstance(node, (ast.Name, ast.Attribute)) or _is_read(node):
                yield node
            yield from _read(node)


def _only_names(node: ast.Expr | ast.Assign) -> bool:
    """Whether a statement only mentions a name or builds a module, without calling what it built."""
    value = node.value
    if isinstance(node, ast.Assign) and not all(isinstance(target, ast.Name) for target in node.targets):
        return False
    if isinstance(value, ast.Call):
        return _is_class_name(value.func)
    return isinstance(value, (ast.Name, ast.Attribute))


def _is_class_name(function: ast.expr) -> bool:
    leaf = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return bool(leaf) and leaf[0].isupper()
