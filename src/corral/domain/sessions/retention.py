"""Retention of sessions: delete in batches, so that other writers are not blocked for long."""

from corral.db.tx import Tx
from corral.domain.sessions import sql

PRUNABLE = sql.PRUNABLE
BATCH_SIZE = 1_000


def list_ids_of_project(tx: Tx, project_id: str, *, limit: int = 20) -> list[str]:
    """List the sessions of a project that have no forks; deleting them frees their parents."""
    return [id for (id,) in tx.run(sql.OF_PROJECT, project_id=project_id, limit=limit)]


def delete_batch(tx: Tx, session_id: str, *, limit: int = BATCH_SIZE) -> bool:
    """Delete up to `limit` turns of a session, then the session itself.

    Returns False while turns remain: call it again. A session that was forked in the meantime is
    kept. The highest `seq` of the store is preserved, because it must not be reused.
    """
    tx.serialize(f"session:{session_id}")
    if tx.run(sql.FORKS, id=session_id):
        return True
    tx.run(sql.BLANK_HIGHEST_TURN, session_id=session_id)
    if len(tx.run(sql.DELETE_TURNS, session_id=session_id, limit=limit)) == limit:
        return False
    for statement in (sql.DELETE_STATE, sql.DELETE_HANDOFFS, sql.DELETE_RETROS):
        tx.run(statement, session_id=session_id)
    deleted = tx.first(sql.DELETE, id=session_id)
    tx.run(sql.DELETE_BLANK_TURNS)
    if deleted is not None:
        tx.emit("session", "delete", session_id, project_id=deleted.project_id)
    return True
