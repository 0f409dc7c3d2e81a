"""Stored retrospectives of sessions."""

from typing import Any

from corral.db.tx import Tx
from corral.domain.sessions import sql
from corral.domain.sessions.lookup import get_current
from corral.domain.sessions.model import Retro, Session
from corral.kernel.pagination import Page
from corral.kernel.validation import encode_json


def record_retro(tx: Tx, session: Session | str, body: Any) -> Retro:
    """Store a retrospective of a session: events, duration, cost, files, failures."""
    text = encode_json(body, "The retrospective")
    current = get_current(tx, session)
    tx.serialize(f"session:{current.id}")
    number = int(tx.value(sql.LAST_RETRO, session_id=current.id) or 0) + 1
    stored = tx.one(sql.ADD_RETRO, session_id=current.id, number=number, body=text, now=tx.now)
    tx.emit("session", "retro", current.id, project_id=current.project_id, data={"number": number})
    return stored


def list_retros(
    tx: Tx, session: Session | str, *, after: str | None = None, limit: int = 50
) -> Page[Retro]:
    """List the retrospectives of a session, newest first."""
    return sql.RETROS.page(tx, after=after, limit=limit, session_id=get_current(tx, session).id)
