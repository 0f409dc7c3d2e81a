"""A graph of tasks laid out in layers: what is needed stands to the left of what needs it.

Longest path for the layers, the mean place of neighbours for the order within one; an edge over
several layers gets a place of its own in each, so that it passes between the tasks.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

WIDTH, HEIGHT = 168, 44
"""Of a task."""
ACROSS, BETWEEN, BEND = 56, 14, 12
"""From layer to layer, from task to task, and the height of an edge that passes by."""
SWEEPS = 4
MOST_BENDS = 4_000
"""Edges that would need more places than this go straight."""


class Place(NamedTuple):
    x: int
    y: int


class Layout(NamedTuple):
    width: int
    height: int
    places: dict[str, Place]
    """The upper left corner of each task."""
    paths: dict[tuple[str, str], str]
    """Of each edge (task, what it needs), how an SVG path draws it."""


def lay_out(needs: Mapping[str, Sequence[str]]) -> Layout:
    """Where each task stands, and how each edge runs; needs that are not among them are passed
    over. It must have no cycle; its cost grows with tasks and edges, and not faster."""
    known = {key: [need for need in needed if need in needs] for key, needed in needs.items()}
    layer = _layers(known)
    routes = _routes(known, layer)
    rows = _ordered(layer, routes)
    places = _places(rows, {*known})
    width = max((place.x for place in places.values()), default=0) + WIDTH
    height = max((place.y for place in places.values()), default=0) + HEIGHT
    paths = {edge: _path(route, places) for edge, route in routes.items()}
    return Layout(width, height, {key: places[key] for key in known}, paths)


def _layers(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many tasks stand before each, along its longest way back."""
    waits = {key: len(needed) for key, needed in needs.items()}
    followers: dict[str, list[str]] = {key: [] for key in needs}
    for key, needed in needs.items():
        for need in needed:
            followers[need].append(key)
    found = {key: 0 for key, count in waits.items() if not count}
    line = [*found]
    for key in line:  # it grows while we go
        for follower in followers[key]:
            found[follower] = max(found.get(follower, 0), found[key] + 1)
            waits[follower] -= 1
            if not waits[follower]:
                line.append(follower)
    return {key: found.get(key, 0) for key in needs}


def _routes(
    needs: Mapping[str, Sequence[str]], layer: dict[str, int]
) -> dict[tuple[str, str], list[str]]:
    """Of each edge, the places that it goes through; those between its ends get a layer too."""
    routes: dict[tuple[str, str], list[str]] = {}
    left = MOST_BENDS
    for key, needed in needs.items():
        for need in needed:
            between = range(layer[need] + 1, layer[key])
            if len(between) > left:
                between = range(0)
            left -= len(between)
            bends = [f"{need}\n{key}\n{at}" for at in between]  # no id holds a line break
            layer.update(zip(bends, between, strict=True))
            routes[key, need] = [need, *bends, key]
    return routes


def _ordered(
    layer: Mapping[str, int], routes: Mapping[tuple[str, str], list[str]]
) -> list[list[str]]:
    """The places of each layer from top to bottom, with few edges that cross."""
    rows: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for place, at in layer.items():
        rows[at].append(place)
    before: dict[str, list[str]] = {place: [] for place in layer}
    behind: dict[str, list[str]] = {place: [] for place in layer}
    for route in routes.values():
        for one, other in pairwise(route):
            before[other].append(one)
            behind[one].append(other)
    height = {place: float(n) for row in rows for n, place in enumerate(row)}
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        near = before if forth else behind
        for row in rows if forth else rows[::-1]:
            mean = {
                place: sum(height[each] for each in near[place]) / len(near[place])
                if near[place]
                else height[place]
                for place in row
            }
            row.sort(key=lambda place: mean[place])
            height.update({place: float(n) for n, place in enumerate(row)})
    return rows


def _places(rows: Sequence[Sequence[str]], tasks: set[str]) -> dict[str, Place]:
    """Each layer is a column, in the middle of the highest one."""
    tall = {True: HEIGHT + BETWEEN, False: BEND}
    heights = [sum(tall[place in tasks] for place in row) for row in rows]
    most = max(heights, default=0)
    places: dict[str, Place] = {}
    for n, row in enumerate(rows):
        y = (most - heights[n]) // 2
        for place in row:
            places[place] = Place(n * (WIDTH + ACROSS), y)
            y += tall[place in tasks]
    return places


def _path(route: Sequence[str], places: Mapping[str, Place]) -> str:
    """From the right side of the first, past the bends, to the left side of the last."""
    first, last = places[route[0]], places[route[-1]]
    x, y = first.x + WIDTH, first.y + HEIGHT // 2
    drawn = [f"M{x} {y}"]
    for bend in route[1:-1]:
        place = places[bend]
        drawn.append(curve(x, y, place.x, place.y))
        x, y = place.x + WIDTH, place.y
        drawn.append(f"H{x}")
    drawn.append(curve(x, y, last.x, last.y + HEIGHT // 2))
    return "".join(drawn)


def curve(x: int, y: int, to_x: int, to_y: int) -> str:
    """How a path goes on from one point to another, level at both."""
    half = (x + to_x) // 2
    return f"C{half} {y} {half} {to_y} {to_x} {to_y}"
