"""Read the event log. Events are written by the transactions that change data."""

import re

from corral.db.statement import Query
from corral.db.tx import Tx
from corral.domain.events import sql
from corral.domain.events.model import Event
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import MAX_NAME, check_text

RETENTION = sql.RETENTION
_CURSOR = re.compile(r"(?:([0-9]{1,18})-)?([0-9]{1,18})")


def list_after(
    tx: Tx,
    cursor: str | None = None,
    *,
    subject: str | None = None,
    project: str | None = None,
    limit: int = 100,
) -> Page[Event]:
    """List the events after a cursor, oldest first; without a cursor from the beginning.

    The feed never skips: an event of a transaction that commits late appears late, and never before
    a cursor that was already returned. `next` is the cursor of the last event, or the given one
    when there is nothing new, so the feed can be followed for ever.
    """
    check_limit(limit)
    xid, seq = parse_cursor(cursor)
    query = _select_query(subject, project, sql.AFTER_BY_SUBJECT, sql.AFTER_BY_PROJECT, sql.AFTER)
    items = tx.all(query, xid=xid, seq=seq, subject=subject, project_id=project, limit=limit)
    return Page(items, items[-1].cursor if items else cursor)


def is_held_back(tx: Tx, cursor: str) -> bool:
    """Whether events after a cursor are held back by an older transaction that is still open.

    That transaction may end without an event, so a follower must poll again soon instead of
    waiting for a wake-up.
    """
    xid, seq = parse_cursor(cursor)
    return tx.value(sql.HELD_BACK, xid=xid, seq=seq) is not None


def list_newest(
    tx: Tx, *, subject: str | None = None, project: str | None = None, limit: int = 50
) -> Page[Event]:
    """List the latest events, oldest first. `next` is the cursor for `list_after`."""
    check_limit(limit)
    query = _select_query(
        subject, project, sql.NEWEST_BY_SUBJECT, sql.NEWEST_BY_PROJECT, sql.NEWEST
    )
    items = tx.all(query, subject=subject, project_id=project, limit=limit)[::-1]
    return Page(items, items[-1].cursor if items else None)


def list_before(
    tx: Tx,
    cursor: str,
    *,
    subject: str | None = None,
    project: str | None = None,
    limit: int = 50,
) -> Page[Event]:
    """List the events before a cursor, newest first. `next` is the cursor further back."""
    check_limit(limit)
    xid, seq = parse_cursor(cursor)
    query = _select_query(
        subject, project, sql.BEFORE_BY_SUBJECT, sql.BEFORE_BY_PROJECT, sql.BEFORE
    )
    rows = tx.all(query, xid=xid, seq=seq, subject=subject, project_id=project, limit=limit + 1)
    items = rows[:limit]
    return Page(items, items[-1].cursor if len(rows) > limit else None)


def parse_cursor(cursor: str | None) -> tuple[str, int]:
    """Return the transaction id and number of a cursor; raises Invalid."""
    match = _CURSOR.fullmatch(cursor or "0-0")
    if match is None:
        raise Invalid(
            f"Invalid cursor {cursor!r}: expected the `cursor` of an event. Omit it to "
            "start from the beginning.",
            value=cursor,
        )
    return match[1] or "0", int(match[2])


def _select_query(
    subject: str | None,
    project: str | None,
    by_subject: Query[Event],
    by_project: Query[Event],
    unfiltered: Query[Event],
) -> Query[Event]:
    if subject and project:
        raise Invalid("subject and project cannot be combined. Give one of them.")
    if project and not project.startswith("prj_"):
        raise Invalid(
            f"Invalid project id {project!r}: events are filtered by a project's id. List the ids "
            "with `corral project list`.",
            project=project,
        )
    if subject or project:
        check_text(subject or project or "", "The subject or project", max_bytes=2 * MAX_NAME)
    return by_subject if subject else by_project if project else unfiltered
