"""Graph algorithms: topological order, cycles, the critical path, and shared files."""

import posixpath
from collections.abc import Mapping, Sequence

from corral.kernel.errors import Invalid
from corral.kernel.path_patterns import can_overlap, make_subtree_pattern

MAX_CYCLE_SHOWN = 8
"""How many tasks of a cycle an error names."""


def sort_topologically(graph: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the keys so that every task comes after its dependencies.

    `graph` maps each task to its dependencies; dependencies outside of it are ignored. Tasks
    without dependencies come first, otherwise in the order of `graph`. Raises Invalid for a cycle.
    """
    order, waits = _sort(graph)
    if len(order) < len(graph):
        cycle = _find_cycle(
            {key: dependencies for key, dependencies in graph.items() if waits[key]}
        )
        shown = cycle[:MAX_CYCLE_SHOWN]
        path = " → ".join([*shown, "…" if len(cycle) > MAX_CYCLE_SHOWN else cycle[0]])
        raise Invalid(
            f"The dependencies form a cycle: {path}. Remove one of them.",
            cycle=shown,
            length=len(cycle),
            reason="cycle",
        )
    return order


def _sort(graph: Mapping[str, Sequence[str]]) -> tuple[list[str], dict[str, int]]:
    """Sort the tasks that do not depend on a cycle (Kahn's algorithm).

    Returns them in order, and for every task the number of dependencies that were not reached.
    """
    waits = {
        key: sum(dependency in graph for dependency in dependencies)
        for key, dependencies in graph.items()
    }
    followers: dict[str, list[str]] = {}
    for key, dependencies in graph.items():
        for dependency in dependencies:
            if dependency in graph:
                followers.setdefault(dependency, []).append(key)
    order = [key for key, count in waits.items() if not count]
    for key in order:  # `order` grows during the loop
        for follower in followers.get(key, ()):
            waits[follower] -= 1
            if not waits[follower]:
                order.append(follower)
    return order, waits


def _find_cycle(unsorted: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one cycle among tasks that each depend on another of them."""
    at = next(iter(unsorted))
    seen: dict[str, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = next(dependency for dependency in unsorted[at] if dependency in unsorted)
    return list(seen)[seen[at] :]


def find_closing_edges(
    graph: Mapping[str, Sequence[str]], edges: Sequence[tuple[str, str]], *, budget: int = 5_000_000
) -> list[tuple[str, str]]:
    """Return those of `edges` (task, dependency) that would close a cycle if added one by one.

    Assumes that the graph without `edges` has no cycle. After `budget` steps all remaining edges
    are returned, which bounds the time for a malicious graph.
    """
    try:
        sort_topologically(graph)
    except Invalid:
        pass
    else:
        return []
    added = {*edges}
    remaining = {
        key: [dependency for dependency in dependencies if (key, dependency) not in added]
        for key, dependencies in graph.items()
    }
    closing = []
    for task, dependency in edges:
        seen, queue = {dependency}, [dependency]
        for key in queue:  # `queue` grows during the loop
            budget -= 1
            if key == task or budget < 0:
                break
            for next_key in remaining.get(key, ()):
                if next_key not in seen:
                    seen.add(next_key)
                    queue.append(next_key)
        if task in seen or budget < 0:
            closing.append((task, dependency))
        else:
            remaining.setdefault(task, []).append(dependency)
    return closing


def find_critical_path(graph: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the longest chain of tasks in which each depends on the one before.

    Excludes tasks that depend on a cycle; imports of early versions could create cycles.
    """
    length: dict[str, int] = {}
    before: dict[str, str] = {}
    for key in _sort(graph)[0]:
        length[key] = 1
        for dependency in graph[key]:
            if length.get(dependency, 0) >= length[key]:
                length[key], before[key] = length[dependency] + 1, dependency
    if not length:
        return []
    path = [max(length, key=lambda key: length[key])]
    while path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1]


def check_path(path: str) -> str:
    """Return a path or pattern inside the project in its normal form. Raises Invalid."""
    normal = posixpath.normpath(path.strip().replace("\\", "/")) if path.strip() else ""
    if not normal or normal.startswith(("/", "../")) or normal == ".." or not normal.isprintable():
        raise Invalid(
            f"Invalid path {path!r}: expected a path inside the project, such as src/app.py, src "
            "or src/*.py.",
            path=path,
            reason="bad_path",
        )
    return normal


def can_share_files(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether two tasks may change the same file. A path can be a folder or a pattern."""
    return any(
        can_overlap(make_subtree_pattern(one), make_subtree_pattern(other))
        for one in some
        for other in others
    )
