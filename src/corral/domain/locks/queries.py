"""Looking at locks: who holds a path, who is in the way, and who knows a file."""

from collections.abc import Sequence
from typing import Any

from corral.db.tx import Tx
from corral.domain.locks import resolve, sql, wait_queue
from corral.domain.locks.model import InTheWay, Lock, LockState, Touch
from corral.domain.settings import ops as settings
from corral.kernel.clock import SECOND
from corral.kernel.errors import Invalid
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.path_patterns import WHOLE, head_of, meet

MAX_PATHS = 100_000
FEW = 4  # paths that are looked for one by one, and not among all locks of the project


def holders(tx: Tx, project: str, path: str) -> list[Lock]:
    """The locks that are held on a path at this moment, or on anything that it covers."""
    where = resolve.project_of(tx, project)
    pattern = resolve.pattern_of(where, path)
    return [
        lock for lock in resolve.read_near(tx, where.id, pattern) if _holds(lock, pattern, tx.now)
    ]


def in_the_way(
    tx: Tx,
    project: str,
    paths: Sequence[str],
    agent: str,
    *,
    run: str | None = None,
    as_spelled: bool = False,
) -> list[InTheWay]:
    """Those of the paths that others hold, so that this owner must not change them; each with who
    that is, and until when.

    `as_spelled` is for whole paths of a commit: no link in them is followed, and what is outside of
    the project is passed over.
    """
    where = resolve.project_of(tx, project)
    if len(paths) > MAX_PATHS:
        raise Invalid(f"Ask for {MAX_PATHS:,} paths at the most, not {len(paths):,}.")
    owner = resolve.owner_of(tx, agent)
    wanted: dict[str, str] = {}
    for path in paths:
        if not as_spelled:
            wanted[path] = resolve.pattern_of(where, path, lockable=False)
        elif spelled := resolve.pattern_as_spelled(where, path):
            wanted[path] = spelled
    few = len(wanted) <= FEW
    others = [] if few else _of_others(tx.all(sql.LIVE_OF_PROJECT, project_id=where.id), owner, run)
    found = []
    for path, pattern in wanted.items():
        if few:
            others = _of_others(resolve.read_near(tx, where.id, pattern), owner, run)
        lock = next((lock for lock in others if _holds(lock, pattern, tx.now)), None)
        if lock is not None:
            found.append(InTheWay(path, lock, resolve.held(tx.now, pattern, lock).message))
    return found


def ahead_of(tx: Tx, lock: Lock) -> list[Lock]:
    """Whom a lock in line waits for: those who hold what it meets, and those who asked before."""
    near = resolve.read_near(tx, lock.project_id, lock.path)
    return wait_queue.in_the_way(lock, [other for other in near if other.is_live(tx.now)])


def edit_term(tx: Tx, project: str, agent: str) -> int:
    """For how long an edit locks its file; 0 when it does not."""
    name = agent.removeprefix("agent:")
    term = int(settings.value(tx, "locks.edit_ms", agent=name, project=project))
    return max(term, SECOND) if term else 0


def _of_others(locks: Sequence[Lock], owner: str, run: str | None) -> list[Lock]:
    return [
        lock
        for lock in locks
        if lock.owner != owner or (run is not None and lock.run_id not in (None, run))
    ]


def _holds(lock: Lock, pattern: str, now: int) -> bool:
    held = lock.state is LockState.HELD and lock.lease_until > now
    return held and meet(lock.path, pattern)


def list_live(
    tx: Tx, *, project: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Lock]:
    """Locks that are held or waited for, by path, of all projects or of one."""
    last_project, head, seq = decode_cursor(after, "", "", 0)
    place: dict[str, Any] = {"head": head, "seq": seq, "now": tx.now}
    if project is None:
        statement, of = sql.LIVE, last_project
    else:
        statement, of = sql.LIST_OF_PROJECT, resolve.project_of(tx, project).id
    rows = tx.all(statement, project_id=of, limit=check_limit(limit) + 1, **place)
    return page_of(rows, limit, lambda lock: (lock.project_id, head_of(lock.path), lock.fence))


def list_all(
    tx: Tx, *, project: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Lock]:
    """All locks that are kept, also those that have ended: newest first."""
    (before,) = decode_cursor(after, LAST_NUMBER)
    of = {} if project is None else {"project_id": resolve.project_of(tx, project).id}
    statement = sql.ALL_OF_PROJECT if of else sql.ALL
    rows = tx.all(statement, before=before, limit=check_limit(limit) + 1, **of)
    return page_of(rows, limit, lambda lock: (lock.fence,))


def list_of(tx: Tx, agent: str, *, after: str | None = None, limit: int = 50) -> Page[Lock]:
    """The locks that an owner holds or waits for, oldest first."""
    (last,) = decode_cursor(after, 0)
    rows = tx.all(
        sql.LIVE_OF_OWNER,
        owner=resolve.owner_of(tx, agent),
        after=last,
        now=tx.now,
        limit=check_limit(limit) + 1,
    )
    return page_of(rows, limit, lambda lock: (lock.fence,))


def touch(tx: Tx, project: str, path: str, agent: str) -> Touch:
    """Note that somebody changed a file."""
    where = resolve.project_of(tx, project)
    touched = tx.one(
        sql.TOUCH,
        project_id=where.id,
        path=resolve.pattern_of(where, path, lockable=False),
        owner=resolve.owner_of(tx, agent),
        now=tx.now,
    )
    assert touched is not None
    return touched


def touches(
    tx: Tx,
    project: str,
    path: str = WHOLE,
    *,
    agent: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Touch]:
    """Who changed a file, or the files below a folder: by path, of everybody or of one owner."""
    where = resolve.project_of(tx, project)
    pattern = resolve.pattern_of(where, path).rstrip("/")
    whole = pattern == WHOLE
    last_path, last_owner = decode_cursor(after, "", "")
    span: dict[str, Any] = {
        "project_id": where.id,
        "path": "" if whole else pattern,
        "below": "" if whole else f"{pattern}/",
        "high": resolve.ABOVE_ALL if whole else f"{pattern}0",
        "last_path": last_path,
        "limit": check_limit(limit) + 1,
    }
    if agent is None:
        rows = tx.all(sql.TOUCHES, last_owner=last_owner, **span)
    else:
        rows = tx.all(sql.TOUCHES_OF_OWNER, owner=resolve.owner_of(tx, agent), **span)
    return page_of(rows, limit, lambda touch: (touch.path, touch.owner))
