"""Acquisition of locks: at once, or after waiting in the queue; and their release."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from corral.db.tx import Tx
from corral.domain.locks import errors, heartbeat, ops, queries
from corral.domain.locks.model import Lock, LockState
from corral.kernel.errors import Held, Invalid, NotYet
from corral.kernel.pagination import Page
from corral.services.store.write_before_read import try_write_before_read
from corral.services.wait import wait_until

if TYPE_CHECKING:
    from corral.db.database import Database

# Without renewal, a queue position expires after POSITION_MS. A waiting process renews it when less
# than RENEW_MS is left, also if each of its calls waits for a short time only.
POSITION_MS = 30_000
RENEW_MS = 20_000


def acquire(
    database: "Database",
    project: str,
    path: str,
    agent: str,
    *,
    mode: Literal["exclusive", "shared"] = "exclusive",
    ttl_ms: int = ops.TTL_MS,
    wait: bool = False,
    timeout_ms: int | None = None,
    run: str | None = None,
    reason: str | None = None,
) -> Lock:
    """Acquire a lock; see `Locks.acquire`."""
    if not wait:
        return _acquire_now(
            database, project, path, agent, mode=mode, ttl_ms=ttl_ms, run=run, reason=reason
        )
    lock = database.write(
        lambda tx: ops.request(
            tx,
            project,
            path,
            agent,
            mode=mode,
            ttl_ms=ttl_ms,
            run=run,
            reason=reason,
            wait_ms=POSITION_MS,
            notify=False,
        ),
        repeatable=True,
    )
    if lock.state is LockState.HELD:
        return lock
    try:
        current = _wait_until_granted(database, lock.id, timeout_ms)
        if current.state is LockState.WAITING:
            current, blocked = database.read(partial(_find_blocker, lock=lock.id))
            if blocked is not None:
                raise blocked
        return current
    except BaseException:
        _leave_queue(database, lock)
        raise


def _acquire_now(database: "Database", project: str, path: str, agent: str, **how: Any) -> Lock:
    try:
        return database.write(
            lambda tx: ops.acquire(tx, project, path, agent, **how), repeatable=True
        )
    except Held:
        # The failed transaction was rolled back, with the expiry of due locks that it found.
        if _has_due(database):
            expire_due(database)
        raise


def wait_for_lock(database: "Database", lock: str, *, timeout_ms: int | None = None) -> Lock:
    """Wait until a queued lock is granted and keep its queue position meanwhile.

    Raises NotYet after `timeout_ms`, and Held when the queue position was lost.
    """
    current = _wait_until_granted(database, lock, timeout_ms)
    if current.state is LockState.WAITING:
        current, blocked = database.read(partial(_find_blocker, lock=lock))
        if blocked is not None:
            raise NotYet(blocked.message, **blocked.details)
    return current


def _wait_until_granted(database: "Database", lock: str, timeout_ms: int | None) -> Lock:
    """Wait for a queued lock; returns it held, or still waiting after `timeout_ms`.

    Raises Held when the queue position was lost.
    """
    latest: Lock

    def read_granted() -> Lock | None:
        nonlocal latest
        latest = _get(database, lock)
        if latest.state is LockState.WAITING and _has_due(database):
            expire_due(database)
            latest = _get(database, lock)
        if latest.state is not LockState.WAITING:
            return latest
        if latest.lease_until - database.clock.now() < RENEW_MS:
            renew = partial(ops.extend_wait, lock=latest, wait_ms=POSITION_MS)
            database.write(renew, repeatable=True)
        return None

    if wait_until(database, read_granted, timeout_ms=timeout_ms) is None:
        return latest
    if latest.state is not LockState.HELD:
        raise database.read(lambda tx: errors.lost_error(tx, latest))
    return latest


def _find_blocker(tx: Tx, lock: str) -> tuple[Lock, Held | None]:
    """Return a lock, and if it still waits, the error that names the first lock ahead of it.

    Reads both in one transaction, because the last blocker may end after the timeout. Raises Held
    when the queue position was lost.
    """
    current = ops.get(tx, lock)
    if current.state is LockState.HELD:
        return current, None
    if current.state is not LockState.WAITING:
        raise errors.lost_error(tx, current)
    ahead = queries.list_blocking(tx, current)
    if not ahead:  # the blocker's lease has ended, but it was not expired yet
        return current, errors.not_granted_error(current.path)
    return current, errors.held_error(tx.now, current.path, ahead[0])


def _leave_queue(database: "Database", lock: Lock) -> None:
    with suppress(Held):  # it expired meanwhile
        database.write(lambda tx: ops.release(tx, lock), repeatable=True)


def list_locks(
    database: "Database",
    *,
    project: str | None = None,
    agent: str | None = None,
    all: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Lock]:
    """List locks after expiring those that are due; see `Locks.list`."""
    if agent is not None and (project is not None or all):
        raise Invalid("Give an agent or a project, not both.")
    if _has_due(database):
        try_write_before_read(database, "lock.expire_due", lambda: expire_due(database))
    if agent is not None:
        return database.read(lambda tx: queries.list_of_owner(tx, agent, after=after, limit=limit))
    pages = queries.list_all if all else queries.list_live
    return database.read(lambda tx: pages(tx, project=project, after=after, limit=limit))


def release_for_run(database: "Database", run: str) -> Sequence[Lock]:
    """Release everything that a run has locked or waits for. Idempotent."""
    if not database.read(lambda tx: heartbeat.has_locks(tx, run), mode="one"):
        return []
    return database.write(lambda tx: ops.release_for_run(tx, run), repeatable=True)


def expire_due(database: "Database") -> list[Lock]:
    """Expire the locks whose lease has ended, and grant them to the next in the queue."""
    return database.write(ops.expire_due, repeatable=True)


def _has_due(database: "Database") -> bool:
    return database.read(ops.has_expired, mode="one")


def _get(database: "Database", lock: str) -> Lock:
    return database.read(lambda tx: ops.get(tx, lock), mode="one")
