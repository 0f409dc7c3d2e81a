"""Taking locks, standing in line for them, and giving them back."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.locks import resolve, sql, wait_queue
from corral.domain.locks.model import Lock, LockState
from corral.domain.mail import ops as mail
from corral.kernel.clock import MINUTE
from corral.kernel.errors import Conflict, IllegalMove, Refused
from corral.kernel.ids import number_of
from corral.kernel.lease import lease_end
from corral.kernel.pagination import LAST_NUMBER, check_limit
from corral.kernel.path_patterns import head_of
from corral.kernel.text import MAX_NAME, clean_text

KEPT, TOUCHES_KEPT = sql.KEPT, sql.TOUCHES_KEPT
TTL_MS = 5 * MINUTE
WAIT_MS = 30 * MINUTE
"""How long a place in line is kept for an owner who does not come back to it."""
MAX_LOCKS = 1_000
MAX_REASON = 1_000
_MAILBOXES = ("agent:", "user:", "session:")


# -- taking and giving back --------------------------------------------------------------------


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
    """Lock a path, a folder or a pattern of a project; Held when somebody else stands in the way.

    Asking for the same again renews it. The heartbeats of `run` renew it too, and it ends with it.
    """
    return _take(tx, project, path, agent, mode, ttl_ms, run, reason, wait_ms=None, tells=False)


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
    tells: bool = True,
) -> Lock:
    """Lock a path, or stand in line for it: the answer is `held` or `waiting`.

    Its owner gets a letter when it is granted. The place in line is kept for `wait_ms`, and longer
    when it is renewed. Conflict when those in the way wait for what the asker holds.
    """
    return _take(tx, project, path, agent, mode, ttl_ms, run, reason, wait_ms=wait_ms, tells=tells)


def _take(
    tx: Tx,
    project: str,
    path: str,
    agent: str,
    mode: str,
    ttl_ms: int,
    run: str | None,
    reason: str | None,
    *,
    wait_ms: int | None,
    tells: bool,
) -> Lock:
    until = lease_end(tx.now, ttl_ms)
    place_until = None if wait_ms is None else lease_end(tx.now, wait_ms)
    where = resolve.project_of(tx, project)
    wanted = Lock(
        id="",
        fence=LAST_NUMBER,
        state=LockState.HELD,
        project_id=where.id,
        path=resolve.pattern_of(where, path),
        mode=resolve.check_mode(mode),
        owner=resolve.owner_of(tx, agent),
        run_id=clean_text(run, "The run", most=MAX_NAME) if run else None,
        reason=clean_text(reason, "The reason", most=MAX_REASON) if reason else None,
        ttl_ms=ttl_ms,
        lease_until=until,
        tells=tells,
        created_at=tx.now,
        held_at=tx.now,
        ended_at=None,
        ended_by=None,
    )
    tx.serialize(f"locks:{where.id}")
    near = _near(tx, wanted)
    own = _own(wanted, near)
    if own is not None and own.state is LockState.HELD:
        return _extend(tx, own, ttl_ms, until)
    in_the_way = wait_queue.in_the_way(own or wanted, near)
    if not in_the_way and own is None:
        return _create(tx, wanted, "acquire")
    if place_until is None:
        raise resolve.held(tx.now, wanted.path, in_the_way[0])
    if own is not None:
        return _extend(tx, own, ttl_ms, place_until)
    if (circle := wait_queue.closes_circle(wanted, _live(tx, where.id))) is not None:
        raise Conflict(
            f"{circle.owner} waits for what you hold ({circle.path}), so you would wait for each "
            "other for ever; release that first.",
            path=wanted.path,
            waits=circle.id,
            owner=circle.owner,
            reason="deadlock",
        )
    return _create(tx, wanted, "ask", lease_until=place_until, held_at=None)


def _near(tx: Tx, wanted: Lock) -> list[Lock]:
    """The live locks that can meet a pattern. Where one has run out, its row is ended first, and
    whoever waited for it goes before us."""
    near = resolve.read_near(tx, wanted.project_id, wanted.path)
    if any(lock.lease_until <= tx.now for lock in near):
        _settle(tx, wanted.project_id)
        near = resolve.read_near(tx, wanted.project_id, wanted.path)
    return near


def _own(wanted: Lock, near: Sequence[Lock]) -> Lock | None:
    """The lock that its owner has, or waits for, already."""
    same = (wanted.path, wanted.mode, wanted.owner, wanted.run_id)
    return next(
        (lock for lock in near if (lock.path, lock.mode, lock.owner, lock.run_id) == same), None
    )


def _create(tx: Tx, wanted: Lock, verb: str, **other: Any) -> Lock:
    if tx.value(sql.COUNT_OF_OWNER, owner=wanted.owner, most=MAX_LOCKS) >= MAX_LOCKS:
        raise Refused(
            f"{wanted.owner} has {MAX_LOCKS:,} locks, which is all it can have; release some, or "
            "lock a folder.",
            owner=wanted.owner,
        )
    values = {
        "project_id": wanted.project_id,
        "path": wanted.path,
        "head": head_of(wanted.path),
        "mode": wanted.mode,
        "owner": wanted.owner,
        "run_id": wanted.run_id,
        "reason": wanted.reason,
        "ttl_ms": wanted.ttl_ms,
        "lease_until": wanted.lease_until,
        "tells": int(bool(wanted.tells)),
        "created_at": wanted.created_at,
        "held_at": wanted.held_at,
    } | other
    note = {"path": wanted.path, "mode": wanted.mode, "owner": wanted.owner}
    made = create(tx, sql.LOCKS, values, begin=verb, note=note)
    assert made is not None
    return made


def renew(tx: Tx, lock: Lock | str, *, agent: str | None = None, ttl_ms: int | None = None) -> Lock:
    """Keep a lock, or a place in line, for another term; Held when it has run out."""
    found = resolve.of_owner(tx, lock, agent)
    term = found.ttl_ms if ttl_ms is None else ttl_ms
    if not found.is_live(tx.now):
        raise resolve.lost(tx, found)
    return _extend(tx, found, term, lease_end(tx.now, term))


def keep_place(tx: Tx, lock: Lock, *, wait_ms: int) -> Lock:
    """Keep a place in line for longer."""
    return _extend(tx, lock, lock.ttl_ms, lease_end(tx.now, wait_ms))


def _extend(tx: Tx, lock: Lock, ttl_ms: int, until: int) -> Lock:
    renewed = tx.one(
        sql.RENEW,
        seq=lock.fence,
        now=tx.now,
        ttl_ms=ttl_ms,
        until=max(until, lock.lease_until),
    )
    if renewed is None:
        raise resolve.lost(tx, sql.LOCKS.get(tx, lock.fence))
    return renewed


def release(tx: Tx, lock: Lock | str, *, agent: str | None = None) -> Lock:
    """Give a lock back, or leave the line. Doing it twice is fine; Held when it was lost before.

    With an id, say who you are by `agent`: nobody gives back what is another's.
    """
    if isinstance(lock, Lock) and lock.state is LockState.HELD and lock.lease_until > tx.now:
        with suppress(IllegalMove):  # as it was when its owner got it, mostly
            return _give_back(tx, lock)
    found = resolve.of_owner(tx, lock, agent)
    if found.state in (LockState.RELEASED, LockState.WITHDRAWN):
        return found
    if not found.is_live(tx.now):
        raise resolve.lost(tx, found)
    return _give_back(tx, found)


def _give_back(tx: Tx, lock: Lock) -> Lock:
    tx.serialize(f"locks:{lock.project_id}")
    released = _end(tx, lock)
    _go_on(tx, lock.project_id)
    return released


def _end(tx: Tx, lock: Lock, verb: str | None = None, **note: Any) -> Lock:
    how = verb or ("release" if lock.state is LockState.HELD else "withdraw")
    return move(
        tx,
        sql.LOCKS,
        how,
        lock.fence,
        note={"path": lock.path, "owner": lock.owner} | note,
        ended_at=tx.now,
        ended_by=tx.actor,
    )


def revoke(tx: Tx, lock: str, *, reason: str) -> Lock:
    """Take a lock away from its owner, who is told why. For people: an agent is refused."""
    if not tx.actor.startswith(("user:", "token:")):  # an agent's token acts as agent:NAME
        raise Refused(
            f"{tx.actor} cannot take a lock away; ask its owner to release it, or a person.",
            actor=tx.actor,
        )
    why = clean_text(reason, "The reason", most=MAX_REASON)
    found = get(tx, lock)
    tx.serialize(f"locks:{found.project_id}")
    revoked = _end(tx, found, "revoke", reason=why)
    _tell(tx, revoked, f"{tx.actor} took it away: {why}")
    _go_on(tx, found.project_id)
    return revoked


def release_of_run(tx: Tx, run: str) -> list[Lock]:
    """Give back everything that a run has locked, or waits for. For the end of a run."""
    return _end_all(tx, tx.all(sql.LIVE_OF_RUN, run_id=run))


def forget_project(tx: Tx, project_id: str) -> None:
    """End the locks of a project that is deleted, and forget who touched its files."""
    tx.serialize(f"locks:{project_id}")
    for lock in _live(tx, project_id, lapsed_too=True):
        _end(tx, lock, "revoke", reason="the project was deleted")
    tx.run(sql.FORGET_TOUCHES, project_id=project_id)


def _end_all(tx: Tx, found: Sequence[Lock]) -> list[Lock]:
    places = sorted({lock.project_id for lock in found})
    for project_id in places:
        tx.serialize(f"locks:{project_id}")
    live = [lock for lock in (get(tx, lock.id) for lock in found) if lock.ended_at is None]
    ended = [_end(tx, lock) for lock in live]
    for project_id in places:
        _go_on(tx, project_id)
    return ended


# -- the line ----------------------------------------------------------------------------------


def expire_due(tx: Tx, *, limit: int = 100) -> list[Lock]:
    """End the locks that have run out, grant what waited for them, and tell both owners, once.

    Nothing depends on it but who is told, and when.
    """
    due = {project_id for (project_id,) in tx.run(sql.DUE, now=tx.now, limit=check_limit(limit))}
    ended = []
    for project_id in sorted(due):
        tx.serialize(f"locks:{project_id}")
        ended += _settle(tx, project_id)
    return ended


def are_due(tx: Tx) -> bool:
    """Whether a lock has run out whose row still says otherwise."""
    return tx.value(sql.DUE, now=tx.now, limit=1) is not None


def _go_on(tx: Tx, project_id: str) -> None:
    if tx.value(sql.IS_WAITED_FOR, project_id=project_id) is not None:
        _settle(tx, project_id)


def _settle(tx: Tx, project_id: str) -> list[Lock]:
    """End what has run out in a project, and grant what nobody stands in the way of any more."""
    rows = _live(tx, project_id, lapsed_too=True)
    over = _lapsed(tx, project_id, rows)
    ended = [_end(tx, lock, "expire") for lock in rows if lock.fence in over]
    for lock in ended:
        if lock.held_at is not None or lock.tells:
            _tell(tx, lock, "it ran out; ask for it again if you still need it")
    for lock in wait_queue.next_to_hold([lock for lock in rows if lock.fence not in over]):
        granted = move(
            tx,
            sql.LOCKS,
            "grant",
            lock.fence,
            note={"path": lock.path, "owner": lock.owner},
            held_at=tx.now,
            lease_until=tx.now + lock.ttl_ms,
        )
        if lock.tells:
            _tell(tx, granted, "it is yours now; release it when you are done")
    return ended


def _lapsed(tx: Tx, project_id: str, rows: Sequence[Lock]) -> set[int]:
    """The numbers of the locks that have run out, looked at once more where any seem to have."""
    if all(lock.lease_until > tx.now for lock in rows):
        return set()
    return {seq for (seq,) in tx.run(sql.LAPSED, project_id=project_id, now=tx.now)}


def _live(tx: Tx, project_id: str, *, lapsed_too: bool = False) -> list[Lock]:
    rows = tx.all(sql.LIVE_OF_PROJECT, project_id=project_id)
    rows.sort(key=lambda lock: lock.fence)
    return rows if lapsed_too else [lock for lock in rows if lock.lease_until > tx.now]


def _tell(tx: Tx, lock: Lock, what: str) -> None:
    """A letter to a lock's owner, once for each state that the lock reaches."""
    if lock.owner.startswith(_MAILBOXES):
        mail.put_after(
            tx,
            None,
            lock.owner,
            {
                "lock": lock.id,
                "state": lock.state,
                "path": lock.path,
                "mode": lock.mode,
                "until": lock.lease_until if lock.state is LockState.HELD else None,
                "text": f"Your lock {lock.id} on {lock.path} is {lock.state}: {what}.",
            },
            key=f"lock:{lock.id}:{lock.state}",
            project=lock.project_id,
        )


def get(tx: Tx, id: str) -> Lock:
    """A lock by its id."""
    return sql.LOCKS.get(tx, number_of("lck", id))
