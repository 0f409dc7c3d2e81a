"""Deleting old races, but never one whose worktrees still exist."""

from collections.abc import Sequence

from corral.db.retention import ALL_ROWS, RetentionScope
from corral.db.transitions import encode_rows
from corral.db.tx import Tx
from corral.domain.races import sql
from corral.kernel.pagination import check_limit


def list_prunable(
    tx: Tx, *, before: int, limit: int = 100, scope: RetentionScope = ALL_ROWS
) -> list[str]:
    """List races that ended before a time and have no worktree left."""
    rows = sql.PRUNABLE.run(tx, scope, before=before, limit=check_limit(limit))
    return [row[0] for row in rows]


def count_prunable(tx: Tx, *, before: int, scope: RetentionScope = ALL_ROWS) -> int:
    """Count the races that `list_prunable` would list."""
    return int(sql.COUNT_PRUNABLE.value(tx, scope, before=before))


def delete_races(tx: Tx, ids: Sequence[str]) -> None:
    """Delete races with their rounds, attempts, verdicts, selections and grafts."""
    keys = encode_rows(ids)
    for statement in sql.DELETE.values():
        tx.run(statement, keys_=keys)


def forget_project(tx: Tx, project_id: str) -> None:
    """Delete the races of a project that is being deleted.

    `corral race clean --orphans` finds the worktrees that are left.
    """
    while ids := [row[0] for row in tx.run(sql.IDS_OF_PROJECT, project=project_id, limit=100)]:
        delete_races(tx, ids)
