"""Acquire, request, renew, release and revoke locks.

All changes to the locks of one project are serialized by `Tx.serialize("locks:PROJECT")`.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.locks import errors, resolve, sql, wait_queue
from corral.domain.locks.candidates import list_candidates
from corral.domain.locks.model import Lock, LockRequest, LockState
from corral.domain.mail import ops as mail
from corral.domain.mail.model import is_person, mailbox_kind
from corral.domain.mail.payloads import LockNotice
from corral.kernel.clock import MINUTE
from corral.kernel.errors import IllegalMove, Refused
from corral.kernel.ids import parse_number
from corral.kernel.lease import lease_expiry
from corral.kernel.pagination import LAST_NUMBER, check_limit
from corral.kernel.path_patterns import get_literal_prefix
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text

RETENTION = sql.RETENTION
TTL_MS = 5 * MINUTE
WAIT_MS = 30 * MINUTE
"""How long a place in the wait queue is kept without a renewal."""
MAX_LOCKS = 1_000
MAX_REASON = 1_000
_OWNERS_WITH_MAILBOX = ("agent", "user", "session")


# -- acquire and release ------------------------------------------------------------------------


def acquire(
    tx: Tx,
    project: str,
    path: str,
    agent: str,
    *,
    mode: str = "exclusive",
    ttl_ms: int = TTL_MS,
    run: str | None = None,
    reason: str | None = None,
) -> Lock:
    """Lock a path, a directory or a pattern of a project; raises Held on a conflict.

    Idempotent: acquiring the same lock again renews it. The heartbeats of `run` renew it as well,
    and it is released when the run ends.
    """
    lock_request = LockRequest(
        project=project, path=path, agent=agent, mode=mode, ttl_ms=ttl_ms, run=run, reason=reason
    )
    return _acquire(tx, lock_request)


def request(
    tx: Tx,
    project: str,
    path: str,
    agent: str,
    *,
    mode: str = "exclusive",
    ttl_ms: int = TTL_MS,
    run: str | None = None,
    reason: str | None = None,
    wait_ms: int = WAIT_MS,
    notify: bool = True,
) -> Lock:
    """Lock a path, or enter the wait queue for it: the lock is `held` or `waiting`.

    With `notify` the owner gets a letter when the lock is granted. The place in the queue is kept
    for `wait_ms`, and longer when renewed. Raises Conflict when waiting would be a deadlock.
    """
    lock_request = LockRequest(
        project=project,
        path=path,
        agent=agent,
        mode=mode,
        ttl_ms=ttl_ms,
        run=run,
        reason=reason,
        wait_ms=wait_ms,
        notify=notify,
    )
    return _acquire(tx, lock_request)


def _acquire(tx: Tx, lock_request: LockRequest) -> Lock:
    """Renew the owner's own lock, or grant, queue or refuse a new one."""
    wait_until = (
        None if lock_request.wait_ms is None else lease_expiry(tx.now, lock_request.wait_ms)
    )
    draft = _build_draft(tx, lock_request)
    tx.serialize(f"locks:{draft.project_id}")
    candidates = _refresh_candidates(tx, draft)
    own = _find_own(draft, candidates)
    if own is not None:
        return _renew_own(tx, own, draft, wait_until, candidates)
    blockers = wait_queue.list_blockers(draft, candidates)
    if not blockers:
        return _create(tx, draft, "acquire")
    if wait_until is None:
        raise errors.held_error(tx.now, draft.path, blockers[0])
    return _enqueue(tx, draft, wait_until)


def _build_draft(tx: Tx, lock_request: LockRequest) -> Lock:
    """Return the lock as it would be granted. It has no row yet, so it ranks behind all others."""
    until = lease_expiry(tx.now, lock_request.ttl_ms)
    target = resolve.get_project(tx, lock_request.project)
    return Lock(
        id="",
        fence=LAST_NUMBER,
        state=LockState.HELD,
        project_id=target.id,
        path=resolve.resolve_pattern(target, lock_request.path),
        mode=resolve.parse_mode(lock_request.mode),
        owner=resolve.resolve_owner(tx, lock_request.agent),
        run_id=check_optional_text(lock_request.run, "The run", max_bytes=MAX_NAME),
        reason=check_optional_text(lock_request.reason, "The reason", max_bytes=MAX_REASON),
        ttl_ms=lock_request.ttl_ms,
        lease_until=until,
        notify=lock_request.notify,
        created_at=tx.now,
        held_at=tx.now,
        ended_at=None,
        ended_by=None,
    )


def _renew_own(
    tx: Tx, own: Lock, draft: Lock, wait_until: int | None, candidates: Sequence[Lock]
) -> Lock:
    """Renew the same lock of the same owner, or its place in the wait queue."""
    if own.state is LockState.HELD:
        return _extend(tx, own, draft.ttl_ms, draft.lease_until)
    if wait_until is None:
        blockers = wait_queue.list_blockers(own, candidates)
        raise errors.held_error(tx.now, draft.path, blockers[0])
    return _extend(tx, own, draft.ttl_ms, wait_until)


def _enqueue(tx: Tx, draft: Lock, wait_until: int) -> Lock:
    """Enter the wait queue; raises Conflict when waiting would be a deadlock."""
    deadlock = wait_queue.find_deadlock(draft, _list_live(tx, draft.project_id))
    if deadlock is not None:
        raise errors.deadlock_error(draft.path, deadlock)
    return _create(tx, replace(draft, lease_until=wait_until, held_at=None), "request")


def _refresh_candidates(tx: Tx, draft: Lock) -> list[Lock]:
    """List the live locks that can conflict with a pattern.

    Expired ones are ended first, so that the requests that waited for them are granted before this
    one.
    """
    candidates = list_candidates(tx, draft.project_id, draft.path)
    if any(lock.lease_until <= tx.now for lock in candidates):
        _update_queue(tx, draft.project_id)
        candidates = list_candidates(tx, draft.project_id, draft.path)
    return candidates


def _find_own(draft: Lock, candidates: Sequence[Lock]) -> Lock | None:
    """Return the same lock of the same owner, held or waiting."""
    same = (draft.path, draft.mode, draft.owner, draft.run_id)
    return next(
        (lock for lock in candidates if (lock.path, lock.mode, lock.owner, lock.run_id) == same),
        None,
    )


def _create(tx: Tx, draft: Lock, verb: str) -> Lock:
    if tx.value(sql.COUNT_OF_OWNER, owner=draft.owner, most=MAX_LOCKS) >= MAX_LOCKS:
        raise Refused(
            f"{draft.owner} has reached the limit of {MAX_LOCKS:,} locks. Release some, or lock a "
            "directory instead.",
            owner=draft.owner,
        )
    values = {
        "project_id": draft.project_id,
        "path": draft.path,
        "path_prefix": get_literal_prefix(draft.path),
        "mode": draft.mode,
        "owner": draft.owner,
        "run_id": draft.run_id,
        "reason": draft.reason,
        "ttl_ms": draft.ttl_ms,
        "lease_until": draft.lease_until,
        "notify": int(bool(draft.notify)),
        "created_at": draft.created_at,
        "held_at": draft.held_at,
    }
    event_data = {"path": draft.path, "mode": draft.mode, "owner": draft.owner}
    return create(tx, sql.LOCKS, values, verb=verb, event_data=event_data)


def renew(tx: Tx, lock: Lock | str, *, agent: str | None = None, ttl_ms: int | None = None) -> Lock:
    """Renew a lock, or a place in the wait queue; raises Held when it has expired."""
    current = resolve.get_owned(tx, lock, agent)
    duration = current.ttl_ms if ttl_ms is None else ttl_ms
    if not current.is_live(tx.now):
        raise errors.lost_error(tx, current)
    return _extend(tx, current, duration, lease_expiry(tx.now, duration))


def extend_wait(tx: Tx, lock: Lock, *, wait_ms: int) -> Lock:
    """Extend a place in the wait queue."""
    return _extend(tx, lock, lock.ttl_ms, lease_expiry(tx.now, wait_ms))


def _extend(tx: Tx, lock: Lock, ttl_ms: int, until: int) -> Lock:
    renewed = tx.first(
        sql.RENEW,
        seq=lock.fence,
        now=tx.now,
        ttl_ms=ttl_ms,
        until=max(until, lock.lease_until),
    )
    if renewed is None:
        raise errors.lost_error(tx, sql.LOCKS.get(tx, lock.fence))
    return renewed


def release(tx: Tx, lock: Lock | str, *, agent: str | None = None) -> Lock:
    """Release a lock, or leave the wait queue. Idempotent; raises Held when it was lost before.

    With an id, `agent` is required: only the owner can release a lock.
    """
    if isinstance(lock, Lock) and lock.state is LockState.HELD and lock.lease_until > tx.now:
        # Fast path: the row is usually unchanged since the owner acquired the lock.
        with suppress(IllegalMove):
            return _release(tx, lock)
    current = resolve.get_owned(tx, lock, agent)
    if current.state in (LockState.RELEASED, LockState.WITHDRAWN):
        return current
    if not current.is_live(tx.now):
        raise errors.lost_error(tx, current)
    return _release(tx, current)


def _release(tx: Tx, lock: Lock) -> Lock:
    tx.serialize(f"locks:{lock.project_id}")
    if lock.state is LockState.WAITING:  # it may have been granted before the line above
        lock = sql.LOCKS.get(tx, lock.fence)
    released = _end(tx, lock, _release_verb(lock))
    _grant_waiting(tx, lock.project_id)
    return released


def _release_verb(lock: Lock) -> str:
    return "release" if lock.state is LockState.HELD else "withdraw"


def _end(tx: Tx, lock: Lock, verb: str, **event_data: Any) -> Lock:
    return transition(
        tx,
        sql.LOCKS,
        verb,
        lock.fence,
        event_data={"path": lock.path, "owner": lock.owner} | event_data,
        ended_at=tx.now,
        ended_by=tx.actor,
    )


def revoke(tx: Tx, lock: str, *, reason: str) -> Lock:
    """Revoke a lock; its owner gets a letter with the reason. Only people may do this."""
    if not is_person(tx.actor):
        raise Refused(
            f"{tx.actor} cannot revoke a lock. Ask its owner to release it, or ask a person.",
            actor=tx.actor,
        )
    text = check_text(reason, "The reason", max_bytes=MAX_REASON)
    current = get(tx, lock)
    tx.serialize(f"locks:{current.project_id}")
    revoked = _end(tx, current, "revoke", reason=text)
    _notify_owner(tx, revoked, f"was revoked by {tx.actor}: {text}.")
    _grant_waiting(tx, current.project_id)
    return revoked


def release_for_run(tx: Tx, run: str) -> list[Lock]:
    """Release all locks that a run holds or waits for, when the run ends."""
    return _end_all(tx, tx.all(sql.LIVE_OF_RUN, run_id=run))


def release_project(tx: Tx, project_id: str) -> None:
    """End the locks of a project that is being deleted, and delete its touches."""
    tx.serialize(f"locks:{project_id}")
    for lock in _list_live(tx, project_id, include_expired=True):
        _end(tx, lock, "revoke", reason="the project was deleted")
    tx.run(sql.DELETE_TOUCHES, project_id=project_id)


def _end_all(tx: Tx, locks: Sequence[Lock]) -> list[Lock]:
    project_ids = sorted({lock.project_id for lock in locks})  # sorted, to avoid deadlocks
    for project_id in project_ids:
        tx.serialize(f"locks:{project_id}")
    live = [lock for lock in (get(tx, lock.id) for lock in locks) if lock.ended_at is None]
    ended = [_end(tx, lock, _release_verb(lock)) for lock in live]
    for project_id in project_ids:
        _grant_waiting(tx, project_id)
    return ended


# -- the wait queue -----------------------------------------------------------------------------


def expire_due(tx: Tx, *, limit: int = 100) -> list[Lock]:
    """End the expired locks, grant the requests that waited for them, and notify the owners once.

    Correctness does not depend on this call, because expired locks never count. It only makes
    sure that owners are notified soon.
    """
    rows = tx.run(sql.PROJECTS_WITH_EXPIRED, now=tx.now, limit=check_limit(limit))
    ended = []
    for project_id in sorted({project_id for (project_id,) in rows}):
        tx.serialize(f"locks:{project_id}")
        ended += _update_queue(tx, project_id)
    return ended


def has_expired(tx: Tx) -> bool:
    """Whether a lock has expired whose state is still `held` or `waiting`."""
    return tx.value(sql.PROJECTS_WITH_EXPIRED, now=tx.now, limit=1) is not None


def _grant_waiting(tx: Tx, project_id: str) -> None:
    if tx.value(sql.HAS_WAITERS, project_id=project_id) is not None:
        _update_queue(tx, project_id)


def _update_queue(tx: Tx, project_id: str) -> list[Lock]:
    """End the expired locks of a project and grant the unblocked requests; returns the ended."""
    locks = _list_live(tx, project_id, include_expired=True)
    expired = _find_expired_numbers(tx, project_id, locks)
    ended = [_end(tx, lock, "expire") for lock in locks if lock.fence in expired]
    for lock in ended:
        if lock.held_at is not None or lock.notify:
            _notify_owner(tx, lock, "has expired. Acquire it again if you still need it.")
    for lock in wait_queue.list_grantable([lock for lock in locks if lock.fence not in expired]):
        granted = transition(
            tx,
            sql.LOCKS,
            "grant",
            lock.fence,
            event_data={"path": lock.path, "owner": lock.owner},
            held_at=tx.now,
            lease_until=tx.now + lock.ttl_ms,
        )
        if lock.notify:
            _notify_owner(tx, granted, "was granted. Release it when you are done.")
    return ended


def _find_expired_numbers(tx: Tx, project_id: str, locks: Sequence[Lock]) -> set[int]:
    """Return the numbers of the expired locks.

    They are read again with row locks, so that a lock that is renewed concurrently is not expired.
    """
    if all(lock.lease_until > tx.now for lock in locks):
        return set()
    return {seq for (seq,) in tx.run(sql.EXPIRED, project_id=project_id, now=tx.now)}


def _list_live(tx: Tx, project_id: str, *, include_expired: bool = False) -> list[Lock]:
    locks = tx.all(sql.LIVE_OF_PROJECT, project_id=project_id)
    locks.sort(key=lambda lock: lock.fence)
    return locks if include_expired else [lock for lock in locks if lock.lease_until > tx.now]


def _notify_owner(tx: Tx, lock: Lock, predicate: str) -> None:
    """Put a letter to the lock's owner, once for each state of the lock.

    `predicate` completes the sentence "Your lock …".
    """
    if mailbox_kind(lock.owner) in _OWNERS_WITH_MAILBOX:
        mail.put_caused_by(
            tx,
            None,
            lock.owner,
            LockNotice(
                lock=lock.id,
                state=lock.state,
                path=lock.path,
                mode=lock.mode,
                until=lock.lease_until if lock.state is LockState.HELD else None,
                text=f"Your lock {lock.id} on {lock.path} {predicate}",
            ),
            key=f"lock:{lock.id}:{lock.state}",
            project=lock.project_id,
        )


def get(tx: Tx, id: str) -> Lock:
    """Return a lock by its id."""
    return sql.LOCKS.get(tx, parse_number("lck", id))
