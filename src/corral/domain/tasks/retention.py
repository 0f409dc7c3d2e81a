"""Archiving ended tasks, and deleting old ones."""

from collections.abc import Sequence

from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.tasks import sql
from corral.domain.tasks.graph_lock import lock_graph
from corral.domain.tasks.model import Task
from corral.domain.tasks.permissions import require_lead
from corral.domain.tasks.queries import with_dependencies
from corral.kernel.errors import Conflict
from corral.kernel.pagination import check_limit

PRUNABLE = sql.PRUNABLE


def archive(tx: Tx, task: Task | str, *, agent: str | None = None) -> Task:
    """Hide an ended task from the lists and free its key.

    Raises Conflict while open tasks depend on a task that failed or was cancelled.
    """
    before = require_lead(tx, task, agent)
    if before.ended_at is None:
        raise Conflict(
            f"{before.id} is {before.state}. Only ended tasks can be archived.", id=before.id
        )
    waiting = [row[0] for row in tx.run(sql.OPEN_DEPENDENTS, id=before.id)]
    if waiting and not before.is_satisfied:
        raise Conflict(
            f"{', '.join(waiting)} {'depend' if len(waiting) > 1 else 'depends'} on {before.key}, "
            f"which is {before.state}. Skip it, or remove the dependency.",
            id=before.id,
            waiting=waiting,
            reason="needed_by_others",
        )
    archived = tx.one(sql.SET_ARCHIVED, id=before.id, at=tx.now)
    tx.emit("task", "archive", before.id, project_id=before.project_id)
    return with_dependencies(tx, archived)


def archive_ended(tx: Tx, project: str, *, limit: int = 1_000) -> int:
    """Archive the ended tasks of a project that no open task depends on; returns how many."""
    project_id = lock_graph(tx, projects.get(tx, project).id)
    ids = [row[0] for row in tx.run(sql.ARCHIVABLE, project=project_id, limit=check_limit(limit))]
    for id in ids:
        tx.first(sql.SET_ARCHIVED, id=id, at=tx.now)
        tx.emit("task", "archive", id, project_id=project_id)
    return len(ids)


def delete_tasks(tx: Tx, ids: Sequence[str]) -> int:
    """Delete tasks and their edges; returns how many tasks were deleted."""
    keys = encode_rows(ids)
    for statement in (sql.DELETE_DEPENDENCIES, sql.DELETE_DEPENDENTS):
        tx.run(statement, keys_=keys)
    return len(tx.run(sql.DELETE, keys_=keys))


def delete_project_rows(tx: Tx, project_id: str) -> None:
    """Delete all tasks of a project that is being deleted."""
    while ids := [row[0] for row in tx.run(sql.IDS_OF_PROJECT, project=project_id, limit=1_000)]:
        delete_tasks(tx, ids)
