"""Read a session's turns through the sessions that it was forked from.

A fork stores only the turns after the fork point; the earlier ones are a range of its parent, and
so on. A page is read range by range, each by its index, so its cost does not grow with the history.
"""

from typing import NamedTuple

from corral.db.tx import Tx
from corral.domain.sessions import sql
from corral.domain.sessions.model import Session, Turn


class TurnRange(NamedTuple):
    """The turns within (after, upto] of the session that stores them."""

    session_id: str
    after: int
    upto: int


def list_oldest(tx: Tx, session: Session, after: int, limit: int) -> list[Turn]:
    """List turns after a number, oldest first."""
    turns: list[Turn] = []
    for segment in reversed(_list_ranges(tx, session, after)):
        if len(turns) == limit:
            break
        turns += tx.all(
            sql.OLDEST_TURNS,
            session_id=segment.session_id,
            after=max(segment.after, after),
            upto=segment.upto,
            limit=limit - len(turns),
        )
    return turns


def list_newest(tx: Tx, session: Session, before: int, limit: int) -> list[Turn]:
    """List turns before a number, newest first."""
    turns: list[Turn] = []
    # Numbers have no gaps, so the page lies within `limit` numbers below `before`.
    lowest = max(min(before - 1, session.turns) - limit, 0)
    for segment in _list_ranges(tx, session, lowest):
        if len(turns) == limit:
            break
        turns += tx.all(
            sql.NEWEST_TURNS,
            session_id=segment.session_id,
            after=max(segment.after, lowest),
            upto=min(segment.upto, before - 1),
            limit=limit - len(turns),
        )
    return turns


def _list_ranges(tx: Tx, session: Session, after: int) -> list[TurnRange]:
    """List the ranges that contain the turns after a number, newest first."""
    if session.parent_turn <= after:
        return [TurnRange(session.id, session.parent_turn, session.turns)]
    return [TurnRange(*row) for row in tx.run(sql.LINEAGE, id=session.id, after=after)]
