"""Adding tasks to a project's graph: all tasks of a call or none, in any order."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.bulk_transitions import create_many, transition_many
from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.mail.model import agent_name_of, check_mailbox, check_priority, is_person
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.domain.tasks import sql
from corral.domain.tasks.graph import check_path, sort_topologically
from corral.domain.tasks.graph_lock import lock_graph
from corral.domain.tasks.model import (
    MAX_FILES,
    MAX_PATH,
    MAX_TITLE,
    SATISFIED,
    Task,
    TaskSpec,
    TaskStatus,
    parse_tasks,
)
from corral.domain.tasks.propagation import Blocker, make_blocker
from corral.domain.tasks.templates import TEMPLATES, TaskTemplate
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.validation import MAX_NAME, check_text

# Keys appear in comma-separated lists and on command lines, and must not look like an id.
_KEY = re.compile(r"(?!tsk_)[^\s,\x00-\x1f\x7f]{1,100}")
MAX_TASKS = 20_000
MAX_EDGES = 200_000

DependencyKeys = dict[str, list[str]]
"""Keys of the dependencies of each new task, by the task's key."""


def declare(
    tx: Tx,
    project: str,
    tasks: Sequence[TaskSpec | dict[str, Any]] | dict[str, Any],
    *,
    lead: str | None = None,
    agent: str | None = None,
) -> list[Task]:
    """Add tasks to a project's graph: all or none, in any order.

    Each task has a `key` and optionally `title`, `role`, `description`, `files`, `depends_on` (keys
    of this call or of the project), `priority`, `check` and `agent`. `lead` is the mailbox that is
    notified about the tasks; by default the caller's. Raises Invalid for a cycle or an unknown
    dependency, Conflict for a key that is in use, and Refused for a retired agent.
    """
    specs = parse_tasks(tasks if isinstance(tasks, dict) else [*tasks])
    project_id = projects.get(tx, project).id
    actor = agents.resolve_actor(tx, agent)
    graph = _validate(specs)
    _require_check_permission(tx, specs, project_id, actor)
    lead_mailbox = check_mailbox(lead) if lead else _get_mailbox(actor)
    lock_graph(tx, project_id)
    existing = _find_existing(tx, project_id, graph)
    order = sort_topologically(graph)
    if not order:
        return []
    blockers = _find_blockers(order, graph, existing)
    ids = {task.key: tx.new_id("tsk") for task in specs}
    assignees = dict.fromkeys(task.agent for task in specs if task.agent)
    assignee_ids = {agent: agents.get_active(tx, agent).id for agent in assignees}
    open_counts = _count_open_dependencies(graph, existing)
    create_many(
        tx,
        sql.TASKS,
        [
            _build_row(task, ids[task.key], assignee_ids)
            | {
                "open_dependencies": open_counts[task.key],
                "failed_dependencies": sum(key in blockers for key in graph[task.key]),
            }
            for task in specs
        ],
        sql.COLUMN_TYPES,
        project_id=project_id,
        lead=lead_mailbox,
        fence=0,
        attempts=0,
        created_at=tx.now,
        created_by=actor,
    )
    _add_dependencies(tx, graph, ids, existing)
    _promote_ready(tx, ids, open_counts)
    _block(tx, ids, blockers)
    declared = tx.all(sql.BY_IDS, keys_=encode_rows([*ids.values()]))
    return [msgspec.structs.replace(task, depends_on=graph[task.key]) for task in declared]


def add_task(
    tx: Tx,
    project: str,
    key: str,
    title: str | None = None,
    *,
    role: str | None = None,
    description: str | None = None,
    files: Sequence[str] = (),
    depends_on: Sequence[str] = (),
    priority: int = 0,
    check: str | None = None,
    assignee: str | None = None,
    lead: str | None = None,
    agent: str | None = None,
) -> Task:
    """Add one task to a project's graph."""
    spec = TaskSpec(
        key, title, role, description, [*files], [*depends_on], priority, check, assignee
    )
    return declare(tx, project, [spec], lead=lead, agent=agent)[0]


def list_templates(tx: Tx) -> list[TaskTemplate]:
    """List the built-in task templates."""
    return list(TEMPLATES.values())


def apply_template(
    tx: Tx,
    project: str,
    template: str,
    title: str,
    *,
    key: str,
    depends_on: Sequence[str] = (),
    check: str | None = None,
    lead: str | None = None,
    agent: str | None = None,
) -> list[Task]:
    """Declare the tasks of a template with keys such as KEY/build and KEY/review.

    `check` becomes the check command of the tasks that build something.
    """
    if template not in TEMPLATES:
        raise Invalid(
            f"Unknown template {template!r}. Use one of {', '.join(TEMPLATES)}.", name=template
        )
    specs = TEMPLATES[template].expand(key=key, title=title, depends_on=depends_on, check=check)
    return declare(tx, project, specs, lead=lead, agent=agent)


def _validate(specs: Sequence[TaskSpec]) -> DependencyKeys:
    """Validate everything that needs no database access, and return the dependencies by key."""
    if len(specs) > MAX_TASKS:
        raise Invalid(
            f"{len(specs):,} tasks are too many for one call. Declare at most {MAX_TASKS:,} at a "
            "time."
        )
    graph: DependencyKeys = {}
    for task in specs:
        if not _KEY.fullmatch(task.key):
            raise Invalid(
                f"Invalid task key {task.key!r}: expected up to 100 characters without spaces and "
                "commas; a key cannot start with tsk_.",
                key=task.key,
                reason="bad_key",
            )
        if task.key in graph:
            raise Invalid(
                f"The key {task.key} is declared twice. Keys are unique.",
                key=task.key,
                reason="duplicate_key",
            )
        graph[task.key] = list(dict.fromkeys(task.depends_on))
        _validate_fields(task)
    if sum(map(len, graph.values())) > MAX_EDGES:
        raise Invalid(
            f"A call can declare at most {MAX_EDGES:,} dependencies. Declare fewer tasks at a time."
        )
    return graph


def _validate_fields(task: TaskSpec) -> None:
    for value, what, max_length in (
        (task.title, "The title", MAX_TITLE),
        (task.role, "The role", MAX_NAME),
        (task.description, "The description", None),
        (task.check, "The check", None),
    ):
        if value is not None:
            limit = {"max_bytes": max_length} if max_length else {}
            check_text(value, f"{what} of {task.key}", **limit)
    check_priority(task.priority)
    if len(task.files) > MAX_FILES:
        raise Invalid(
            f"{task.key} names {len(task.files):,} files, which are too many. Name their "
            "directories instead."
        )
    for path in task.files:
        check_path(check_text(path, f"A file of {task.key}", max_bytes=MAX_PATH))


def _require_check_permission(
    tx: Tx, specs: Sequence[TaskSpec], project_id: str, actor: str
) -> None:
    """Refuse checks declared by an agent, or by a run without one, without permission.

    Corral runs a check with the permissions of the user that runs Corral, which can exceed those of
    the agent.
    """
    if is_person(actor) or not any(task.check for task in specs):
        return
    name = agent_name_of(actor)
    is_allowed = settings.get_value(tx, "tasks.allow_agent_checks", project=project_id)
    if not is_allowed and not (name is not None and agents.get(tx, name).admin):
        raise Refused(
            "Agents may not declare checks in this project, because Corral itself runs them. Leave "
            "the check out, or ask a person to set tasks.allow_agent_checks.",
            setting="tasks.allow_agent_checks",
        )


def _get_mailbox(actor: str) -> str | None:
    try:
        return check_mailbox(actor)
    except Invalid:
        return None  # this kind of actor has no mailbox


def _find_existing(tx: Tx, project_id: str, graph: DependencyKeys) -> dict[str, TaskStatus]:
    """Return the project's existing tasks among the dependencies, by key.

    Raises Conflict when a new key exists already, and Invalid for an unknown dependency.
    """
    keys = {
        *graph,
        *(dependency for dependencies in graph.values() for dependency in dependencies),
    }
    existing = {
        task.key: task
        for task in tx.all(sql.STATUS_BY_KEYS, project=project_id, keys_=encode_rows([*keys]))
    }
    duplicates = [key for key in graph if key in existing]
    if duplicates:
        duplicate = existing[duplicates[0]]
        raise Conflict(
            f"The project already has a task {duplicate.key} ({duplicate.id}, {duplicate.state}). "
            "Use another key, or archive the existing task.",
            keys=duplicates[:10],
        )
    missing = sorted(keys - {*existing, *graph})
    if missing:
        dependent = next(key for key, dependencies in graph.items() if missing[0] in dependencies)
        raise Invalid(
            f"{dependent} depends on {missing[0]!r}, which is neither declared in this call nor a "
            "task of the project. Declare it too, or remove the dependency.",
            key=dependent,
            missing=missing[:10],
        )
    return existing


def _find_blockers(
    order: Sequence[str], graph: DependencyKeys, existing: dict[str, TaskStatus]
) -> dict[str, Blocker]:
    """Return the blocker of every task that blocks its dependents, new or existing, by key."""
    blockers = {key: make_blocker(task) for key, task in existing.items() if task.is_blocking}
    for key in order:
        first = next(
            (blockers[dependency] for dependency in graph[key] if dependency in blockers), None
        )
        if first is not None:
            blockers[key] = first
    return blockers


def _count_open_dependencies(
    graph: DependencyKeys, existing: dict[str, TaskStatus]
) -> dict[str, int]:
    """Count the dependencies of each new task that are not done yet, by key."""
    return {
        key: sum(
            dependency not in existing or existing[dependency].state not in SATISFIED
            for dependency in dependencies
        )
        for key, dependencies in graph.items()
    }


def _build_row(task: TaskSpec, id: str, assignee_ids: dict[str, str]) -> dict[str, Any]:
    """Return the columns of a new task, except its dependency counts."""
    return {
        "id": id,
        "key": task.key,
        "role": task.role,
        "title": task.title or task.key,
        "description": task.description,
        "files": [check_path(path) for path in task.files],
        "priority": task.priority,
        "check_command": task.check,
        "assignee_id": assignee_ids[task.agent] if task.agent else None,
    }


def _add_dependencies(
    tx: Tx, graph: DependencyKeys, ids: dict[str, str], existing: dict[str, TaskStatus]
) -> None:
    ids_by_key = ids | {key: task.id for key, task in existing.items()}
    pairs = [
        (ids[key], ids_by_key[dependency])
        for key, dependencies in graph.items()
        for dependency in dependencies
    ]
    if pairs:
        tx.run(sql.ADD_DEPENDENCIES, rows=encode_rows(pairs))


def _promote_ready(tx: Tx, ids: dict[str, str], open_counts: dict[str, int]) -> None:
    ready = [ids[key] for key, count in open_counts.items() if not count]
    transition_many(tx, sql.TASKS, "promote", ready, ready_at=tx.now)


def _block(tx: Tx, ids: dict[str, str], blockers: dict[str, Blocker]) -> None:
    blocked_by: dict[Blocker, list[str]] = {}
    for key, blocker in blockers.items():
        if key in ids:
            blocked_by.setdefault(blocker, []).append(ids[key])
    for blocker, blocked in blocked_by.items():
        transition_many(
            tx, sql.TASKS, "block", blocked, blocked_by_id=blocker.id, reason=blocker.reason
        )
