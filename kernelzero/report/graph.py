"""The graph of a module as a drawing: layers from top to bottom, edges routed between them, as SVG.

The graph comes from the run (its torch.fx trace, kept as plain JSON) or else from the source, read statically; the
report never runs a module.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelzero.normalise import dataflow

MAX_NODES = 40
_LAYER_HEIGHT, _NODE_HEIGHT, _GAP, _CHARACTER = 62, 36, 18, 7.4
_ENDS = {"placeholder": "input", "input": "input",
         "get_attr": "parameter", "parameter": "parameter", "output": "output"}  # fmt: skip


@dataclass(frozen=True)
class GraphNode:
    """A node to draw; `kind` is "input", "parameter", "operator", "output", or "bend" for a point of a long edge."""

    id: str
    kind: str
    label: str
    inputs: tuple[str, ...]
    detail: str = ""

    @property
    def width(self) -> float:
        """Width in the drawing's units, wide enough for the text."""
        if self.kind == "bend":
            return 8.0
        return max(48.0, _CHARACTER * max(len(self.label), 0.86 * len(self.detail)) + 22)


def module_graph(source: str, recorded: Any = None) -> list[GraphNode] | None:
    """The recorded graph if it is sound, else the one read from the source; None where neither can be had."""
    return _from_record(recorded) or _from_source(source)


def _from_record(graph: Any) -> list[GraphNode] | None:
    """Nodes of {"nodes": [{"id", "op", "label", "inputs"}]} in order; inputs that come later or nowhere are dropped."""
    listed = graph.get("nodes") if isinstance(graph, Mapping) else None
    if not isinstance(listed, list) or not listed or not all(isinstance(n, Mapping) and "id" in n for n in listed):
        return None
    nodes: dict[str, GraphNode] = {}
    for node in listed:
        inputs = node.get("inputs")
        known = [str(i) for i in inputs if str(i) in nodes] if isinstance(inputs, list) else []
        kind = _ENDS.get(str(node.get("op")), "operator")
        label = _cut(str(node.get("label") or node.get("op") or node["id"]))
        detail = _cut(str(node.get("detail") or ""))
        nodes[str(node["id"])] = GraphNode(str(node["id"]), kind, label, tuple(dict.fromkeys(known)), detail)
    return list(nodes.values())


def _from_source(source: str) -> list[GraphNode] | None:
    try:
        flow = dataflow(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return [
        GraphNode(str(n.id), _ENDS.get(n.op, "operator"), _cut(n.label), _unique(n.inputs), _cut(n.detail))
        for n in flow.nodes
    ]


def _unique(ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(str, ids)))


def _cut(text: str, limit: int = 26) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def draw_graph(nodes: Sequence[GraphNode]) -> str:
    """SVG of the graph; a line of text where it is too large to be read."""
    if len(nodes) > MAX_NODES:
        return f'<p class="note">A graph of {len(nodes)} nodes, too large to draw.</p>'
    layers = _ordered(_with_bends(nodes, _layers(nodes)))
    width = max(_row_width(layer) for layer in layers) + 2 * _GAP
    height = len(layers) * _LAYER_HEIGHT + 6
    places = _places(layers, width)
    drawn = [_edge(places[i], places[n.id], n) for layer in layers for n in layer for i in n.inputs]
    drawn += [_box(n, *places[n.id]) for layer in layers for n in layer if n.kind != "bend"]
    size = f'viewBox="0 0 {width:.0f} {height}" style="max-width:{width:.0f}px"'
    return f'<svg class="graph" {size} role="img" aria-label="graph of the module">{"".join(drawn)}</svg>'


def _layers(nodes: Sequence[GraphNode]) -> dict[str, int]:
    """The layer of every node: below all its inputs; sources sit just above their first use."""
    depth: dict[str, int] = {}
    for node in nodes:
        depth[node.id] = 1 + max((depth[i] for i in node.inputs), default=-1)
    for node in nodes:
        uses = [depth[other.id] for other in nodes if node.id in other.inputs]
        if not node.inputs and uses:
            depth[node.id] = min(uses) - 1
    return depth


def _with_bends(nodes: Sequence[GraphNode], depth: Mapping[str, int]) -> list[list[GraphNode]]:
    """Nodes by layer, with a bend wherever an edge passes a layer."""
    layers: list[list[GraphNode]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in nodes:
        reached = []
        for source in node.inputs:
            last = source
            for level in range(depth[source] + 1, depth[node.id]):
                bend = GraphNode(f"{source}>{node.id}@{level}", "bend", "", (last,))
                layers[level].append(bend)
                last = bend.id
            reached.append(last)
        layers[depth[node.id]].append(replace(node, inputs=tuple(reached)))
    return [layer for layer in layers if layer]


def _ordered(layers: list[list[GraphNode]]) -> list[list[GraphNode]]:
    """Fewer crossings: a few sweeps that put every node at the mean place of its neighbours (barycentre method)."""
    for sweep in range(6):
        order = range(1, len(layers)) if sweep % 2 == 0 else range(len(layers) - 2, -1, -1)
        for level in order:
            down = sweep % 2 == 0
            layers[level] = _by_neighbours(layers[level], layers[level - 1 if down else level + 1], down)
    return layers


def _by_neighbours(layer: list[GraphNode], other: Sequence[GraphNode], down: bool) -> list[GraphNode]:
    place = {node.id: index for index, node in enumerate(other)}
    users = {node.id: [place[o.id] for o in other if node.id in o.inputs] for node in layer}

    def barycentre(node: GraphNode) -> float:
        near = [place[i] for i in node.inputs if i in place] if down else users[node.id]
        return sum(near) / len(near) if near else 0.0

    return sorted(layer, key=barycentre)


def _row_width(layer: Sequence[GraphNode]) -> float:
    return sum(node.width for node in layer) + _GAP * (len(layer) - 1)


def _places(layers: Sequence[Sequence[GraphNode]], width: float) -> dict[str, tuple[float, float]]:
    """The centre of every node; each layer is centred."""
    places = {}
    for level, layer in enumerate(layers):
        x = (width - _row_width(layer)) / 2
        for node in layer:
            places[node.id] = (x + node.width / 2, level * _LAYER_HEIGHT + _NODE_HEIGHT / 2 + 4)
            x += node.width + _GAP
    return places


def _edge(start: tuple[float, float], end: tuple[float, float], node: GraphNode) -> str:
    (x1, y1), (x2, y2) = start, end
    half = _NODE_HEIGHT / 2
    bottom = y1 + half
    top = y2 + half if node.kind == "bend" else y2 - half
    middle = (bottom + y2 - half) / 2
    curve = f"M{x1:.1f} {bottom:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2 - half:.1f}V{top:.1f}"
    return f'<path class="edge" d="{curve}"/>'


def _box(node: GraphNode, x: float, y: float) -> str:
    left, top = x - node.width / 2, y - _NODE_HEIGHT / 2
    rectangle = (
        f'<rect class="node {node.kind}" x="{left:.1f}" y="{top:.1f}" width="{node.width:.1f}" '
        f'height="{_NODE_HEIGHT}" rx="{17 if node.kind in ("input", "output") else 7}"/>'
    )
    lines = [(node.label, "label", y + (0 if node.detail else 4.5))]
    lines += [(node.detail, "detail", y + 13)] if node.detail else []
    texts = [f'<text class="{c}" x="{x:.1f}" y="{at:.1f}">{html.escape(text)}</text>' for text, c, at in lines]
    return rectangle + "".join(texts)
