"""Imported dependencies of tasks."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import ImportedRow, insert_many
from corral.db.tx import Tx
from corral.domain.tasks import sql
from corral.domain.tasks.graph import find_closing_edges
from corral.domain.tasks.propagation import recount_dependencies

CYCLE = "depends_on closes a cycle; that dependency is dropped"


def insert_dependencies(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[ImportedRow]:
    """Insert dependencies, and update the counts of open and failed ones.

    A dependency that would close a cycle is dropped: its tasks would wait forever.
    """
    closing = _find_closing_edges(tx, rows)
    acyclic = [row for row in rows if (row["task_id"], row["depends_on_id"]) not in closing]
    insert_many(tx, "task_dependencies", acyclic, on_conflict="(task_id, depends_on_id)")
    for id in sorted({row["task_id"] for row in acyclic}):
        recount_dependencies(tx, sql.TASKS.get(tx, id))
    return [
        ImportedRow(None, CYCLE)
        if (row["task_id"], row["depends_on_id"]) in closing
        else ImportedRow("")
        for row in rows
    ]


def _find_closing_edges(tx: Tx, rows: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    added = [*dict.fromkeys((row["task_id"], row["depends_on_id"]) for row in rows)]
    projects = {sql.TASKS.get(tx, task).project_id for task, _ in added}
    graph: dict[str, list[str]] = {}
    for project in sorted(projects):
        for task, dependency in tx.run(sql.EDGES_OF_PROJECT, project=project):
            graph.setdefault(task, []).append(dependency)
    existing = {
        (task, dependency) for task, dependencies in graph.items() for dependency in dependencies
    }
    added = [edge for edge in added if edge not in existing]
    for task, dependency in added:
        graph.setdefault(task, []).append(dependency)
    for dependency in {
        dependency for dependencies in graph.values() for dependency in dependencies
    }:
        graph.setdefault(dependency, [])
    return {*find_closing_edges(graph, added)}
