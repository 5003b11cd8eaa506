"""Which kernel computes a graph: what each value looks like on the chip and in which order values are computed.

Today one kernel computes the whole module, as all its operators work along the last dimension:

- "elementwise": every value depends on one element of each input; one program a block of elements.
- "row": reductions or vectors along the last dimension; one program one row, or several.
- "matmul": one or two matrix products. A *space* is a width that rows have on the way: the input's columns are space 0,
  each product opens the next one. Either a whole row of a space sits in one tile, or, where no operator before the
  product looks along the row, the inner dimension is walked in blocks.

Modules that need several kernels, and layouts other than rows by columns, are refused.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

from kernelzero.coldstart.rulebook.graph import Graph, Node
from kernelzero.coldstart.rulebook.operators import CannotWrite
from kernelzero.coldstart.rulebook.rules import ROW, is_pointwise

MAX_ROW = 4096
"""Longest row, in elements, that one program holds without a product."""
MAX_TILE = 128 * 128
"""Largest weight tile, in elements: 64 KiB of shared memory in float32."""


class Kind(enum.Enum):
    """What a value is to one row."""

    TILE = "tile"
    """One value per column."""
    SCALAR = "scalar"
    """One value."""
    VECTOR = "vector"
    """One value per column, the same for all rows."""


@dataclass(frozen=True)
class Plan:
    """How to compute a graph."""

    graph: Graph
    template: str
    """"elementwise", "row" or "matmul"."""
    order: tuple[Node, ...]
    """Computed values in the order of the kernel's statements."""
    space: dict[int, int]
    """id(node) → space, for computed values."""
    kind: dict[int, Kind]
    """id(node) → kind, for computed values."""
    products: tuple[Node, ...]
    """Matrix products in order."""
    base: Node
    """The input whose shape gives rows and columns of space 0."""
    loop: bool = False
    """Whether the first product walks its inner dimension in blocks."""

    def looks_along(self, space: int) -> bool:
        """Whether an operator of the space looks along the row."""
        return any(n.op in ROW for n in self.order if self.space[id(n)] == space)

    def width(self, space: int) -> int:
        """Columns of a space."""
        return self.base.shape[-1] if space == 0 else self.products[space - 1].shape[-1]


def is_product(node: Node) -> bool:
    """Whether the node is a matrix product."""
    return node.op in ("linear", "matmul")


def make_plan(graph: Graph) -> Plan:
    """Choose the kernel. Raises CannotWrite for graphs that need more than one."""
    for node in graph.nodes:
        _check(node)
        _check_types(node, graph.output)
    products = tuple(n for n in graph.nodes if is_product(n))
    kind = _kinds(graph)
    space = _spaces(graph, products, kind)
    base = _base(graph, products, space)
    plan = Plan(graph, _template(graph, products, base), graph.nodes, space, kind, products, base)
    _check_sizes(plan)
    return plan


def loops(plan: Plan) -> Plan:
    """The same plan with the first product's inner dimension walked in blocks, where that is possible."""
    before = [n for n in plan.order if plan.space[id(n)] == 0]
    late = any(plan.space.get(id(s), 0) > 0 for n in before for s in n.sources)
    if len(plan.products) != 1 or plan.looks_along(0) or late:
        return plan
    return replace(plan, loop=True, order=tuple(sorted(plan.order, key=lambda n: plan.space[id(n)])))


def _check(node: Node) -> None:
    if not (is_product(node) or node.op in ROW or is_pointwise(node.op)):
        raise CannotWrite(f"{node.op} is not in the rulebook")
    if not node.shape:
        raise CannotWrite(f"{node.op} over all dimensions")
    if node.op in ROW:
        _check_last_dimension(node)
    if is_product(node) and not (isinstance(node.operands["w"], Node) and node.operands["w"].is_leaf):
        raise CannotWrite(f"{node.op} by a computed matrix")
    if is_product(node) and len(node.operands["w"].shape) != 2:
        raise CannotWrite(f"{node.op} of batches of matrices")


def _check_types(node: Node, output: Node) -> None:
    for name, value in node.attrs.items():
        if isinstance(value, Node):
            raise CannotWrite(f"{node.op} with a tensor as {name}")
    allowed = ("float32", "int64") if node is output else ("float32", "bool")
    if node.dtype not in allowed:
        raise CannotWrite(f"{node.op} of dtype {node.dtype}")


def _check_last_dimension(node: Node) -> None:
    x = node.operands["x"]
    if "normalized_shape" in node.attrs:
        if len(node.attrs["normalized_shape"]) != 1:
            raise CannotWrite(f"{node.op} over several dimensions")
        return
    dim = node.attrs.get("dim")
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    if not isinstance(dim, int):
        raise CannotWrite(f"{node.op} over dim={dim}")
    if dim % len(x.shape) != len(x.shape) - 1:
        raise CannotWrite(f"{node.op} over dim={dim} of {len(x.shape)}")


def _kinds(graph: Graph) -> dict[int, Kind]:
    """id(node) → kind, in one pass over the graph."""
    kinds: dict[int, Kind] = {}
    for node in graph.nodes:
        if is_product(node):
            kinds[id(node)] = Kind.TILE
        elif node.op in ROW:
            kinds[id(node)] = Kind.SCALAR if ROW[node.op].reduces else Kind.TILE
        else:
            found = {leaf_kind(s, node) if s.is_leaf else kinds[id(s)] for s in node.sources}
            kinds[id(node)] = next(kind for kind in Kind if kind in found)
    return kinds


def leaf_kind(leaf: Node, user: Node) -> Kind:
    """What a leaf is to the operator that uses it."""
    if user.op in ("layer_norm", "rms_norm") and leaf is not user.operands["x"]:
        return Kind.VECTOR
    if len(leaf.shape) == 1 and len(user.shape) > 1:
        return Kind.VECTOR
    if len(leaf.shape) > 1 and leaf.shape[-1] == 1 and user.shape[-1] != 1:
        return Kind.SCALAR
    if len(leaf.shape) >= 2:
        return Kind.TILE
    raise CannotWrite(f"{user.op} with {leaf.name} of shape {leaf.shape}")


def tile_sources(node: Node) -> list[Node]:
    """Sources that run along the row together with the node (weights and biases are not among them)."""
    if is_product(node) or node.op in ("layer_norm", "rms_norm"):
        return [s for s in node.sources if s is node.operands["x"]]
    return node.sources


def _spaces(graph: Graph, products: tuple[Node, ...], kind: dict[int, Kind]) -> dict[int, int]:
    """Space of each computed value: values that meet in a pointwise or row operator share theirs."""
    parent = {id(n): id(n) for n in graph.nodes}

    def root(key: int) -> int:
        while parent[key] != key:
            key = parent[key]
        return key

    for node in graph.nodes:
        for source in tile_sources(node):
            if not (is_product(node) or source.is_leaf or kind[id(source)] is Kind.SCALAR):
                parent[root(id(source))] = root(id(node))
    number = {root(id(product)): i + 1 for i, product in enumerate(products)}
    if len(number) < len(products):
        raise CannotWrite("products that meet in one operator")
    spaces: dict[int, int] = {}
    for node in graph.nodes:
        spaces[id(node)] = number.get(root(id(node)), 0)
        sources = tile_sources(node)
        if not is_product(node) and all(not s.is_leaf and kind[id(s)] is Kind.SCALAR for s in sources):
            spaces[id(node)] = max(spaces[id(s)] for s in sources)
    _check_chain(products, spaces, kind)
    return spaces


def _check_chain(products: tuple[Node, ...], spaces: dict[int, int], kind: dict[int, Kind]) -> None:
    for i, product in enumerate(products):
        x = product.operands["x"]
        if not isinstance(x, Node) or spaces.get(id(x), 0) != i:
            raise CannotWrite("products that do not follow one another")
        if not x.is_leaf and kind[id(x)] is not Kind.TILE:
            raise CannotWrite(f"{product.op} of one column")
    if len(products) > 2:
        raise CannotWrite("more than two products in one kernel")


def _base(graph: Graph, products: tuple[Node, ...], space: dict[int, int]) -> Node:
    for node in graph.nodes:
        if space[id(node)] == 0 or node in products[:1]:
            for source in tile_sources(node):
                if source.is_leaf and source.op == "input" and leaf_kind(source, node) is Kind.TILE:
                    return source
    raise CannotWrite("no input with rows and columns")


def _template(graph: Graph, products: tuple[Node, ...], base: Node) -> str:
    if products:
        return "matmul"
    flat = all(is_pointwise(n.op) and n.shape == base.shape for n in graph.nodes)
    same = all(s.shape == base.shape for n in graph.nodes for s in n.sources)
    return "elementwise" if flat and same else "row"


def _check_sizes(plan: Plan) -> None:
    rows = math.prod(plan.base.shape[:-1])
    for node in plan.order:
        _check_layout(node, plan, rows)
    if plan.template == "row" and plan.base.shape[-1] > MAX_ROW:
        raise CannotWrite(f"rows longer than {MAX_ROW}")


def _check_layout(node: Node, plan: Plan, rows: int) -> None:
    kind = plan.kind[id(node)]
    if kind is Kind.VECTOR:
        raise CannotWrite(f"{node.op} of weights alone")
    lead = node.shape[:-1] if kind is Kind.TILE or len(node.shape) == len(plan.base.shape) else node.shape
    if math.prod(lead) != rows:
        raise CannotWrite(f"{node.op} that broadcasts rows")
    for source in tile_sources(node):
        source_kind = leaf_kind(source, node) if source.is_leaf else plan.kind[id(source)]
        if kind is Kind.TILE and source_kind is Kind.SCALAR and len(source.shape) < len(node.shape):
            raise CannotWrite(f"{node.op} that broadcasts a reduced value along rows")
        if source_kind is Kind.TILE and math.prod(source.shape[:-1]) != rows:
            raise CannotWrite(f"{node.op} that broadcasts rows")


def block(size: int) -> int:
    """Smallest power of two that holds `size`, at least 16 as matrix units ask."""
    return max(16, 1 << (size - 1).bit_length())


def fits(*sizes: int) -> bool:
    """Whether a weight of that shape fits into one tile."""
    return math.prod(block(size) for size in sizes) <= MAX_TILE
