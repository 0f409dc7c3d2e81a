"""Forgetting sessions, a piece at a time, so that nobody waits long for the store."""

from corral.db.retention import EVERYBODY, Whose
from corral.db.tx import Tx
from corral.domain.sessions import sql

PIECE = 1_000


def prunable(tx: Tx, *, before: int, limit: int = 20, whose: Whose = EVERYBODY) -> list[str]:
    """Sessions that were closed before a moment, longest ago first.

    One that a fork still shows the turns of is none of them.
    """
    return [id for (id,) in sql.PRUNABLE.run(tx, whose, before=before, limit=limit)]


def count_prunable(tx: Tx, *, before: int, whose: Whose = EVERYBODY) -> int:
    """How many sessions would go, counting what goes only after its forks did."""
    return int(sql.COUNT_PRUNABLE.value(tx, whose, before=before))


def of_project(tx: Tx, project_id: str, *, limit: int = 20) -> list[str]:
    """Sessions of a project, forks before what they came from."""
    return [id for (id,) in tx.run(sql.OF_PROJECT, project_id=project_id, limit=limit)]


def forget(tx: Tx, session_id: str, *, limit: int = PIECE) -> bool:
    """Forget a session with all that belongs to it, at most so many turns of it at a time.

    False when there is more to do: call it again. The newest turn of the store leaves its number
    behind, which must not be given out twice. What was forked meanwhile stays.
    """
    tx.serialize(f"session:{session_id}")
    if tx.run(sql.FORKS, id=session_id):
        return True
    tx.run(sql.KEEP_PLACE, session_id=session_id)
    if len(tx.run(sql.FORGET_TURNS, session_id=session_id, limit=limit)) == limit:
        return False
    for statement in (sql.FORGET_STATE, sql.FORGET_HANDOFFS, sql.FORGET_RETROS):
        tx.run(statement, session_id=session_id)
    gone = tx.one(sql.FORGET, id=session_id)
    tx.run(sql.GIVE_UP_PLACES)
    if gone is not None:
        tx.note("session", "delete", session_id, project_id=gone.project_id)
    return True
