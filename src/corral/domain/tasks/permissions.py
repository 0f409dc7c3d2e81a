"""Who may manage, work on, approve and be given a task.

Each `require_…` function locks the task's graph and returns the task as it is now, or raises
Refused. A person may do everything. An agent may do what the rules allow; any other actor, such as
a run without an agent, may only manage the tasks that it declared.
"""

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.mail.model import agent_name_of, is_person
from corral.domain.tasks.graph_lock import lock_task
from corral.domain.tasks.model import Task
from corral.kernel.errors import Refused
from corral.kernel.lease import stale_fence_error


def require_lead(tx: Tx, task: Task | str, agent: str | None) -> Task:
    """Return a task that the caller may manage.

    An agent may manage the tasks that it leads or declared; an admin agent may manage all.
    """
    locked = lock_task(tx, task)
    actor = agents.resolve_actor(tx, agent)
    if is_person(actor) or actor in (locked.lead, locked.created_by):
        return locked
    name = _require_agent(locked, actor)
    if agents.get(tx, name).admin:
        return locked
    lead = locked.lead or locked.created_by
    raise Refused(
        f"{name} may not change {locked.id}, because {lead} leads it. Ask {lead}.",
        id=locked.id,
        lead=locked.lead,
    )


def require_reviewer(tx: Tx, task: Task | str, agent: str | None) -> Task:
    """Return a task that the caller may accept (approve) or reject, for `review.accept`.

    A person may, and every agent except the one that did the work.
    """
    locked = lock_task(tx, task)
    actor = agents.resolve_actor(tx, agent)
    if not is_person(actor):
        _require_agent(locked, actor)
    if locked.agent_id is not None and actor == f"agent:{agents.get(tx, locked.agent_id).name}":
        raise Refused(
            f"{actor} did the work of {locked.id} and cannot review it. Ask another agent or a "
            "person.",
            id=locked.id,
            reason="own_work",
        )
    return locked


def require_claimant(tx: Tx, task: Task | str, agent: str | None, fence: int | None) -> Task:
    """Return a claimed task for its claimant, or for a person. Raises Held when the fence is stale.

    A valid fence does not let one agent act for another.
    """
    locked = _lock_with_fence(tx, task, fence)
    _require_person_or_claimant(tx, locked, agents.resolve_actor(tx, agent))
    if locked.agent_id is None:
        raise Refused(
            f"{locked.id} is {locked.state} and not claimed. Claim it first.",
            id=locked.id,
            state=locked.state,
            reason="not_claimed",
        )
    return locked


def require_claimant_or_lead(
    tx: Tx, task: Task | str, agent: str | None, fence: int | None
) -> Task:
    """Return a task for its claimant, its lead or a person. Raises Held when the fence is stale."""
    locked = _lock_with_fence(tx, task, fence)
    actor = agents.resolve_actor(tx, agent)
    if actor != locked.lead:
        _require_person_or_claimant(tx, locked, actor)
    return locked


def _lock_with_fence(tx: Tx, task: Task | str, fence: int | None) -> Task:
    locked = lock_task(tx, task)
    expected = fence if fence is not None or isinstance(task, str) else task.fence
    if expected is not None and expected != locked.fence:
        raise stale_fence_error(
            locked.id, yours=expected, current=locked.fence, owner=locked.agent_id
        )
    return locked


def _require_person_or_claimant(tx: Tx, task: Task, actor: str) -> None:
    """Raise Refused unless the caller is a person or the agent that has claimed the task."""
    if is_person(actor):
        return
    name = _require_agent(task, actor)
    if task.agent_id == agents.get(tx, name).id:
        return
    status = str(task.state)
    if task.agent_id:
        status = f"claimed by {agents.get(tx, task.agent_id).name}"
    raise Refused(
        f"{name} has not claimed {task.id}, which is {status}. Claim it first.",
        id=task.id,
        state=task.state,
    )


def _require_agent(task: Task, actor: str) -> str:
    """Return the name of the agent that acts; raises Refused for any other actor."""
    name = agent_name_of(actor)
    if name is None:
        raise Refused(
            f"{actor} may not change {task.id}: it is neither a person nor an agent. Start the "
            "run with an agent.",
            id=task.id,
            actor=actor,
            reason="no_agent",
        )
    return name
