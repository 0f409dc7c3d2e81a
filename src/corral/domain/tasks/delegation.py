"""Delegating tasks to one agent, and releasing them when the delegation ends."""

from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.delegations import ops as delegations
from corral.domain.delegations.model import Delegation, DelegationRequest
from corral.domain.tasks import sql
from corral.domain.tasks.graph_lock import lock_task
from corral.domain.tasks.management import reassign
from corral.domain.tasks.model import WAITING, Task, TaskState
from corral.domain.tasks.permissions import require_lead
from corral.domain.tasks.propagation import apply_consequences


def delegate(
    tx: Tx,
    task: Task | str,
    to: str,
    *,
    context: str | None = None,
    parent: str | None = None,
    deadline_at: int | None = None,
    agent: str | None = None,
) -> Delegation:
    """Delegate a task to one agent; only that agent can claim it from now on.

    The result of the task is sent back as a letter. Earlier delegations of the task are cancelled.
    """
    delegated = require_lead(tx, task, agent)
    for earlier in delegations.list_active_for_task(tx, delegated.id):
        delegations.cancel_tree(tx, earlier.id, f"{delegated.key} was delegated to another agent")
    reassign(tx, delegated, to, agent=agent)
    text = delegated.title
    if delegated.description:
        text = f"{text}\n\n{delegated.description}"
    return delegations.create_delegation(
        tx,
        DelegationRequest(
            to=to,
            text=text,
            context=context,
            project_id=delegated.project_id,
            task_id=delegated.id,
            parent=parent,
            deadline_at=deadline_at,
            agent=agent,
        ),
    )


def cancel_delegation(
    tx: Tx, delegation: str, *, reason: str | None = None, agent: str | None = None
) -> list[Delegation]:
    """Cancel a delegation and all its parts.

    An unread letter is removed from its mailbox. A delegated task can be claimed by any agent of
    its role again.
    """
    cancelled = delegations.cancel(tx, delegation, reason=reason, agent=agent)
    for ended in cancelled:
        _release_task(tx, ended)
    return cancelled


def expire_delegations(tx: Tx) -> list[Delegation]:
    """End the delegations whose deadline has passed, and release their tasks."""
    expired = delegations.expire_due(tx)
    for ended in expired:
        _release_task(tx, ended)
    return expired


def _release_task(tx: Tx, ended: Delegation) -> None:
    if ended.task_id is None:
        return
    task = lock_task(tx, ended.task_id)
    if task.state in WAITING and task.assignee_id == ended.to_agent_id:
        tx.run(sql.SET_ASSIGNEE, id=task.id, assignee_id=None)
    elif (
        task.state in (TaskState.RUNNING, TaskState.SUBMITTED)
        and task.agent_id == ended.to_agent_id
    ):
        after = transition(
            tx,
            sql.TASKS,
            "reassign",
            task.id,
            assignee_id=None,
            agent_id=None,
            run_id=None,
            fence=task.fence + 1,
            lease_until=None,
            attempts=0,
            reason=ended.reason,
        )
        apply_consequences(tx, task, after)
