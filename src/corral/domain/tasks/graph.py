"""Graph algorithms: topological order, cycles, the critical path, and shared files."""

import posixpath
from collections.abc import Mapping, Sequence

from corral.kernel.errors import Invalid
from corral.kernel.path_patterns import patterns_overlap, subtree_pattern

MAX_CYCLE_SHOWN = 8
"""How many tasks of a cycle an error names."""


def topological_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the keys so that every task comes after its dependencies.

    `needs` maps each task to its dependencies; dependencies outside of it are ignored. Tasks
    without dependencies come first, otherwise in the order of `needs`. Raises Invalid for a cycle.
    """
    order, waits = _sort(needs)
    if len(order) < len(needs):
        cycle = _find_cycle({key: needed for key, needed in needs.items() if waits[key]})
        shown = cycle[:MAX_CYCLE_SHOWN]
        path = " → ".join([*shown, "…" if len(cycle) > MAX_CYCLE_SHOWN else cycle[0]])
        raise Invalid(
            f"The dependencies form a cycle: {path}. Remove one of them.",
            cycle=shown,
            length=len(cycle),
            reason="cycle",
        )
    return order


def _sort(needs: Mapping[str, Sequence[str]]) -> tuple[list[str], dict[str, int]]:
    """Sort the tasks that do not depend on a cycle (Kahn's algorithm).

    Returns them in order, and for every task the number of dependencies that were not reached.
    """
    waits = {key: sum(need in needs for need in needed) for key, needed in needs.items()}
    followers: dict[str, list[str]] = {}
    for key, needed in needs.items():
        for need in needed:
            if need in needs:
                followers.setdefault(need, []).append(key)
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
        at = next(need for need in unsorted[at] if need in unsorted)
    return list(seen)[seen[at] :]


def closing_edges(
    needs: Mapping[str, Sequence[str]], edges: Sequence[tuple[str, str]], *, budget: int = 5_000_000
) -> list[tuple[str, str]]:
    """Return those of `edges` (task, dependency) that would close a cycle if added one by one.

    Assumes that the graph without `edges` has no cycle. After `budget` steps all remaining edges
    are returned, which bounds the time for a malicious graph.
    """
    try:
        topological_order(needs)
    except Invalid:
        pass
    else:
        return []
    added = {*edges}
    graph = {
        key: [need for need in needed if (key, need) not in added] for key, needed in needs.items()
    }
    closing = []
    for task, need in edges:
        seen, queue = {need}, [need]
        for key in queue:  # `queue` grows during the loop
            budget -= 1
            if key == task or budget < 0:
                break
            for next_key in graph.get(key, ()):
                if next_key not in seen:
                    seen.add(next_key)
                    queue.append(next_key)
        if task in seen or budget < 0:
            closing.append((task, need))
        else:
            graph.setdefault(task, []).append(need)
    return closing


def critical_path(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the longest chain of tasks in which each depends on the one before.

    Excludes tasks that depend on a cycle; imports of early versions could create cycles.
    """
    length: dict[str, int] = {}
    before: dict[str, str] = {}
    for key in _sort(needs)[0]:
        length[key] = 1
        for need in needs[key]:
            if length.get(need, 0) >= length[key]:
                length[key], before[key] = length[need] + 1, need
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
            f"Invalid path {path!r}. Use a path inside the project, such as src/app.py, src or "
            "src/*.py.",
            path=path,
            reason="bad_path",
        )
    return normal


def share_files(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether two tasks may change the same file. A path can be a folder or a pattern."""
    return any(
        patterns_overlap(subtree_pattern(one), subtree_pattern(other))
        for one in some
        for other in others
    )
