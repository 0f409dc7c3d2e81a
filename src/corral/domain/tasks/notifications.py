"""Letters about a task, to its lead and to the agent that works on it."""

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.mail import ops as mail
from corral.domain.mail.payloads import TaskNotice
from corral.domain.tasks.model import Task, TaskState
from corral.kernel.clock import DAY

LETTER_MS = 30 * DAY
"""Expiry of a notification, so that a recipient who is away for weeks still receives it."""


def notify(tx: Tx, mailbox: str | None, task: Task, event: str, reason: str | None = None) -> None:
    """Put a letter about a task, at most once for each event and claim.

    The fence is part of the key, so a task that is claimed again can notify again.
    """
    if mailbox is None:
        return
    mail.put_caused_by(
        tx,
        None,
        mailbox,
        TaskNotice(
            event=event,
            task=task.id,
            key=task.key,
            title=task.title,
            state=task.state,
            reason=reason,
        ),
        key=f"{task.id}:{event}:{task.fence}",
        project=task.project_id,
        expires_at=tx.now + LETTER_MS,
    )


def notify_stop(tx: Tx, before: Task, event: str, reason: str | None) -> None:
    """Ask the agent that works on a task to stop, because it has lost the task."""
    if before.agent_id is not None and before.state in (TaskState.RUNNING, TaskState.SUBMITTED):
        name = agents.get(tx, before.agent_id).name
        notify(tx, f"agent:{name}", before, f"stop: {event}", reason)
