"""Reading tasks: by id or key, as lists, as a graph, and as counts."""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.projects import ops as projects
from corral.domain.tasks import sql
from corral.domain.tasks.graph import find_critical_path
from corral.domain.tasks.model import Task, TaskGraph, TaskState
from corral.kernel.errors import Ambiguous, Invalid, NotFound
from corral.kernel.pagination import Page
from corral.kernel.validation import MAX_NAME, check_choice, check_text

MAX_GRAPH = 20_000


def get(tx: Tx, task: str, *, project: str | None = None) -> Task:
    """Return a task by its id, a prefix of its id, or its key."""
    return with_dependencies(tx, find(tx, task, project))


def list_tasks(
    tx: Tx,
    *,
    project: str | None = None,
    state: str | None = None,
    agent: str | None = None,
    archived: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Task]:
    """List tasks in the order of their declaration.

    Filter by project, by project and state, or by the agent that claimed them (with or without a
    state). Archived tasks are listed only with `archived`, and only for a project.
    """
    filters: dict[str, Any] = {}
    if agent is not None:
        filters["agent"] = agents.get(tx, agent).id
    if project is not None:
        filters["project"] = projects.get(tx, project).id
    if state is not None:
        filters["state"] = check_choice(state, TaskState, "The task state")
    listing = sql.LISTS.get((*filters, "archived") if archived else (*filters,))
    if listing is None:
        raise Invalid(
            "This combination of filters is not supported. Filter tasks by project and state, or "
            "by agent and state."
        )
    page = listing.page(tx, after=after, limit=limit, **filters)
    return Page(_with_dependencies(tx, page.items), page.next)


def get_graph(tx: Tx, project: str) -> TaskGraph:
    """Return a project's tasks, the edges between them, and the critical path of the open ones."""
    project_id = projects.get(tx, project).id
    tasks = tx.all(sql.OF_PROJECT, project=project_id, limit=MAX_GRAPH)
    edges = [
        (task, dependency) for task, dependency in tx.run(sql.EDGES_OF_PROJECT, project=project_id)
    ]
    keys = {task.id: task.key for task in tasks}
    dependencies: dict[str, list[str]] = {task.id: [] for task in tasks}
    for task, dependency in edges:
        if task in dependencies and dependency in keys:
            dependencies[task].append(dependency)
    open_tasks = {task.id: dependencies[task.id] for task in tasks if task.ended_at is None}
    return TaskGraph(
        tasks=[
            msgspec.structs.replace(
                task, depends_on=[keys[dependency] for dependency in dependencies[task.id]]
            )
            for task in tasks
        ],
        edges=edges,
        critical_path=find_critical_path(open_tasks),
        counts=count_by_state(tx, project_id),
    )


def count_by_state(tx: Tx, project: str) -> dict[str, int]:
    """Count the tasks of a project by state."""
    return dict(tx.run(sql.COUNTS, project=projects.get(tx, project).id))


def find(tx: Tx, task: str, project: str | None = None) -> Task:
    """Return a task by its id or key, with `depends_on` left empty.

    Raises NotFound, or Ambiguous when several projects have a task with this key.
    """
    if task.startswith("tsk_"):
        return sql.TASKS.get(tx, sql.IDS.resolve(tx, task))
    key = check_text(task, "The task", max_bytes=MAX_NAME)
    if project is not None:
        project_id = projects.get(tx, project).id
        matches = tx.all(sql.BY_KEY_IN_PROJECT, key=key, project=project_id)
    else:
        matches = tx.all(sql.BY_KEY, key=key)
    if not matches:
        raise NotFound(
            f"No task named {task!r}. List tasks with `corral task list`.",
            kind="task",
            id=task,
            reason="unknown_task",
        )
    if len(matches) > 1:
        ids = [match.id for match in matches]
        raise Ambiguous(
            f"Several projects have a task {task}: {', '.join(ids)}. Use the id, or name the "
            "project.",
            kind="task",
            candidates=ids,
        )
    return matches[0]


def find_in_project(tx: Tx, task: str, project_id: str) -> Task:
    """Return a task of this project by its id or key, as `find` does.

    Raises Invalid for the id of a task of another project.
    """
    match = find(tx, task, project_id)
    if match.project_id != project_id:
        raise Invalid(
            f"{match.id} belongs to another project. Name a task of this project.",
            id=match.id,
            reason="other_project",
        )
    return match


def with_dependencies(tx: Tx, task: Task) -> Task:
    """Return the task with `depends_on` filled in."""
    return _with_dependencies(tx, [task])[0]


def _with_dependencies(tx: Tx, tasks: Sequence[Task]) -> list[Task]:
    dependencies: dict[str, list[str]] = {task.id: [] for task in tasks}
    if dependencies:
        for edge in tx.all(sql.DEPENDENCIES, keys_=encode_rows([*dependencies])):
            dependencies[edge.task_id].append(edge.key)
    return [msgspec.structs.replace(task, depends_on=dependencies[task.id]) for task in tasks]
