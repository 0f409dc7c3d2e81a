"""Delegating tasks: a task that is handed to one agent, and taken back from it."""

from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.delegations import ops as delegations
from corral.domain.delegations.model import Delegation
from corral.domain.tasks import sql
from corral.domain.tasks.model import WAITING, Task, TaskState
from corral.domain.tasks.ops import locked, reassign, steered
from corral.domain.tasks.propagation import follow_up

S = TaskState


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
    """Hand a task to one agent, who alone may take it from now on; the end of the task goes back
    as a letter. Earlier delegations of it are taken back."""
    found = steered(tx, task, agent)
    for earlier in delegations.active_of_task(tx, found.id):
        delegations.take_back(tx, earlier.id, f"{found.key} was given to another")
    reassign(tx, found, to, agent=agent)
    text = f"{found.title}\n\n{found.description}" if found.description else found.title
    return delegations.hand_over(
        tx,
        to,
        text,
        context=context,
        project_id=found.project_id,
        task_id=found.id,
        parent=parent,
        deadline_at=deadline_at,
        agent=agent,
    )


def cancel_delegation(
    tx: Tx, delegation: str, *, reason: str | None = None, agent: str | None = None
) -> list[Delegation]:
    """Take a delegation back, with all that are parts of it: a letter that nobody has read is
    taken out of its mailbox, a task that was handed over is free again."""
    cancelled = delegations.cancel(tx, delegation, reason=reason, agent=agent)
    for each in cancelled:
        _free(tx, each)
    return cancelled


def expire_delegations(tx: Tx) -> list[Delegation]:
    """End the delegations that had to be done by now; their tasks are free again."""
    expired = delegations.expire_due(tx)
    for each in expired:
        _free(tx, each)
    return expired


def _free(tx: Tx, ended: Delegation) -> None:
    if ended.task_id is None:
        return
    task = locked(tx, ended.task_id)
    if task.state in WAITING and task.assignee_id == ended.to_agent_id:
        tx.run(sql.SET_ASSIGNEE, id=task.id, assignee_id=None)
    elif task.state in (S.RUNNING, S.SUBMITTED) and task.agent_id == ended.to_agent_id:
        after = move(
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
        follow_up(tx, task, after)
