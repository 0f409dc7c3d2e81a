"""Plans and progress reports of agents, linked to their runs, tasks and projects."""

from collections.abc import Sequence
from typing import Any

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.plans import ops
from corral.domain.plans.model import Plan, PlanStep, ProgressReport
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run
from corral.domain.tasks import queries as tasks
from corral.kernel.errors import Refused


def set_plan(
    tx: Tx,
    steps: Sequence[PlanStep | dict[str, Any] | str],
    *,
    agent: str | None = None,
    run: str | None = None,
    project_id: str | None = None,
) -> Plan:
    """Replace the plan of an agent, or of a run without an agent.

    Each step has content, status and priority. Raises Refused when the run belongs to another agent
    or project.
    """
    source = _run_of(tx, run, agent) if run else None
    if source is None:
        return ops.set_plan(tx, steps, agent=agent, project_id=project_id)
    if project_id is not None and source.project_id not in (None, project_id):
        raise Refused(
            f"{source.id} is a run of another project, {source.project_id}. Omit the project, or "
            "use that one.",
            run=source.id,
            project_id=source.project_id,
        )
    return ops.set_plan(
        tx,
        steps,
        agent=agent or source.agent_id,
        run=source.id,
        project_id=project_id or source.project_id,
    )


def report_progress(
    tx: Tx,
    summary: str,
    *,
    agent: str,
    percent: int | None = None,
    task: str | None = None,
    run: str | None = None,
    project: str | None = None,
) -> ProgressReport:
    """Record the progress of an agent, on a task or in general.

    Replaces its previous report on the same subject. Raises Refused when the run belongs to another
    agent.
    """
    subject = tasks.find(tx, task, project) if task else None
    source = _run_of(tx, run, agent) if run else None
    return ops.report_progress(
        tx,
        summary,
        agent=agent,
        percent=percent,
        task_id=subject.id if subject else None,
        run=source.id if source else None,
        project_id=subject.project_id if subject else project,
    )


def _run_of(tx: Tx, run: str, agent: str | None) -> Run:
    """Return a run; raises Refused when it is not a run of the named agent."""
    current = runs.get(tx, run)
    named = agents.get(tx, agent) if agent else None
    if named is not None and current.agent_id not in (None, named.id):
        raise Refused(
            f"{current.id} is not a run of {named.name}. Omit the run, or name its own agent.",
            run=current.id,
            agent_id=current.agent_id,
        )
    return current
