"""Layered layout of a task graph: dependencies stand to the left of the tasks that need them.

A simplified Sugiyama layout. Layers are assigned by longest path; the order within a layer comes
from barycentre sweeps. An edge that spans several layers gets a bend in each, so that it passes
between the tasks.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

NODE_WIDTH, NODE_HEIGHT = 168, 44
LAYER_GAP, NODE_GAP, BEND_HEIGHT = 56, 14, 12
SWEEPS = 4
MAX_BENDS = 4_000
"""Edges beyond this number of bends are drawn straight."""


class NodePosition(NamedTuple):
    x: int
    y: int


class GraphLayout(NamedTuple):
    width: int
    height: int
    positions: dict[str, NodePosition]
    """The upper left corner of each task."""
    paths: dict[tuple[str, str], str]
    """The SVG path of each edge (task, dependency)."""


def layout_graph(dependencies: Mapping[str, Sequence[str]]) -> GraphLayout:
    """Lay out a graph, given as task and dependencies. Unknown dependencies are ignored.

    The graph must be acyclic. The cost is linear in tasks and edges.
    """
    known = {
        task: [name for name in names if name in dependencies]
        for task, names in dependencies.items()
    }
    layers = _assign_layers(known)
    routes = _route_edges(known, layers)
    columns = _order_layers(layers, routes)
    positions = _position_nodes(columns, {*known})
    width = max((position.x for position in positions.values()), default=0) + NODE_WIDTH
    height = max((position.y for position in positions.values()), default=0) + NODE_HEIGHT
    paths = {edge: _svg_path(route, positions) for edge, route in routes.items()}
    return GraphLayout(width, height, {task: positions[task] for task in known}, paths)


def _assign_layers(dependencies: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the length of the longest path to each task (topological order)."""
    missing = {task: len(names) for task, names in dependencies.items()}
    dependents: dict[str, list[str]] = {task: [] for task in dependencies}
    for task, names in dependencies.items():
        for name in names:
            dependents[name].append(task)
    layers = {task: 0 for task, count in missing.items() if not count}
    queue = [*layers]
    for task in queue:  # grows during the iteration
        for dependent in dependents[task]:
            layers[dependent] = max(layers.get(dependent, 0), layers[task] + 1)
            missing[dependent] -= 1
            if not missing[dependent]:
                queue.append(dependent)
    return {task: layers.get(task, 0) for task in dependencies}


def _route_edges(
    dependencies: Mapping[str, Sequence[str]], layers: dict[str, int]
) -> dict[tuple[str, str], list[str]]:
    """Return the nodes on the route of each edge, and add its bends to `layers`."""
    routes: dict[tuple[str, str], list[str]] = {}
    available = MAX_BENDS
    for task, names in dependencies.items():
        for name in names:
            between = range(layers[name] + 1, layers[task])
            if len(between) > available:
                between = range(0)
            available -= len(between)
            bends = [f"{name}\n{task}\n{layer}" for layer in between]  # ids have no line breaks
            layers.update(zip(bends, between, strict=True))
            routes[task, name] = [name, *bends, task]
    return routes


def _order_layers(
    layers: Mapping[str, int], routes: Mapping[tuple[str, str], list[str]]
) -> list[list[str]]:
    """Return the nodes of each layer from top to bottom, ordered to reduce crossings."""
    columns: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for node, layer in layers.items():
        columns[layer].append(node)
    left: dict[str, list[str]] = {node: [] for node in layers}
    right: dict[str, list[str]] = {node: [] for node in layers}
    for route in routes.values():
        for source, target in pairwise(route):
            left[target].append(source)
            right[source].append(target)
    rank = {node: float(n) for column in columns for n, node in enumerate(column)}
    for sweep in range(SWEEPS):
        is_forward = sweep % 2 == 0
        neighbours = left if is_forward else right
        for column in columns if is_forward else columns[::-1]:
            barycentre = {
                node: sum(rank[other] for other in neighbours[node]) / len(neighbours[node])
                if neighbours[node]
                else rank[node]
                for node in column
            }
            column.sort(key=lambda node: barycentre[node])
            rank.update({node: float(n) for n, node in enumerate(column)})
    return columns


def _position_nodes(columns: Sequence[Sequence[str]], tasks: set[str]) -> dict[str, NodePosition]:
    """Place each layer as a column, vertically centred."""
    step = {True: NODE_HEIGHT + NODE_GAP, False: BEND_HEIGHT}
    heights = [sum(step[node in tasks] for node in column) for column in columns]
    tallest = max(heights, default=0)
    positions: dict[str, NodePosition] = {}
    for n, column in enumerate(columns):
        y = (tallest - heights[n]) // 2
        for node in column:
            positions[node] = NodePosition(n * (NODE_WIDTH + LAYER_GAP), y)
            y += step[node in tasks]
    return positions


def _svg_path(route: Sequence[str], positions: Mapping[str, NodePosition]) -> str:
    """Draw an edge from the right side of its first node through its bends to the last."""
    first, last = positions[route[0]], positions[route[-1]]
    x, y = first.x + NODE_WIDTH, first.y + NODE_HEIGHT // 2
    commands = [f"M{x} {y}"]
    for bend in route[1:-1]:
        position = positions[bend]
        commands.append(svg_curve(x, y, position.x, position.y))
        x, y = position.x + NODE_WIDTH, position.y
        commands.append(f"H{x}")
    commands.append(svg_curve(x, y, last.x, last.y + NODE_HEIGHT // 2))
    return "".join(commands)


def svg_curve(x: int, y: int, to_x: int, to_y: int) -> str:
    """Return a cubic Bézier command from one point to another, horizontal at both ends."""
    middle = (x + to_x) // 2
    return f"C{middle} {y} {middle} {to_y} {to_x} {to_y}"
