"""Putting tasks away: what is over out of the lists, what is long over out of the store."""

from collections.abc import Sequence

from corral.db.bulk_transitions import encode_rows
from corral.db.retention import EVERYBODY, Whose
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.tasks import sql
from corral.domain.tasks.model import Task
from corral.domain.tasks.ops import lock, steered, whole
from corral.kernel.errors import Conflict
from corral.kernel.pagination import check_limit


def archive(tx: Tx, task: Task | str, *, agent: str | None = None) -> Task:
    """Take a task that is over out of the lists; its key may be used again."""
    before = steered(tx, task, agent)
    if before.ended_at is None:
        raise Conflict(
            f"{before.id} is {before.state}; only what is over is archived.", id=before.id
        )
    waiting = [row[0] for row in tx.run(sql.OPEN_DEPENDENTS, id=before.id)]
    if waiting and not before.is_satisfied:
        raise Conflict(
            f"{', '.join(waiting)} still {'need' if len(waiting) > 1 else 'needs'} {before.key}, "
            f"which is {before.state}; skip it, or take the dependency out.",
            id=before.id,
            waiting=waiting,
            reason="needed_by_others",
        )
    archived = tx.one(sql.SET_ARCHIVED, id=before.id, at=tx.now)
    assert archived is not None
    tx.note("task", "archive", before.id, project_id=before.project_id)
    return whole(tx, archived)


def archive_ended(tx: Tx, project: str, *, limit: int = 1_000) -> int:
    """Archive what is over and what nothing open needs, in a project; gives back how many."""
    project_id = lock(tx, projects.get(tx, project).id)
    ids = [row[0] for row in tx.run(sql.TO_ARCHIVE, project=project_id, limit=check_limit(limit))]
    for id in ids:
        tx.one(sql.SET_ARCHIVED, id=id, at=tx.now)
        tx.note("task", "archive", id, project_id=project_id)
    return len(ids)


def prunable(tx: Tx, *, before: int, limit: int = 500, whose: Whose = EVERYBODY) -> list[str]:
    """Tasks that ended before a moment, and that nothing open needs."""
    found = sql.PRUNABLE.run(tx, whose, before=before, limit=check_limit(limit))
    return [row[0] for row in found]


def count_prunable(tx: Tx, *, before: int, whose: Whose = EVERYBODY) -> int:
    """How many those are."""
    return int(sql.COUNT_PRUNABLE.value(tx, whose, before=before))


def forget(tx: Tx, ids: Sequence[str]) -> None:
    """Forget tasks, with their edges."""
    keys = encode_rows(ids)
    for statement in (sql.DELETE_NEEDS, sql.DELETE_NEEDED, sql.DELETE):
        tx.run(statement, keys_=keys)


def forget_project(tx: Tx, project_id: str) -> None:
    """Forget the graph of a project that is being deleted."""
    while ids := [row[0] for row in tx.run(sql.OF_PROJECT, project=project_id, limit=1_000)]:
        forget(tx, ids)
