"""Canonical API names, and which APIs a piece of source calls.

`canonical` maps every spelling to the catalogue's: `nn.ReLU`, `torch.relu`, `torch.nn.functional.relu`,
`torch.linalg.norm`. `called_apis` reads an AST and finds every call of an API through imports, aliases, assignments,
`self` attributes, `functools.partial` and `getattr` with a constant name; names shadowed by parameters, local variables
or definitions do not count.

It does not follow data: functions kept in lists or dicts, chosen by a conditional or passed as arguments are not seen,
methods of tensors (`x.relu()`) and operators (`a @ b`) are not APIs, and a call in code that never runs still counts.
"""

from __future__ import annotations

import ast
from functools import lru_cache

FUNCTIONAL = "torch.nn.functional"


def canonical(name: str) -> str:
    """The catalogue's spelling of a dotted name: `F.relu` → `torch.nn.functional.relu`, `torch.nn.ReLU` → `nn.ReLU`.

    A name that is no API of torch comes back unchanged.
    """
    parts = name.split(".")
    if "torch" in parts[1:]:  # F.torch.cat, torch.sparse.torch.eye: a module reached through another one
        parts = parts[len(parts) - 1 - parts[::-1].index("torch") :]
    if parts[0] == "F":
        parts = [*FUNCTIONAL.split("."), *parts[1:]]
    if parts[:2] == ["torch", "nn"]:
        parts = parts[1:]
    if parts[:2] == ["torch", "functional"]:
        parts = ["torch", *parts[2:]]
    return ".".join(_canonical_nn(parts) if parts[0] == "nn" else parts)


def _canonical_nn(parts: list[str]) -> list[str]:
    if parts[1:2] == ["functional"]:
        return ["torch", *parts]
    if parts[1:2] in (["modules"], ["parameter"]) and len(parts) > 2 and parts[-1][:1].isupper():
        return ["nn", parts[-1]]
    return parts


def short(name: str) -> str:
    """The counts file's spelling: `torch.nn.functional.relu` → `F.relu`; other names unchanged."""
    return "F" + name[len(FUNCTIONAL) :] if name.startswith(FUNCTIONAL + ".") else name


def called_apis(tree: ast.AST) -> dict[str, list[ast.Call]]:
    """Canonical name → the calls of it, for every call in `tree` of a name that leads into torch.

    Building a module (`nn.ReLU()`) is a call of its class; whether the module is then used in `forward` is told by
    `usage.constructed_modules_unused`. Names outside the catalogue (`torch.zeros`) are included: filter by membership.
    """
    found: dict[str, list[ast.Call]] = {}
    for name, call in resolved_calls(tree):
        found.setdefault(name, []).append(call)
    return found


def resolved_calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """(canonical name, call) of every call that leads into torch, in source order."""
    resolver = Resolver()
    resolver.run(tree)
    return sorted(resolver.calls, key=lambda item: (getattr(item[1], "lineno", 0), getattr(item[1], "col_offset", 0)))


class _Scope(dict[str, "str | None"]):
    """Name → the dotted name it stands for, or None where it stands for something else."""

    is_class = False


class Resolver(ast.NodeVisitor):
    """One pass over a file with Python's scopes; bodies of functions after their surroundings, as at run time."""

    def __init__(self) -> None:
        """An empty module scope."""
        self.calls: list[tuple[str, ast.Call]] = []
        self.bases: dict[ast.ClassDef, list[str]] = {}
        """Dotted names of each class's bases; a name without a dot for a class of the same file."""
        self.class_calls: dict[ast.ClassDef, set[str]] = {}
        """Canonical names called anywhere in each class, nested ones included."""
        self._scopes: list[_Scope] = [_Scope()]
        self._stars: list[str] = []
        self._deferred: list[tuple[list[ast.AST], list[_Scope], list[ast.ClassDef]]] = []
        self._classes: list[ast.ClassDef] = []
        self._attributes: dict[ast.ClassDef, dict[str, str | None]] = {}

    def run(self, tree: ast.AST) -> None:
        """Visit `tree`, then the bodies of its functions, those of constructors first (they set attributes)."""
        self.visit(tree)
        while self._deferred:
            nodes, self._scopes, self._classes = self._deferred.pop(0)
            for node in nodes:
                self.visit(node)

    def dotted(self, node: ast.AST) -> str | None:
        """The dotted name that an expression stands for, or None."""
        if isinstance(node, ast.Name):
            return self._lookup(node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and self._classes:
                return self._attributes.get(self._classes[-1], {}).get(node.attr)
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else None
        return self._dotted_call(node) if isinstance(node, ast.Call) else None

    def _dotted_call(self, node: ast.Call) -> str | None:
        """`functools.partial(f, …)` stands for f, `getattr(m, "name")` for m.name."""
        function = self.dotted(node.func)
        if function == "functools.partial" and node.args:
            return self.dotted(node.args[0])
        if function == "builtins.getattr" and len(node.args) >= 2:
            name, base = node.args[1], self.dotted(node.args[0])
            if base and isinstance(name, ast.Constant) and isinstance(name.value, str):
                return f"{base}.{name.value}"
        return None

    def _lookup(self, name: str) -> str | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return self._from_star(name) or ("builtins.getattr" if name == "getattr" else None)

    def _from_star(self, name: str) -> str | None:
        for module in reversed(self._stars):
            if canonical(f"{module}.{name}") in _star_names():
                return f"{module}.{name}"
        classes = [m for m in self._stars if canonical(m + ".X") == "nn.X" and name in _NN_PLUMBING]
        return f"{classes[-1]}.{name}" if classes else None

    # Bindings

    def visit_Import(self, node: ast.Import) -> None:
        """`import a.b` binds a; `import a.b as c` binds c to a.b."""
        for alias in node.names:
            root = alias.name.split(".")[0]
            self._scopes[-1][alias.asname or root] = alias.name if alias.asname else root

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from m import a as b`, and stars; relative modules keep their leading dots."""
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self._stars.append(module)
            else:
                self._scopes[-1][alias.asname or alias.name] = f"{module}.{alias.name}"

    def visit_Assign(self, node: ast.Assign) -> None:
        """`relu = F.relu`, `self.act = F.relu`, `a, b = F.relu, F.gelu`."""
        self.visit(node.value)
        for target in node.targets:
            self._bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """As an assignment, where there is a value."""
        if node.value is not None:
            self.visit(node.value)
            self._bind(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """As an assignment."""
        self.visit(node.value)
        self._bind(node.target, node.value)

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self._scopes[-1][target.id] = self.dotted(value) if value is not None else None
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._bind_many(target.elts, value)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(target, value)
            self.visit(target.value)
        else:
            self.visit(target)

    def _bind_many(self, targets: list[ast.expr], value: ast.expr | None) -> None:
        values: list[ast.expr] | None = value.elts if isinstance(value, (ast.Tuple, ast.List)) else None
        matched = values is not None and len(values) == len(targets)
        for index, target in enumerate(targets):
            self._bind(target, values[index] if matched and values is not None else None)

    def _bind_attribute(self, target: ast.Attribute, value: ast.expr | None) -> None:
        if isinstance(target.value, ast.Name) and target.value.id == "self" and self._classes and value is not None:
            self._attributes.setdefault(self._classes[-1], {})[target.attr] = self.dotted(value)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """The loop's variable stands for nothing known."""
        self._bind(node.target, None)
        self.generic_visit(node)

    visit_AsyncFor = visit_For

    def visit_withitem(self, node: ast.withitem) -> None:
        """`with … as x` binds x."""
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._bind(node.optional_vars, None)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """`except … as e` binds e; `RMSNorm = None` after a failed import does not hide the import that worked."""
        before = dict(self._scopes[-1])
        if node.name:
            self._scopes[-1][node.name] = None
        self.generic_visit(node)
        self._scopes[-1].update({name: dotted for name, dotted in before.items() if dotted})

    # Scopes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Decorators and defaults now, the body later."""
        self._scopes[-1][node.name] = None
        for outer in [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)]:
            self.visit(outer)
        self._defer(list(node.body), node.args, first=node.name == "__init__")

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """As a function of one expression."""
        for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]:
            self.visit(default)
        self._defer([node.body], node.args)

    def _defer(self, body: list[ast.AST], arguments: ast.arguments, first: bool = False) -> None:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        local = _Scope({a.arg: None for a in every if a is not None})
        # A class's own names are not visible in its methods.
        outer = [s for s in self._scopes if not s.is_class]
        self._deferred.insert(0 if first else len(self._deferred), (body, [*outer, local], list(self._classes)))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """The body runs at once in a scope of its own; its assignments are also attributes of `self`."""
        self._scopes[-1][node.name] = None
        self.bases[node] = [name for name in map(self._base, node.bases) if name]
        for outer in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            self.visit(outer)
        scope = _Scope()
        scope.is_class = True
        self._scopes.append(scope)
        self._classes.append(node)
        self.class_calls.setdefault(node, set())
        for statement in node.body:
            self.visit(statement)
        self._attributes.setdefault(node, {}).update(scope)
        self._classes.pop()
        self._scopes.pop()

    def _base(self, node: ast.expr) -> str | None:
        return self.dotted(node) or (node.id if isinstance(node, ast.Name) else None)

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self._scopes.append(_Scope())
        for generator in node.generators:
            self._bind(generator.target, None)
        self.generic_visit(node)
        self._scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    # Calls

    def visit_Call(self, node: ast.Call) -> None:
        """Record a call that leads into torch."""
        name = self.dotted(node.func)
        if name and name.split(".")[0] == "torch":
            self.calls.append((canonical(name), node))
            for outer in self._classes:
                self.class_calls[outer].add(canonical(name))
        self.generic_visit(node)


_NN_PLUMBING = ("Module", "Sequential", "ModuleList", "ModuleDict", "Parameter", "ParameterList", "Identity")


@lru_cache(maxsize=1)
def _star_names() -> frozenset[str]:
    """Names that a star import is known to bring: those of the counts file, constructors included."""
    from kernelzero.apis.catalogue import load_catalogue
    from kernelzero.apis.operators import CONSTRUCTORS

    return frozenset(load_catalogue().apis) | CONSTRUCTORS
