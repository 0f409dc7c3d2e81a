"""Locking a project's graph, and who may act on a task."""

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.tasks import sql
from corral.domain.tasks.model import Task
from corral.domain.tasks.queries import find
from corral.kernel.errors import Refused


def lock_graph(tx: Tx, project_id: str) -> str:
    """Serialize changes to a project's graph, and return the project's id.

    The dependency counts of a task are derived from several rows, so two concurrent changes to one
    graph would compute wrong counts.
    """
    tx.serialize(f"tasks:{project_id}")
    return project_id


def lock_task(tx: Tx, task: Task | str, project: str | None = None) -> Task:
    """Lock the graph of a task, and return the task as it is now."""
    unlocked = task if isinstance(task, Task) else find(tx, task, project)
    lock_graph(tx, unlocked.project_id)
    return sql.TASKS.get(tx, unlocked.id)


def lock_as_lead(tx: Tx, task: Task | str, agent: str | None) -> Task:
    """Lock and return a task for a caller that may manage it.

    People may manage every task. An agent may manage the tasks that it leads or declared; an admin
    agent may manage all. Raises Refused for any other agent.
    """
    locked = lock_task(tx, task)
    actor = resolve_actor(tx, agent)
    if actor.startswith("agent:") and actor not in (locked.lead, locked.created_by):
        name = actor.removeprefix("agent:")
        if not agents.get(tx, name).admin:
            lead = locked.lead or locked.created_by
            raise Refused(
                f"{name} may not change {locked.id}, because {lead} leads it. Ask {lead}.",
                id=locked.id,
                lead=locked.lead,
            )
    return locked


def resolve_actor(tx: Tx, agent: str | None) -> str:
    """Return the mailbox of the caller: the named agent, or else the actor of the transaction."""
    return f"agent:{agents.get(tx, agent).name}" if agent else tx.actor


def get_active_agent(tx: Tx, agent: str) -> Agent:
    """Return an agent that may be given work. Raises Refused when it is retired."""
    record = agents.get(tx, agent)
    if record.state is not AgentState.ACTIVE:
        raise Refused(f"{record.name} is retired. Restore it, or choose another.", id=record.id)
    return record
