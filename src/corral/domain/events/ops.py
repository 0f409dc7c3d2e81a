"""Reading the record. Nobody writes here: every change writes its own event, see `Tx.note`."""

import re

from corral.db.statement import Query
from corral.db.tx import Tx
from corral.domain.events import sql
from corral.domain.events.model import Event
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page, check_limit
from corral.kernel.text import MAX_NAME, clean_text

KEPT = sql.KEPT
_CURSOR = re.compile(r"(?:([0-9]{1,18})-)?([0-9]{1,18})")


def after(
    tx: Tx,
    cursor: str | None = None,
    *,
    subject: str | None = None,
    project: str | None = None,
    limit: int = 100,
) -> Page[Event]:
    """What happened behind a cursor, oldest first; from the beginning without one.

    The feed never skips: an event that commits late comes late, and never before a cursor that was
    already given out. `next` is the last event's cursor, or the given one when nothing is new, so
    it can be followed for ever.
    """
    check_limit(limit)
    xid, seq = parse_cursor(cursor)
    query = _by(subject, project, sql.AFTER_BY_SUBJECT, sql.AFTER_BY_PROJECT, sql.AFTER)
    items = tx.all(query, xid=xid, seq=seq, subject=subject, project_id=project, limit=limit)
    return Page(items, items[-1].cursor if items else cursor)


def held_back(tx: Tx, cursor: str) -> bool:
    """Whether events behind a cursor wait for a transaction that began before them to end.

    It may end without a word (a claim, a refusal), so whoever follows the feed looks again soon.
    """
    xid, seq = parse_cursor(cursor)
    return tx.value(sql.HELD_BACK, xid=xid, seq=seq) is not None


def newest(
    tx: Tx, *, subject: str | None = None, project: str | None = None, limit: int = 50
) -> Page[Event]:
    """The latest events, oldest of them first; `next` is the place to follow on from."""
    check_limit(limit)
    query = _by(subject, project, sql.NEWEST_BY_SUBJECT, sql.NEWEST_BY_PROJECT, sql.NEWEST)
    items = tx.all(query, subject=subject, project_id=project, limit=limit)[::-1]
    return Page(items, items[-1].cursor if items else None)


def before(
    tx: Tx,
    cursor: str,
    *,
    subject: str | None = None,
    project: str | None = None,
    limit: int = 50,
) -> Page[Event]:
    """What happened before a cursor, newest first; `next` is the way further back."""
    check_limit(limit)
    xid, seq = parse_cursor(cursor)
    query = _by(subject, project, sql.BEFORE_BY_SUBJECT, sql.BEFORE_BY_PROJECT, sql.BEFORE)
    rows = tx.all(query, xid=xid, seq=seq, subject=subject, project_id=project, limit=limit + 1)
    items = rows[:limit]
    return Page(items, items[-1].cursor if len(rows) > limit else None)


def parse_cursor(cursor: str | None) -> tuple[str, int]:
    match = _CURSOR.fullmatch(cursor or "0-0")
    if match is None:
        raise Invalid(
            f"{cursor!r} is no cursor of the feed; take the `cursor` of an event, or "
            "leave it out to begin at the start.",
            value=cursor,
        )
    return match[1] or "0", int(match[2])


def _by(
    subject: str | None,
    project: str | None,
    by_subject: Query[Event],
    by_project: Query[Event],
    by_nothing: Query[Event],
) -> Query[Event]:
    if subject and project:
        raise Invalid("Give a subject or a project, not both.")
    if project and not project.startswith("prj_"):
        raise Invalid(
            f"Invalid project id {project!r}: events are filtered by a project's id. List the ids "
            "with `corral project list`.",
            project=project,
        )
    if subject or project:
        clean_text(subject or project or "", "The subject or project", most=2 * MAX_NAME)
    return by_subject if subject else by_project if project else by_nothing
