"""Identity of a module's or a kernel's text: equal where only names, layout, comments and docstrings differ.

Numbers count: the same chain with other shapes is another task. C++ in strings counts without comments and spaces.
"""

from __future__ import annotations

import ast
import re

_CXX_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CXX = re.compile(r"__global__|#include|torch::Tensor|at::Tensor")
_KEPT = {"self", "super", "forward", "__init__", "Model", "ModelNew", "get_inputs", "get_init_inputs"}


def text_form(source: str) -> str:
    """The normalised syntax tree, as text.

    Raises SyntaxError or ValueError where the source does not parse.
    """
    tree = ast.parse(source)
    return ast.dump(_Renamer(_bound(tree)).visit(tree))


def _bound(tree: ast.AST) -> set[str]:
    """Names that the file itself gives: variables, arguments, functions, classes, attributes of self."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names - _KEPT


class _Renamer(ast.NodeTransformer):
    """Gives the file's own names numbers in order of appearance, and drops docstrings."""

    def __init__(self, bound: set[str]) -> None:
        self._bound = bound
        self._numbers: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return self._numbers.setdefault(name, f"v{len(self._numbers)}") if name in self._bound else name

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Rename, then go down."""
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        for field in ("id", "attr", "arg", "name"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                setattr(node, field, self._name(value))
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """C++ without comments and spaces; a name in a string that the file gives, as it was renamed."""
        if isinstance(node.value, str) and _CXX.search(node.value):
            return ast.Constant(" ".join(_CXX_COMMENT.sub(" ", node.value).split()))
        return node
