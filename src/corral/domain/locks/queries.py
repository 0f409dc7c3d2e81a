"""Read-only queries of locks."""

from collections.abc import Sequence

from corral.db.tx import Tx
from corral.domain.locks import errors, resolve, sql, wait_queue
from corral.domain.locks.candidates import list_candidates
from corral.domain.locks.model import Lock, LockConflict, LockState
from corral.domain.settings import ops as settings
from corral.kernel.clock import SECOND
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page
from corral.kernel.path_patterns import can_overlap

MAX_PATHS = 100_000
MAX_SEPARATE_LOOKUPS = 4
"""Up to this many paths are looked up one by one; for more, all live locks are read once."""


def list_holders(tx: Tx, project: str, path: str) -> list[Lock]:
    """List the locks that are held now on a path or on anything that it covers."""
    target = resolve.get_project(tx, project)
    pattern = resolve.resolve_pattern(target, path)
    candidates = list_candidates(tx, target.id, pattern)
    return [lock for lock in candidates if _is_held(lock, pattern, tx.now)]


def find_conflicts(
    tx: Tx,
    project: str,
    paths: Sequence[str],
    agent: str,
    *,
    run: str | None = None,
    as_spelled: bool = False,
) -> list[LockConflict]:
    """List the paths that other owners have locked, each with the lock.

    `as_spelled` is for absolute paths of a commit: symlinks are not followed, and paths outside the
    project are ignored.
    """
    target = resolve.get_project(tx, project)
    if len(paths) > MAX_PATHS:
        raise Invalid(f"Too many paths: {len(paths):,} given, {MAX_PATHS:,} allowed.")
    owner = resolve.resolve_owner(tx, agent)
    patterns: dict[str, str] = {}
    for path in paths:
        if not as_spelled:
            patterns[path] = resolve.resolve_pattern(target, path, lockable=False)
        elif literal := resolve.to_literal_pattern(target, path):
            patterns[path] = literal
    separate = len(patterns) <= MAX_SEPARATE_LOOKUPS
    others: list[Lock] = []
    if not separate:
        others = _exclude_own(tx.all(sql.LIVE_OF_PROJECT, project_id=target.id), owner, run)
    conflicts = []
    for path, pattern in patterns.items():
        if separate:
            candidates = list_candidates(tx, target.id, pattern)
            others = _exclude_own(candidates, owner, run)
        lock = next((lock for lock in others if _is_held(lock, pattern, tx.now)), None)
        if lock is not None:
            message = errors.held_error(tx.now, pattern, lock).message
            conflicts.append(LockConflict(path, lock, message))
    return conflicts


def list_blocking(tx: Tx, lock: Lock) -> list[Lock]:
    """List the conflicting held locks and earlier requests that a waiting lock waits for."""
    candidates = list_candidates(tx, lock.project_id, lock.path)
    return wait_queue.list_blockers(lock, [other for other in candidates if other.is_live(tx.now)])


def get_edit_lease_ms(tx: Tx, project: str, agent: str) -> int:
    """Return how long an edit locks its file (`locks.edit_lease_ms`); 0: edits do not lock."""
    name = agent.removeprefix("agent:")
    duration = int(settings.get_value(tx, "locks.edit_lease_ms", agent=name, project=project))
    return max(duration, SECOND) if duration else 0


def _exclude_own(locks: Sequence[Lock], owner: str, run: str | None) -> list[Lock]:
    return [
        lock
        for lock in locks
        if lock.owner != owner or (run is not None and lock.run_id not in (None, run))
    ]


def _is_held(lock: Lock, pattern: str, now: int) -> bool:
    is_held = lock.state is LockState.HELD and lock.lease_until > now
    return is_held and can_overlap(lock.path, pattern)


def list_live(
    tx: Tx, *, project: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Lock]:
    """List the held and waiting locks by path, of all projects or of one."""
    if project is None:
        return sql.LIVE.page(tx, after=after, limit=limit, now=tx.now)
    project_id = resolve.get_project(tx, project).id
    return sql.LIVE_IN_PROJECT.page(tx, after=after, limit=limit, project_id=project_id, now=tx.now)


def list_all(
    tx: Tx, *, project: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Lock]:
    """List all locks, including ended ones, newest first."""
    if project is None:
        return sql.ALL.page(tx, after=after, limit=limit)
    project_id = resolve.get_project(tx, project).id
    return sql.ALL_OF_PROJECT.page(tx, after=after, limit=limit, project_id=project_id)


def list_of_owner(tx: Tx, agent: str, *, after: str | None = None, limit: int = 50) -> Page[Lock]:
    """List the locks that an owner holds or waits for, oldest first."""
    owner = resolve.resolve_owner(tx, agent)
    return sql.LIVE_OF_OWNER.page(tx, after=after, limit=limit, owner=owner, now=tx.now)
