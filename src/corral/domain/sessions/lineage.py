"""Reading a session's turns through the sessions that it was forked from.

A fork keeps only what was said since: a stretch of numbers behind the turn where it began. What
lies before is a stretch of its parent's, and so on. A page is read stretch by stretch, each by its
index, so it costs the same however long the history is.
"""

from typing import NamedTuple

from corral.db.tx import Tx
from corral.domain.sessions import sql
from corral.domain.sessions.model import Session, Turn


class Stretch(NamedTuple):
    """The turns behind `after`, up to and with `upto`, of the session that keeps them."""

    session_id: str
    after: int
    upto: int


def oldest(tx: Tx, session: Session, after: int, limit: int) -> list[Turn]:
    """Turns behind a number, in order."""
    found: list[Turn] = []
    for stretch in reversed(_stretches(tx, session, after)):
        if len(found) == limit:
            break
        found += tx.all(
            sql.OLDEST_TURNS,
            session_id=stretch.session_id,
            after=max(stretch.after, after),
            upto=stretch.upto,
            limit=limit - len(found),
        )
    return found


def newest(tx: Tx, session: Session, before: int, limit: int) -> list[Turn]:
    """Turns before a number, newest first."""
    found: list[Turn] = []
    # No more than `limit` numbers below `before`: they have no gaps.
    lowest = max(min(before - 1, session.turns) - limit, 0)
    for stretch in _stretches(tx, session, lowest):
        if len(found) == limit:
            break
        found += tx.all(
            sql.NEWEST_TURNS,
            session_id=stretch.session_id,
            after=max(stretch.after, lowest),
            upto=min(stretch.upto, before - 1),
            limit=limit - len(found),
        )
    return found


def _stretches(tx: Tx, session: Session, after: int) -> list[Stretch]:
    """Where the turns behind a number are kept, the newest first."""
    if session.parent_turn <= after:
        return [Stretch(session.id, session.parent_turn, session.turns)]
    return [Stretch(*row) for row in tx.run(sql.LINE, id=session.id, after=after)]
