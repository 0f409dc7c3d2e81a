"""Imported dependencies of tasks."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import ImportedRow, insert_many
from corral.db.tx import Tx
from corral.domain.tasks import sql
from corral.domain.tasks.graph import closing_edges
from corral.domain.tasks.propagation import recount_needs

CYCLE = "depends_on closes a cycle; that dependency is dropped"


def insert_dependencies(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[ImportedRow]:
    """Insert dependencies, and update the counts of open and broken ones.

    A dependency that would close a cycle is dropped: its tasks would wait forever.
    """
    closing = _closing(tx, rows)
    kept = [row for row in rows if (row["task_id"], row["needs_id"]) not in closing]
    insert_many(tx, "edges", kept, on_conflict="(task_id, needs_id)")
    for id in sorted({row["task_id"] for row in kept}):
        recount_needs(tx, sql.TASKS.get(tx, id))
    return [
        ImportedRow(None, CYCLE)
        if (row["task_id"], row["needs_id"]) in closing
        else ImportedRow("")
        for row in rows
    ]


def _closing(tx: Tx, rows: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    added = [*dict.fromkeys((row["task_id"], row["needs_id"]) for row in rows)]
    projects = {sql.TASKS.get(tx, task).project_id for task, _ in added}
    needs: dict[str, list[str]] = {}
    for project in sorted(projects):
        for task, need in tx.run(sql.EDGES_OF_PROJECT, project=project):
            needs.setdefault(task, []).append(need)
    existing = {(task, need) for task, needed in needs.items() for need in needed}
    added = [edge for edge in added if edge not in existing]
    for task, need in added:
        needs.setdefault(task, []).append(need)
    for need in {need for needed in needs.values() for need in needed}:
        needs.setdefault(need, [])
    return {*closing_edges(needs, added)}
