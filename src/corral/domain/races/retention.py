"""Deleting old races, but never one whose worktrees still exist."""

from collections.abc import Sequence

from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.races import sql

PRUNABLE = sql.PRUNABLE


def delete_races(tx: Tx, ids: Sequence[str]) -> int:
    """Delete races with their rounds, attempts, verdicts, selections and grafts.

    Returns the number of races.
    """
    keys = encode_rows(ids)
    for statement in sql.DELETE_PARTS.values():
        tx.run(statement, keys_=keys)
    return len(tx.run(sql.DELETE, keys_=keys))


def delete_project_rows(tx: Tx, project_id: str) -> None:
    """Delete the races of a project that is being deleted.

    `corral race clean --orphans` finds the worktrees that are left.
    """
    while ids := [row[0] for row in tx.run(sql.IDS_OF_PROJECT, project=project_id, limit=100)]:
        delete_races(tx, ids)
