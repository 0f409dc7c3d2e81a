"""Look up sessions by record or id, and insert one. Shared by the other modules of this package."""

from typing import Any

from corral.db.transitions import create
from corral.db.tx import Tx
from corral.domain.sessions import sql
from corral.domain.sessions.model import Session, SessionState
from corral.kernel.errors import IllegalMove, Refused
from corral.kernel.ids import ID_LENGTH

_FULL_ID_LENGTH = len("ses_") + ID_LENGTH


def resolve_id(tx: Tx, session: Session | str) -> str:
    """Return the full id of a session given as a record or by an id, shortened or not."""
    if not isinstance(session, str):
        return session.id
    if len(session) == _FULL_ID_LENGTH and session.startswith("ses_"):
        return session  # the statement that uses it checks that it exists
    return sql.IDS.resolve(tx, session)


def get_current(tx: Tx, session: Session | str) -> Session:
    """Read the session again: the given record may be stale."""
    return sql.SESSIONS.get(tx, resolve_id(tx, session))


def get_open(tx: Tx, session: Session | str) -> Session:
    """Return an open session; raises IllegalMove for a closed one."""
    current = get_current(tx, session)
    if current.state is not SessionState.OPEN:
        raise build_closed_error(current)
    return current


def check_not_pruned(tx: Tx, session: Session) -> None:
    """Raise Refused for a session whose turns retention has begun to delete."""
    first = session.parent_turn + 1
    if session.turns >= first and not tx.run(
        sql.FIRST_OWN_TURN, session_id=session.id, number=first
    ):
        raise Refused(f"{session.id} is being deleted by retention. Open a new session.")


def insert_session(tx: Tx, **columns: Any) -> Session:
    """Insert a session with these columns; the others have the defaults of an empty session."""
    return create(
        tx,
        sql.SESSIONS,
        {
            "id": tx.new_id("ses"),
            "turns": 0,
            "cleared_turn": 0,
            "handoff": None,
            "parent_id": None,
            "parent_turn": 0,
            "created_at": tx.now,
            "updated_at": tx.now,
        }
        | columns,
        event_data={
            name: value
            for name, value in columns.items()
            if value and name not in ("id", "imported_at")
        },
    )


def build_closed_error(session: Session) -> IllegalMove:
    """Return the error of a change to a closed session."""
    return IllegalMove(
        f"{session.id} is {session.state} and cannot be changed. Reopen it first.",
        id=session.id,
        state=session.state,
        allowed=["reopen"],
        reason="session_closed",
    )
