"""Forgetting races that are long over; never one whose worktrees are still there."""

from collections.abc import Sequence

from corral.db.bulk_transitions import encode_rows
from corral.db.retention import EVERYBODY, Whose
from corral.db.tx import Tx
from corral.domain.races import sql
from corral.kernel.pagination import check_limit


def prunable(tx: Tx, *, before: int, limit: int = 100, whose: Whose = EVERYBODY) -> list[str]:
    """Races that ended before a moment, and of which no worktree is left."""
    found = sql.PRUNABLE.run(tx, whose, before=before, limit=check_limit(limit))
    return [row[0] for row in found]


def count_prunable(tx: Tx, *, before: int, whose: Whose = EVERYBODY) -> int:
    """How many those are."""
    return int(sql.COUNT_PRUNABLE.value(tx, whose, before=before))


def forget(tx: Tx, ids: Sequence[str]) -> None:
    """Forget races with all that belongs to them."""
    keys = encode_rows(ids)
    for statement in sql.FORGET.values():
        tx.run(statement, keys_=keys)


def forget_project(tx: Tx, project_id: str) -> None:
    """Forget the races of a project that is being deleted. Worktrees that are left are found
    again by `corral race clean --orphans`."""
    while ids := [row[0] for row in tx.run(sql.OF_PROJECT, project=project_id, limit=100)]:
        forget(tx, ids)
