"""The wait queue: which locks conflict, which can be granted, and deadlock detection.

Locks are granted in the order of their requests. The order only applies between conflicting locks:
a later request overtakes an earlier one that it does not conflict with.
"""

from collections.abc import Sequence

from corral.domain.locks.model import Lock, LockMode, LockState
from corral.kernel.path_patterns import can_overlap


def is_same_owner(one: Lock, other: Lock) -> bool:
    """Whether two locks have the same owner.

    Two runs of one agent are two owners. A lock without a run has the same owner as any of them.
    """
    if one.owner != other.owner:
        return False
    return one.run_id == other.run_id or None in (one.run_id, other.run_id)


def is_conflict(one: Lock, other: Lock) -> bool:
    """Whether two locks cannot be held at the same time."""
    if one.mode is LockMode.SHARED and other.mode is LockMode.SHARED:
        return False
    return not is_same_owner(one, other) and can_overlap(one.path, other.path)


def list_blockers(request: Lock, others: Sequence[Lock]) -> list[Lock]:
    """List the locks that a request must wait for: conflicting held ones, and earlier requests."""
    return [
        other
        for other in others
        if (other.state is LockState.HELD or other.fence < request.fence)
        and is_conflict(request, other)
    ]


def list_grantable(live: Sequence[Lock]) -> list[Lock]:
    """List the waiting locks that nothing blocks, given all live locks of a project."""
    return [
        lock for lock in live if lock.state is LockState.WAITING and not list_blockers(lock, live)
    ]


def find_deadlock(request: Lock, live: Sequence[Lock]) -> Lock | None:
    """Return a waiting lock that would form a deadlock with the request; None: it is safe to wait.

    Follows the wait-for graph from the request's blockers. A deadlock exists when an owner on the
    path waits for a lock that the requesting owner holds.
    """
    waiting = [lock for lock in live if lock.state is LockState.WAITING]
    visited: set[tuple[str, str | None]] = set()
    pending = list_blockers(request, live)
    while pending:
        lock = pending.pop()
        if (owner := (lock.owner, lock.run_id)) in visited:
            continue
        visited.add(owner)
        for other in waiting:
            if is_same_owner(other, lock):
                blockers = list_blockers(other, live)
                if any(is_same_owner(blocker, request) for blocker in blockers):
                    return other
                pending += blockers
    return None
