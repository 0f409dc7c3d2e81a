from collections.abc import Sequence
from typing import Any

from corral.api.operation import Room, read, write
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.plans import ops
from corral.domain.plans.model import Plan, Step
from corral.domain.plans.model import Progress as Reported
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run
from corral.domain.tasks import ops as tasks
from corral.kernel.errors import Refused


def set_plan(
    tx: Tx,
    steps: Sequence[Step | dict[str, Any] | str],
    *,
    agent: str | None = None,
    run: str | None = None,
    project_id: str | None = None,
) -> Plan:
    """Keep the plan that an agent published, in place of its last one; each step has content,
    status and priority. A run without an agent has a plan of its own."""
    made_in = _run_of(tx, run, agent) if run else None
    if made_in is None:
        return ops.set_plan(tx, steps, agent=agent, project_id=project_id)
    if project_id is not None and made_in.project_id not in (None, project_id):
        raise Refused(
            f"{made_in.id} is a run of another project, {made_in.project_id}; leave the project "
            "out, or name that one.",
            run=made_in.id,
            project_id=made_in.project_id,
        )
    return ops.set_plan(
        tx,
        steps,
        agent=agent or made_in.agent_id,
        run=made_in.id,
        project_id=project_id or made_in.project_id,
    )


def report(
    tx: Tx,
    summary: str,
    *,
    agent: str,
    percent: int | None = None,
    task: str | None = None,
    run: str | None = None,
    project: str | None = None,
) -> Reported:
    """Say how far an agent is, with a task or in general; it takes the place of what it said of
    that before."""
    found = tasks.find(tx, task, project) if task else None
    said_in = _run_of(tx, run, agent) if run else None
    return ops.report(
        tx,
        summary,
        agent=agent,
        percent=percent,
        task_id=found.id if found else None,
        run=said_in.id if said_in else None,
        project_id=found.project_id if found else project,
    )


def _run_of(tx: Tx, run: str, agent: str | None) -> Run:
    """A run, in which the agent that is named may be saying something."""
    found = runs.get(tx, run)
    who = agents.get(tx, agent) if agent else None
    if who is not None and found.agent_id not in (None, who.id):
        raise Refused(
            f"{found.id} is not a run of {who.name}; leave the run out, or name its own agent.",
            run=found.id,
            agent_id=found.agent_id,
        )
    return found


class Plans(Room):
    """What agents say they will do."""

    noun = "plan"

    set = write(set_plan, repeatable=True)
    get = read(ops.get_plan)
    list = read(ops.list_plans, mode="one")


class Progress(Room):
    """How far agents say they have come."""

    noun = "progress"

    report = write(report, repeatable=True)
    list = read(ops.list_progress)
