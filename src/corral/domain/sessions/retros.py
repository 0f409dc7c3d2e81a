"""Looking back at sessions."""

from typing import Any

from corral.db.tx import Tx
from corral.domain.sessions import sql
from corral.domain.sessions.model import Retro, Session
from corral.domain.sessions.ops import current
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import encode_json


def record_retro(tx: Tx, session: Session | str, body: Any) -> Retro:
    """Keep a look back at a session: what happened, time, cost, files, failures."""
    text = encode_json(body, "The retrospective")
    found = current(tx, session)
    tx.serialize(f"session:{found.id}")
    number = int(tx.value(sql.LAST_RETRO, session_id=found.id) or 0) + 1
    kept = tx.one(sql.ADD_RETRO, session_id=found.id, number=number, body=text, now=tx.now)
    assert kept is not None
    tx.note("session", "retro", found.id, project_id=found.project_id, data={"number": number})
    return kept


def retros(
    tx: Tx, session: Session | str, *, after: str | None = None, limit: int = 50
) -> Page[Retro]:
    """The looks back that were kept of a session, newest first."""
    (before,) = decode_cursor(after, LAST_NUMBER)
    rows = tx.all(
        sql.RETROS, session_id=current(tx, session).id, before=before, limit=check_limit(limit) + 1
    )
    return page_of(rows, limit, lambda retro: (retro.number,))
