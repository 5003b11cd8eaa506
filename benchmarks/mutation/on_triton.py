"""Mutation operators for Triton candidates, on Python's syntax tree.

Faults are put into `@triton.jit` functions (masks, indices, arithmetic, reductions) and into the launches (grids, order
of arguments). Each edit replaces one node by text, so the rest of the file stays as it was written. Not covered: faults
in numerical precision, which may be right, and faults of two places at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from mutation.edit import Edit

_TWINS = {
    "maximum": ("max_to_min", "minimum"),
    "minimum": ("max_to_min", "maximum"),
    "max": ("max_to_min", "min"),
    "argmax": ("max_to_min", "argmin"),
    "exp": ("function_replaced", "exp2"),
    "log": ("function_replaced", "log2"),
    "sqrt": ("function_replaced", "rsqrt"),
    "rsqrt": ("function_replaced", "sqrt"),
    "sigmoid": ("function_replaced", "exp"),
    "abs": ("function_replaced", "exp"),
    "erf": ("function_replaced", "exp"),
    "sum": ("function_replaced", "max"),
    "cumsum": ("function_replaced", "cumprod"),
}
_REDUCTIONS = {"sum", "max", "min", "argmax", "argmin", "dot", "cumsum"}
_BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_FLIPPED = {ast.Lt: ">", ast.LtE: ">=", ast.Gt: "<", ast.GtE: "<="}


def edits(source: str) -> Iterator[Edit]:
    """All edits of a Triton candidate, in order of the functions and of the nodes in them."""
    tree, text = ast.parse(source), _Text(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from _Kernel(text, node).edits() if _is_kernel(node) else _host(text, node)


def normal_form(source: str) -> str:
    """Equal for sources that differ in layout only; raises SyntaxError where the source does not parse."""
    return ast.dump(ast.parse(source))


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


class _Text:
    """Positions of nodes as offsets into the source."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, line: int, column_bytes: int) -> int:
        prefix = self.lines[line - 1].encode()[:column_bytes].decode()
        return self.starts[line - 1] + len(prefix)

    def edit(self, operator: str, node: Any, text: str) -> Edit:
        start = self.offset(node.lineno, node.col_offset)
        return Edit(operator, start, self.offset(node.end_lineno, node.end_col_offset), text)


def _show(node: ast.AST) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BinOp | ast.Compare | ast.UnaryOp | ast.BoolOp | ast.IfExp) else text


def _called(node: ast.AST) -> str:
    """`load` of `tl.load(…)`; "" where it is no call of an attribute."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return ""


class _Kernel:
    """Edits inside one jitted function."""

    def __init__(self, text: _Text, function: ast.FunctionDef) -> None:
        self.text, self.function = text, function
        body = [child for statement in function.body for child in ast.walk(statement)]
        self.nodes: list[Any] = [node for node in body if hasattr(node, "lineno")]
        self.index = self._under(lambda call: call.args[:1] if _called(call) in ("load", "store") else [])
        self.fixed = self._under(self._settings)
        # Without a reduction what a masked lane holds is masked again when it is stored: the mutant is equivalent.
        self.reduces = any(_called(node) in _REDUCTIONS for node in body)
        self.two_dimensional = any(isinstance(n, ast.Constant) and n.value is None for n in body)

    def _under(self, parts: Any) -> set[int]:
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        return {id(inner) for call in calls for part in parts(call) for inner in ast.walk(part)}

    @staticmethod
    def _settings(call: ast.Call) -> list[ast.expr]:
        """Arguments that are shapes, axes and the like: other faults than of arithmetic."""
        if _called(call) in ("zeros", "full", "arange", "program_id", "static_range"):
            return call.args + [k.value for k in call.keywords]
        return [k.value for k in call.keywords if k.arg in ("axis", "dtype", "input_precision", "allow_tf32", "other")]

    def edits(self) -> Iterator[Edit]:
        for node in self.nodes:
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                yield from self._compare(node)
            elif isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, ast.BinOp) and id(node) not in self.fixed:
                yield from self._index(node) if id(node) in self.index else self._arithmetic(node)
            elif isinstance(node, ast.Constant) and id(node) not in self.fixed:
                yield from self._constant(node)
            elif isinstance(node, ast.AugAssign):
                yield from self._accumulation(node)
            elif isinstance(node, ast.For):
                yield from self._loop(node)
            elif isinstance(node, ast.Assign):
                yield from self._start(node)
            elif isinstance(node, ast.Expr) and _called(node.value) == "store":
                yield self.text.edit("store_dropped", node, "pass")

    def _compare(self, node: ast.Compare) -> Iterator[Edit]:
        kind, left, right = type(node.ops[0]), _show(node.left), _show(node.comparators[0])
        if kind in _BOUNDARY:
            yield self.text.edit("comparison_boundary", node, f"({left} {_BOUNDARY[kind]} {right})")
            yield self.text.edit("comparison_flipped", node, f"({left} {_FLIPPED[kind]} {right})")
        if kind is ast.Lt and not isinstance(node.comparators[0], ast.Constant):
            yield self.text.edit("mask_off_by_one", node, f"({left} < {right} - 1)")

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        name = _called(node)
        if name in ("load", "store", "atomic_add"):
            yield from self._access(node, name)
        elif name in _TWINS and isinstance(node.func, ast.Attribute):
            operator, twin = _TWINS[name]
            owner = "tl" if name == "erf" else ast.unparse(node.func.value)
            yield self.text.edit(operator, node.func, f"{owner}.{twin}")
        elif name == "where":
            condition, yes, no = map(ast.unparse, node.args)
            yield self.text.edit("branches_swapped", node, f"tl.where({condition}, {no}, {yes})")
        elif name == "zeros":
            yield self.text.edit("reduction_start", node, f"({ast.unparse(node)} + 1)")
        elif name == "full":
            yield self.text.edit("reduction_start", node.args[1], "0.5")
        elif name == "program_id" and self._programs() > 1:
            axis = node.args[0] if node.args else node.keywords[0].value
            yield self.text.edit("wrong_program_axis", axis, str((int(ast.unparse(axis)) + 1) % 2))
        for keyword in node.keywords:
            if keyword.arg == "axis" and self.two_dimensional:
                yield self.text.edit("wrong_axis", keyword.value, str(1 - int(ast.unparse(keyword.value))))

    def _programs(self) -> int:
        return len({ast.unparse(n) for n in self.nodes if _called(n) == "program_id"})

    def _access(self, node: ast.Call, name: str) -> Iterator[Edit]:
        masked = [k for k in node.keywords if k.arg == "mask"]
        if masked:
            kept = [k for k in node.keywords if k.arg not in ("mask", "other")]
            bare = ast.Call(node.func, node.args, kept)
            yield self.text.edit("mask_dropped", node, ast.unparse(bare))
        for keyword in node.keywords:
            if keyword.arg == "other" and self.reduces:
                yield self.text.edit("padding_value", keyword.value, "0.25")
        yield self.text.edit("index_off_by_one", node.args[0], f"{ast.unparse(node.args[0])} + 1")
        if name == "atomic_add":
            yield self.text.edit("race", node.func, "tl.store")

    def _index(self, node: ast.BinOp) -> Iterator[Edit]:
        left, right = _show(node.left), _show(node.right)
        if isinstance(node.op, ast.Mult):
            yield self.text.edit("wrong_stride", node, f"{left} * ({right} - 1)")
        elif isinstance(node.op, ast.Add) and not ast.unparse(node.left).endswith("_ptr"):
            yield self.text.edit("index_term_dropped", node, left)
            yield self.text.edit("index_term_dropped", node, right)
        elif isinstance(node.op, ast.Mod | ast.FloorDiv):
            other = "//" if isinstance(node.op, ast.Mod) else "%"
            yield self.text.edit("division_for_remainder", node, f"({left} {other} {right})")

    def _arithmetic(self, node: ast.BinOp) -> Iterator[Edit]:
        left, right = _show(node.left), _show(node.right)
        if isinstance(node.op, ast.Add | ast.Sub):
            flipped = "-" if isinstance(node.op, ast.Add) else "+"
            yield self.text.edit("sign_flipped", node, f"({left} {flipped} {right})")
            yield self.text.edit("term_dropped", node, left)
            yield self.text.edit("term_dropped", node, right)
        if isinstance(node.op, ast.Sub | ast.Div):
            sign = "-" if isinstance(node.op, ast.Sub) else "/"
            yield self.text.edit("operands_swapped", node, f"({right} {sign} {left})")
        if isinstance(node.op, ast.Add) and isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult):
            a, b = _show(node.left.left), _show(node.left.right)
            yield self.text.edit("order_of_operations", node, f"({a} * ({b} + {right}))")
        if isinstance(node.op, ast.Div):
            yield self.text.edit("factor_dropped", node, left)
            if isinstance(node.right, ast.Name):
                yield self.text.edit("wrong_divisor", node, f"({left} / ({right} - 1))")
        if isinstance(node.op, ast.Mult):
            yield self.text.edit("factor_dropped", node, left)
            yield self.text.edit("factor_dropped", node, right)
        if isinstance(node.op, ast.Mod | ast.FloorDiv):
            other = "//" if isinstance(node.op, ast.Mod) else "%"
            yield self.text.edit("division_for_remainder", node, f"({left} {other} {right})")

    def _constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, float) and 1e-6 < abs(value) < 1e6:
            yield self.text.edit("wrong_constant", node, repr(value * 1.05))
        elif type(value) is int and value > 1:
            yield self.text.edit("wrong_constant", node, str(value + 1))

    def _accumulation(self, node: ast.AugAssign) -> Iterator[Edit]:
        target, value = ast.unparse(node.target), ast.unparse(node.value)
        if isinstance(node.op, ast.Add) and not target.endswith(("_ptr", "_ptrs")):
            yield self.text.edit("overwritten_sum", node, f"{target} = {value}")
            yield self.text.edit("sign_flipped", node, f"{target} -= {value}")
        yield self.text.edit("statement_dropped", node, "pass")

    def _loop(self, node: ast.For) -> Iterator[Edit]:
        if isinstance(node.iter, ast.Call) and node.iter.args:
            position = 0 if len(node.iter.args) == 1 else 1
            stop = node.iter.args[position]
            step = _show(node.iter.args[2]) if len(node.iter.args) == 3 else "1"
            yield self.text.edit("loop_short", stop, f"{_show(stop)} - {step}")
            if len(node.iter.args) == 3:
                yield self.text.edit("loop_late", node.iter.args[0], step)

    def _start(self, node: ast.Assign) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, ast.Constant) and value.value == 0.0 and isinstance(value.value, float):
            yield self.text.edit("reduction_start", value, "1.0")


def _host(text: _Text, function: ast.FunctionDef) -> Iterator[Edit]:
    """Faults of a launch: the grid and the arguments."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            yield from _grid(text, node.func.slice)
            yield from _swapped_arguments(text, node)
        elif _called(node) == "cdiv" and isinstance(node, ast.Call):
            numerator, denominator = map(_show, node.args)
            yield text.edit("missing_tail", node, f"max(1, {numerator} // {denominator})")
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            first, second = map(ast.unparse, node.value.elts)
            yield text.edit("outputs_swapped", node.value, f"{second}, {first}")


def _grid(text: _Text, grid: ast.expr) -> Iterator[Edit]:
    if isinstance(grid, ast.Tuple):
        for size in grid.elts:
            if ast.unparse(size) != "1":
                yield text.edit("grid_one_smaller", size, f"max(1, {ast.unparse(size)} - 1)")


def _swapped_arguments(text: _Text, call: ast.Call) -> Iterator[Edit]:
    for first, second in zip(call.args, call.args[1:], strict=False):
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            continue
        whole = ast.Tuple([first, second], ast.Load())
        start, end = text.edit("", first, ""), text.edit("", second, "")
        swapped = f"{ast.unparse(whole.elts[1])}, {ast.unparse(whole.elts[0])}"
        yield Edit("arguments_swapped", start.start, end.end, swapped)
