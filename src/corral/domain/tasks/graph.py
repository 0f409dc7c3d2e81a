"""Graphs of tasks, as such: order, cycles, the critical path, and files that two tasks share."""

import posixpath
from collections.abc import Mapping, Sequence

from corral.kernel.errors import Invalid
from corral.kernel.path_patterns import covering, meet

NAMED = 8
"""How many tasks of a cycle its refusal names."""


def in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Every task behind those that it needs; Invalid names a cycle. Needs outside are passed over.

    Those that need nothing come first, else the order is that of `needs`.
    """
    order, waits = _sorted(needs)
    if len(order) < len(needs):
        cycle = _cycle({key: needed for key, needed in needs.items() if waits[key]})
        way = " → ".join([*cycle[:NAMED], "…"] if len(cycle) > NAMED else [*cycle, cycle[0]])
        raise Invalid(
            f"These tasks wait for each other for ever: {way}; take one of the dependencies out.",
            cycle=cycle[:NAMED],
            length=len(cycle),
            reason="cycle",
        )
    return order


def _sorted(needs: Mapping[str, Sequence[str]]) -> tuple[list[str], dict[str, int]]:
    """Return the tasks that do not depend on a cycle, in order, and the number of needs that each
    task still waits for."""
    waits = {key: sum(need in needs for need in needed) for key, needed in needs.items()}
    followers: dict[str, list[str]] = {}
    for key, needed in needs.items():
        for need in needed:
            if need in needs:
                followers.setdefault(need, []).append(key)
    order = [key for key, count in waits.items() if not count]
    for key in order:  # it grows while we go
        for follower in followers.get(key, ()):
            waits[follower] -= 1
            if not waits[follower]:
                order.append(follower)
    return order, waits


def _cycle(stuck: Mapping[str, Sequence[str]]) -> list[str]:
    """One cycle among tasks of which each needs another one of them."""
    at = next(iter(stuck))
    seen: dict[str, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = next(need for need in stuck[at] if need in stuck)
    return list(seen)[seen[at] :]


def closing_edges(
    needs: Mapping[str, Sequence[str]], edges: Sequence[tuple[str, str]], *, budget: int = 5_000_000
) -> list[tuple[str, str]]:
    """Return those of `edges` (task, need) that would close a cycle, if they are added one by one.
    Without `edges` the graph has no cycle.

    After `budget` steps all remaining edges are returned, to bound the time for a hostile graph.
    """
    try:
        in_order(needs)
    except Invalid:
        pass
    else:
        return []
    added = {*edges}
    below = {
        key: [need for need in needed if (key, need) not in added] for key, needed in needs.items()
    }
    closing = []
    for task, need in edges:
        seen, line = {need}, [need]
        for key in line:  # it grows while we go
            budget -= 1
            if key == task or budget < 0:
                break
            for each in below.get(key, ()):
                if each not in seen:
                    seen.add(each)
                    line.append(each)
        if task in seen or budget < 0:
            closing.append((task, need))
        else:
            below.setdefault(task, []).append(need)
    return closing


def critical_path(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The longest chain of tasks of which each needs the one before.

    Excludes tasks that depend on a cycle, which an early import could create.
    """
    length: dict[str, int] = {}
    before: dict[str, str] = {}
    for key in _sorted(needs)[0]:
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
    """A path or pattern inside of a project, as plain as it can be."""
    plain = posixpath.normpath(path.strip().replace("\\", "/")) if path.strip() else ""
    if not plain or plain.startswith(("/", "../")) or plain == ".." or not plain.isprintable():
        raise Invalid(
            f"{path!r} is no path in the project; write one like src/app.py, src or src/*.py.",
            path=path,
            reason="bad_path",
        )
    return plain


def share_files(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two tasks may change the same file; a path that both name may be a folder."""
    return any(meet(covering(one), covering(other)) for one in some for other in others)
