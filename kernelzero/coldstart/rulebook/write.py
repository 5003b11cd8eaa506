"""The statements of a Triton kernel for a plan: names, loads, masks, one statement (or a few) an operator.

Variables follow the module's own: a value takes over the name of the operand that it replaces, so a chain that
reassigns `x` in the module reassigns `x` in the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelzero.coldstart.rulebook.graph import Node
from kernelzero.coldstart.rulebook.operators import CannotWrite
from kernelzero.coldstart.rulebook.plan import Kind, Plan, is_product, leaf_kind
from kernelzero.coldstart.rulebook.rules import ROW, attributes, number, pointwise

_FRESH = ("h", "g", "u", "v", "p", "q", "r", "s")


@dataclass(frozen=True)
class Space:
    """How a kernel walks the columns of one space."""

    index: str
    """Variable of the column numbers."""
    size: str
    """Variable of the width."""
    inside: str
    """Condition that a column exists."""


@dataclass(frozen=True)
class Layout:
    """How a kernel addresses rows and columns."""

    row: str
    """Variable of the row number or numbers; "" for flat elementwise kernels."""
    rows_inside: str
    """Condition that a row exists; "" where every program has exactly one row."""
    spaces: tuple[Space, ...]
    axis: str
    """Arguments of a reduction along the row."""
    other: str = ", other=0.0"


@dataclass
class Kernel:
    """The text of a kernel as it grows."""

    plan: Plan
    layout: Layout
    lines: list[str] = field(default_factory=list)
    pointers: dict[str, str] = field(default_factory=dict)
    """Pointer parameter → expression that `forward` passes for it."""
    indent: int = 1
    n: str = ""
    _space: Space = field(init=False)
    _names: dict[tuple[int, int], str] = field(default_factory=dict)
    _last: dict[tuple[int, int], int] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Find where each value is used for the last time."""
        for i, node in enumerate(self.plan.order):
            for source in node.sources:
                self._last[self._key(source, node)] = i
        self._last[(id(self.plan.graph.output), -1)] = len(self.plan.order)

    def _key(self, source: Node, user: Node) -> tuple[int, int]:
        return (id(source), self._space_read(user) if source.is_leaf else -1)

    def _space_read(self, user: Node) -> int:
        space = self.plan.space[id(user)]
        return space - 1 if is_product(user) else space

    # -- what row rules use -------------------------------------------------------------------------------------------

    def where(self, value: str, fill: str) -> str:
        """The value, with padding replaced."""
        return f"tl.where({self._space.inside}, {value}, {fill})"

    def reduce(self, function: str, value: str) -> str:
        """A reduction along the row."""
        return f"tl.{function}({value}, {self.layout.axis})"

    def scan(self, function: str, value: str) -> str:
        """A scan along the row."""
        return f"tl.{function}({value}, {self.layout.axis.split(',')[0]})"

    def vector(self, name: str) -> str:
        """The text of a loaded weight; operands are resolved before the rule runs."""
        return name

    def temporary(self) -> str:
        """A name that no living value has."""
        used = set(self._names.values()) | self._taken
        name = next((n for n in _FRESH if n not in used), None)
        if name is None:
            raise CannotWrite(f"more than {len(_FRESH)} values alive at once")
        self._taken.add(name)
        return name

    def put(self, name: str, expression: str) -> None:
        """Write one assignment."""
        self.line(f"{name} = {expression}")

    def line(self, text: str) -> None:
        """Write one line."""
        self.lines.append("    " * self.indent + text)

    # -- operators ----------------------------------------------------------------------------------------------------

    def write(self, position: int) -> None:
        """Write the operator at a position of the plan's order."""
        node = self.plan.order[position]
        self._enter(self._space_read(node))
        self._taken.clear()
        operands = {key: self._operand(value, node, key) for key, value in node.operands.items()}
        self._taken.update(text for text in operands.values() if text.isidentifier())
        name = self._result_name(node, position)
        self._taken.add(name)
        attrs = attributes(node.op, node.attrs)
        if node.op in ROW:
            ROW[node.op].write(self, name, operands, attrs)
        else:
            self.put(name, pointwise(node.op, operands, attrs))
        self._names[(id(node), -1)] = name

    def product(self, position: int) -> None:
        """Write a matrix product of a whole row: load the weight, multiply, add the bias."""
        node = self.plan.order[position]
        x = self.product_operand(node)
        weight = self.load_weight(node)
        self._enter(self.plan.space[id(node)])
        name = self._result_name(node, position)
        self.put(name, f'tl.dot({x}, {weight}, input_precision="ieee")')
        self.add_bias(node, name)
        self._names[(id(node), -1)] = name

    def product_operand(self, node: Node) -> str:
        """The left operand of a product, with zeros where its columns do not exist."""
        self._enter(self._space_read(node))
        x = self._operand(node.operands["x"], node, "x")
        if not (node.operands["x"].is_leaf or is_product(node.operands["x"])):
            self.put(x, self.where(x, "0.0"))
        return x

    def load_weight(self, node: Node) -> str:
        """Load a product's weight as [inner, outer], transposed on the way for nn.Linear."""
        inner, outer = self.layout.spaces[self._space_read(node)], self.layout.spaces[self.plan.space[id(node)]]
        weight = node.operands["w"]
        pointer, rows = self._pointer(weight), f"{inner.index}[:, None]"
        place = f"{rows} * {outer.size} + {outer.index}"
        if node.op == "linear":
            place = f"{outer.index} * {inner.size} + {rows}"
        name = "w" if "w" not in self._names.values() else self.temporary()
        self.put(name, f"tl.load({pointer} + {place}, mask=({rows} < {inner.size}) & ({outer.inside}), other=0.0)")
        return name

    def add_bias(self, node: Node, name: str) -> None:
        """Add a product's bias, where it has one."""
        if "b" in node.operands:
            self._enter(self.plan.space[id(node)])
            self.put(name, f"{name} + {self._load(node.operands['b'], Kind.VECTOR)}")

    def loop_done(self, node: Node) -> None:
        """After a loop: nothing loaded inside it is known any more, the product is what was accumulated."""
        name = node.operands["x"].name if node.operands["x"].is_leaf else self._names[(id(node.operands["x"]), -1)]
        self._names = {(id(node), -1): name}
        bias = ""
        if "b" in node.operands:
            self._enter(self.plan.space[id(node)])
            bias = f" + {self._load(node.operands['b'], Kind.VECTOR)}"
        self.put(name, f"acc{bias}")

    def store(self) -> None:
        """Write the output."""
        output = self.plan.graph.output
        name, space = self._names[(id(output), -1)], self.layout.spaces[self.plan.space[id(output)]]
        self._space = space
        place, mask = self._place(self.plan.kind[id(output)])
        self.line(f"tl.store(out_ptr + {place}, {name}{mask})")

    # -- operands -----------------------------------------------------------------------------------------------------

    def _enter(self, space: int) -> None:
        self._space = self.layout.spaces[space]
        self.n = self._space.size

    def _operand(self, value: Node | float, user: Node, key: str) -> str:
        if not isinstance(value, Node):
            return number(value)
        if is_product(user) and key != "x":
            return ""
        if not value.is_leaf:
            return self._names[(id(value), -1)]
        kind = leaf_kind(value, user)
        if kind is not Kind.TILE:
            return self._load(value, kind)
        return self._tile(value, user)

    def _tile(self, leaf: Node, user: Node) -> str:
        key = self._key(leaf, user)
        if leaf.shape[-1] != self.plan.width(key[1]):
            raise CannotWrite(f"{user.op} with {leaf.name} of another width")
        if key not in self._names:
            alive = set(self._names.values()) | self._taken
            name = leaf.name if leaf.name not in alive else self.temporary()
            self.put(name, self._load(leaf, Kind.TILE))
            self._names[key] = name
        return self._names[key]

    def _load(self, leaf: Node, kind: Kind) -> str:
        place, mask = self._place(kind)
        return f"tl.load({self._pointer(leaf)} + {place}{mask}{self.layout.other if mask else ''})"

    def _pointer(self, leaf: Node) -> str:
        if leaf.op == "param" and not leaf.contiguous:
            raise CannotWrite(f"{leaf.name} with strides")
        self.pointers.setdefault(f"{leaf.name}_ptr", leaf.access)
        return f"{leaf.name}_ptr"

    def _place(self, kind: Kind) -> tuple[str, str]:
        """Offset from the pointer, and the mask argument."""
        space, row, rows = self._space, self.layout.row, self.layout.rows_inside
        if kind is Kind.VECTOR or not row:
            return space.index, f", mask={space.inside}"
        if kind is Kind.SCALAR:
            return row, f", mask={rows}" if rows else ""
        mask = f"({rows}) & ({space.inside})" if rows else space.inside
        return f"{row} * {space.size} + {space.index}", f", mask={mask.replace('(mask)', 'mask')}"

    # -- names --------------------------------------------------------------------------------------------------------

    def _result_name(self, node: Node, position: int) -> str:
        """The name of an operand that ends here, or a fresh one; names of values that ended are given back."""
        ending: dict[str, Kind] = {}
        for source in node.sources:
            key = self._key(source, node)
            if key in self._names and self._last[key] == position:
                kind = Kind.TILE if source.is_leaf else self.plan.kind[id(source)]
                if source.dtype != "bool":
                    ending.setdefault(self._names[key], kind)
                del self._names[key]
        if node.dtype == "bool":
            return "cond"
        mine = self.plan.kind[id(node)]
        same = [n for n, kind in ending.items() if kind is mine]
        if same or (ending and mine is Kind.SCALAR):
            return (same or list(ending))[0]
        taken, self._taken = self._taken, set(self._names.values()) | self._taken
        name = self.temporary()
        self._taken = taken
        return name
