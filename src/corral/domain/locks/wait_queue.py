"""The waiting line: who stands in whose way, who is next, and who would wait for ever.

Locks are granted in the order in which they were asked for. Only what cannot be held together has
an order: a lock is not passed by a later one that meets it, and is passed by all others.
"""

from collections.abc import Sequence

from corral.domain.locks.model import Lock, LockState, Mode
from corral.kernel.path_patterns import meet


def same_owner(one: Lock, other: Lock) -> bool:
    """Whether two locks are one owner's. Two runs of one agent are two owners."""
    if one.owner != other.owner:
        return False
    return one.run_id == other.run_id or None in (one.run_id, other.run_id)


def exclude(one: Lock, other: Lock) -> bool:
    """Whether two locks cannot be held at the same time."""
    if one.mode is Mode.SHARED and other.mode is Mode.SHARED:
        return False
    return not same_owner(one, other) and meet(one.path, other.path)


def in_the_way(wanted: Lock, others: Sequence[Lock]) -> list[Lock]:
    """The locks that a wanted one must wait for: those held, and those asked for before it."""
    return [
        other
        for other in others
        if (other.state is LockState.HELD or other.fence < wanted.fence) and exclude(wanted, other)
    ]


def next_to_hold(live: Sequence[Lock]) -> list[Lock]:
    """Of all live locks of a project, the waiting ones that nobody stands in the way of."""
    return [lock for lock in live if lock.state is LockState.WAITING and not in_the_way(lock, live)]


def closes_circle(wanted: Lock, live: Sequence[Lock]) -> Lock | None:
    """A lock whose owner waits, perhaps by way of others, for what the owner of the wanted one
    holds: if both waited, both would wait for ever."""
    asked = [lock for lock in live if lock.state is LockState.WAITING]
    seen: set[tuple[str, str | None]] = set()
    front = in_the_way(wanted, live)
    while front:
        lock = front.pop()
        if (who := (lock.owner, lock.run_id)) in seen:
            continue
        seen.add(who)
        for other in asked:
            if same_owner(other, lock):
                blocked_by = in_the_way(other, live)
                if any(same_owner(blocker, wanted) for blocker in blocked_by):
                    return other
                front += blocked_by
    return None
