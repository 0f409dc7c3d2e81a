"""The errors of locks: held by another owner, lost, or a deadlock."""

from corral.db.tx import Tx
from corral.domain.locks import candidates, wait_queue
from corral.domain.locks.model import Lock, LockState
from corral.kernel.clock import SECOND, format_duration, utc_time
from corral.kernel.display_text import quote_inline
from corral.kernel.errors import Conflict, Held


def held_error(now: int, path: str, lock: Lock) -> Held:
    """Build the error that names the conflicting owner and the end of its lease."""
    covering = f" by its lock on {lock.path}" if lock.path != path else ""
    shown = path if path.isprintable() else repr(path)
    verb = "holds" if lock.state is LockState.HELD else "is queued before you for"
    # The reason is text of another owner that an agent reads, so it is one quoted line.
    purpose = f", for: {quote_inline(lock.reason)}" if lock.reason else ""
    left = format_duration(max(lock.lease_until - now, SECOND) // SECOND * SECOND)
    return Held(
        f"{lock.owner} {verb} {shown}{covering} ({lock.id}, {lock.mode}{purpose}) until "
        f"{utc_time(lock.lease_until)}, {left} from now unless renewed. "
        "Wait for it with `corral lock acquire PATH --wait`, or work on other files.",
        path=path,
        lock=lock.id,
        owner=lock.owner,
        locked=lock.path,
        mode=lock.mode,
        until=lock.lease_until,
        reason="locked",
    )


def not_granted_error(path: str) -> Held:
    """Build the error for a request that has no lock ahead of it, and is not granted yet."""
    return Held(
        f"{path} is not locked, but your queued request has not been granted yet. Request the "
        "lock again.",
        path=path,
        owner=None,
        reason="locked",
    )


def lost_error(tx: Tx, lock: Lock) -> Held:
    """Build the error for an owner that has lost its lock."""
    if lock.state in (LockState.HELD, LockState.WAITING, LockState.EXPIRED):
        how, reason = f"expired at {utc_time(lock.lease_until)}", LockState.EXPIRED
    else:
        how, reason = f"is {lock.state}", lock.state
    holders = [
        other
        for other in candidates.list_candidates(tx, lock.project_id, lock.path)
        if other.is_live(tx.now)
        and other.state is LockState.HELD
        and wait_queue.is_conflict(lock, other)
    ]
    by = f", and {holders[0].owner} holds {holders[0].path} now" if holders else ""
    return Held(
        f"{lock.id} on {lock.path} {how}{by}. Check what changed, then acquire it again.",
        id=lock.id,
        state=lock.state,
        path=lock.path,
        fence=lock.fence,
        owner=holders[0].owner if holders else None,
        reason=reason.value,
    )


def deadlock_error(path: str, waiting: Lock) -> Conflict:
    """Build the error for a request that would wait for an owner that waits for the requester."""
    return Conflict(
        f"Deadlock: {waiting.owner} waits for {waiting.path}, which you hold. Release that lock "
        "first.",
        path=path,
        waits=waiting.id,
        owner=waiting.owner,
        reason="deadlock",
    )
