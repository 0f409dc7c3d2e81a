"""Managing tasks: retry, reopen, pause, skip, cancel, reassign, change dependencies and edit.

These verbs are for the lead of a task, for people and for admin agents (see
`permissions.require_lead`).
"""

from collections.abc import Sequence

from corral.db.statement import encode_rows
from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent
from corral.domain.mail.model import check_priority
from corral.domain.tasks import sql
from corral.domain.tasks.graph import check_path
from corral.domain.tasks.model import MAX_FILES, MAX_PATH, MAX_TITLE, WAITING, Task, TaskState
from corral.domain.tasks.notifications import notify_stop
from corral.domain.tasks.permissions import require_lead
from corral.domain.tasks.propagation import apply_consequences, recount_dependencies
from corral.domain.tasks.queries import find_in_project, with_dependencies
from corral.kernel.errors import Conflict, Invalid
from corral.kernel.unset import UNSET
from corral.kernel.validation import (
    MAX_NAME,
    MAX_TEXT,
    check_optional_text,
    check_text,
    encode_json,
)

# -- states --------------------------------------------------------------------------------------


def retry(tx: Tx, task: Task | str, *, agent: str | None = None) -> Task:
    """Make a failed task claimable again and unblock its dependents."""
    return _restart(tx, "retry", task, agent)


def reopen(
    tx: Tx, task: Task | str, *, reason: str | None = None, agent: str | None = None
) -> Task:
    """Make a done, skipped or cancelled task claimable again.

    Its dependents wait for it again. Dependents that are already running continue.
    """
    return _restart(tx, "reopen", task, agent, check_optional_text(reason, "The reason"))


def _restart(
    tx: Tx, verb: str, task: Task | str, agent: str | None, reason: str | None = None
) -> Task:
    before = require_lead(tx, task, agent)
    after = transition(
        tx,
        sql.TASKS,
        verb,
        before.id,
        event_data={"reason": reason} if reason else None,
        ended_at=None,
        archived_at=None,
        attempts=0,
        agent_id=None,
        run_id=None,
        ready_at=None,
        reason=reason,
    )
    return with_dependencies(tx, apply_consequences(tx, before, after))


def pause(tx: Tx, task: Task | str, *, reason: str | None = None, agent: str | None = None) -> Task:
    """Prevent a task from being claimed until it is resumed."""
    before = require_lead(tx, task, agent)
    after = transition(
        tx,
        sql.TASKS,
        "pause",
        before.id,
        conflicts_with_id=None,
        reason=check_optional_text(reason, "The reason"),
    )
    return with_dependencies(tx, after)


def resume(tx: Tx, task: Task | str, *, agent: str | None = None) -> Task:
    """Allow a paused task to be claimed once its dependencies are satisfied."""
    before = require_lead(tx, task, agent)
    after = transition(tx, sql.TASKS, "resume", before.id, reason=None)
    return with_dependencies(tx, apply_consequences(tx, before, after))


def skip(tx: Tx, task: Task | str, *, reason: str | None = None, agent: str | None = None) -> Task:
    """Leave a task out; its dependents continue without it.

    The agent that works on the task is notified to stop.
    """
    return _end(tx, "skip", task, agent, reason)


def cancel(
    tx: Tx, task: Task | str, *, reason: str | None = None, agent: str | None = None
) -> Task:
    """Cancel a task and block its dependents.

    The dependents stay blocked until the task is skipped or reopened, or the dependency is removed.
    The agent that works on the task is notified to stop.
    """
    return _end(tx, "cancel", task, agent, reason)


def _end(tx: Tx, verb: str, task: Task | str, agent: str | None, reason: str | None) -> Task:
    before = require_lead(tx, task, agent)
    reason = check_optional_text(reason, "The reason")
    after = transition(
        tx,
        sql.TASKS,
        verb,
        before.id,
        event_data={"reason": reason} if reason else None,
        ended_at=tx.now,
        lease_until=None,
        conflicts_with_id=None,
        blocked_by_id=None,
        reason=reason,
    )
    notify_stop(tx, before, after.state, reason)
    return with_dependencies(tx, apply_consequences(tx, before, after))


# -- assignment ----------------------------------------------------------------------------------


def reassign(tx: Tx, task: Task | str, to: str | None, *, agent: str | None = None) -> Task:
    """Assign a task to one agent, or with None to any agent of its role.

    A running or submitted task is taken away: its agent is notified to stop, and the new fence
    rejects a late submission.
    """
    before = require_lead(tx, task, agent)
    assignee = agents.get_active(tx, to) if to else None
    if before.state in WAITING:
        return with_dependencies(tx, _assign_waiting(tx, before, assignee))
    if before.state in (TaskState.RUNNING, TaskState.SUBMITTED):
        return with_dependencies(tx, _take_away(tx, before, assignee))
    raise Conflict(
        f"{before.id} is {before.state}. Reopen or retry it before you reassign it.",
        id=before.id,
        state=before.state,
    )


def _assign_waiting(tx: Tx, before: Task, assignee: Agent | None) -> Task:
    assigned = tx.one(sql.SET_ASSIGNEE, id=before.id, assignee_id=assignee.id if assignee else None)
    data = {"to": assignee.name if assignee else None}
    tx.emit("task", "assign", before.id, project_id=before.project_id, data=data)
    return assigned


def _take_away(tx: Tx, before: Task, assignee: Agent | None) -> Task:
    after = transition(
        tx,
        sql.TASKS,
        "reassign",
        before.id,
        event_data={"to": assignee.name if assignee else None},
        assignee_id=assignee.id if assignee else None,
        agent_id=None,
        run_id=None,
        fence=before.fence + 1,
        lease_until=None,
        attempts=0,
    )
    reason = f"the task was assigned to {assignee.name}" if assignee else None
    notify_stop(tx, before, "reassigned", reason)
    return apply_consequences(tx, before, after)


# -- dependencies --------------------------------------------------------------------------------


def depend(tx: Tx, task: Task | str, on: Sequence[str], *, agent: str | None = None) -> Task:
    """Add dependencies on other tasks of the project. Idempotent.

    Raises Invalid when a dependency would close a cycle.
    """
    before = _require_waiting(require_lead(tx, task, agent))
    dependencies = _find_dependencies(tx, before, on)
    for dependency in dependencies:
        if dependency.id == before.id or tx.run(
            sql.DEPENDS_ON, start=dependency.id, target=before.id
        ):
            raise Invalid(
                f"{before.key} cannot depend on {dependency.key}: that would close a cycle. Remove "
                "another dependency first.",
                key=before.key,
                on=dependency.key,
                reason="cycle",
            )
    if not tx.run(
        sql.ADD_DEPENDENCIES,
        rows=encode_rows([(before.id, dependency.id) for dependency in dependencies]),
    ):
        return with_dependencies(tx, before)
    return _record_dependencies(tx, "depend", before, dependencies)


def undepend(tx: Tx, task: Task | str, on: Sequence[str], *, agent: str | None = None) -> Task:
    """Remove dependencies of a task. Idempotent."""
    before = _require_waiting(require_lead(tx, task, agent))
    dependencies = _find_dependencies(tx, before, on)
    removed = tx.run(
        sql.REMOVE_DEPENDENCIES,
        id=before.id,
        keys_=encode_rows([dependency.id for dependency in dependencies]),
    )
    return (
        _record_dependencies(tx, "undepend", before, dependencies)
        if removed
        else with_dependencies(tx, before)
    )


def _require_waiting(task: Task) -> Task:
    if task.state not in WAITING:
        raise Conflict(
            f"{task.id} is {task.state}. Change dependencies before a task is claimed.",
            id=task.id,
            state=task.state,
        )
    return task


def _find_dependencies(tx: Tx, task: Task, on: Sequence[str]) -> list[Task]:
    if not on:
        raise Invalid("Name at least one task as a dependency.")
    return [find_in_project(tx, name, task.project_id) for name in on]


def _record_dependencies(tx: Tx, verb: str, before: Task, dependencies: Sequence[Task]) -> Task:
    data = {"on": [dependency.id for dependency in dependencies]}
    tx.emit("task", verb, before.id, project_id=before.project_id, data=data)
    return with_dependencies(tx, recount_dependencies(tx, before))


# -- fields --------------------------------------------------------------------------------------


def edit(
    tx: Tx,
    task: Task | str,
    *,
    title: str = UNSET,
    description: str | None = UNSET,
    role: str | None = UNSET,
    priority: int = UNSET,
    files: Sequence[str] = UNSET,
    agent: str | None = None,
) -> Task:
    """Change fields of a task. Fields that are not given keep their value; None clears a field."""
    before = require_lead(tx, task, agent)
    paths = before.files if files is UNSET else _check_files(files)
    changed = tx.one(
        sql.EDIT,
        id=before.id,
        title=before.title
        if title is UNSET
        else check_text(title, "The title", max_bytes=MAX_TITLE),
        description=_apply_edit(before.description, description, "The description"),
        role=_apply_edit(before.role, role, "The role", max_bytes=MAX_NAME),
        priority=before.priority if priority is UNSET else check_priority(priority),
        files=encode_json(paths, "The files"),
    )
    if before.state is TaskState.RUNNING:
        # Other tasks may be held back for files that it no longer reserves.
        tx.run(sql.RELEASE_HELD_BACK, running=before.id)
    tx.emit("task", "edit", before.id, project_id=before.project_id)
    return with_dependencies(tx, changed)


def _check_files(files: Sequence[str]) -> list[str]:
    if len(files) > MAX_FILES:
        raise Invalid(f"{len(files):,} files are too many. Name their directories instead.")
    return [check_path(check_text(path, "A file", max_bytes=MAX_PATH)) for path in files]


def _apply_edit(
    current: str | None, new: str | None, what: str, *, max_bytes: int = MAX_TEXT
) -> str | None:
    return current if new is UNSET else check_optional_text(new, what, max_bytes=max_bytes)
