"""Storing and reading the plans and progress reports of agents."""

from collections.abc import Sequence
from typing import Any

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.plans import sql
from corral.domain.plans.model import Plan, PlanStep, ProgressReport, parse_steps
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.pagination import Page
from corral.kernel.validation import (
    MAX_NAME,
    check_int,
    check_optional_text,
    check_text,
    encode_json,
)

RETENTION = (sql.PLANS_RETENTION, sql.PROGRESS_RETENTION)
MAX_PLAN = 256 * 1024
MAX_SUMMARY = 4_000


def set_plan(
    tx: Tx,
    steps: Sequence[PlanStep | dict[str, Any] | str],
    *,
    agent: str | None = None,
    run: str | None = None,
    project_id: str | None = None,
) -> Plan:
    """Store the plan of an agent, or of a run without an agent, and replace its previous plan.

    Each step has content, status and priority.
    """
    entries = encode_json(parse_steps(steps), "The plan", max_bytes=MAX_PLAN)
    subject = agents.get(tx, agent).id if agent else run
    if not subject:
        raise Invalid("A plan needs an agent or a run. Name the agent.")
    plan = tx.one(
        sql.SET_PLAN,
        subject=check_text(subject, "The run", max_bytes=MAX_NAME),
        run_id=run,
        project_id=project_id,
        entries=entries,
        now=tx.now,
    )
    tx.emit("plan", "set", plan.subject, project_id=project_id)
    return plan


def get_plan(tx: Tx, of: str) -> Plan:
    """Return the latest plan of an agent, or of a run without an agent."""
    subject = of if of.startswith("run_") else agents.get(tx, of).id
    plan = tx.first(sql.PLAN, subject=check_text(subject, "The run", max_bytes=MAX_NAME))
    if plan is None:
        raise NotFound(
            f"{of} has not published a plan. List the plans with `corral plan list`.",
            subject=subject,
        )
    return plan


def list_plans(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Plan]:
    """List the latest plan of every agent and run."""
    return sql.PLANS.page(tx, after=after, limit=limit)


def report_progress(
    tx: Tx,
    summary: str,
    *,
    agent: str,
    percent: int | None = None,
    task_id: str | None = None,
    run: str | None = None,
    project_id: str | None = None,
) -> ProgressReport:
    """Record the progress of an agent, with a task or in general.

    Replaces the agent's previous report for the same task.
    """
    if percent is not None and not 0 <= check_int(percent, "The percentage") <= 100:
        raise Invalid(f"Invalid percentage {percent}: expected 0 to 100.", percent=percent)
    reporter = agents.get(tx, agent)
    progress = tx.one(
        sql.REPORT,
        id=f"{reporter.id}/{task_id or ''}",
        agent_id=reporter.id,
        task_id=task_id,
        run_id=check_optional_text(run, "The run", max_bytes=MAX_NAME),
        project_id=project_id,
        summary=check_text(summary, "The summary", max_bytes=MAX_SUMMARY),
        percent=percent,
        now=tx.now,
    )
    tx.emit(
        "progress",
        "report",
        task_id or reporter.id,
        project_id=project_id,
        data={"agent": reporter.name, "summary": progress.summary, "percent": percent},
    )
    return progress


def list_progress(
    tx: Tx,
    *,
    agent: str | None = None,
    task_id: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[ProgressReport]:
    """List progress reports: all, of one agent, or about one task."""
    if agent is not None and task_id is not None:
        raise Invalid("Filter progress by agent or by task, not by both.")
    if agent is not None:
        agent_id = agents.get(tx, agent).id
        bounds = {"agent_id": agent_id, "start": agent_id, "agent_end": f"{agent_id}/~"}
        return sql.REPORTS_OF_AGENT.page(tx, after=after, limit=limit, **bounds)
    if task_id is not None:
        id = sql.TASK_IDS.find(tx, task_id)
        return sql.REPORTS_OF_TASK.page(tx, after=after, limit=limit, task=id)
    return sql.REPORTS.page(tx, after=after, limit=limit)


def delete_project_rows(tx: Tx, project_id: str) -> None:
    """Delete the plans and progress reports of a project that is being deleted."""
    tx.run(sql.DELETE_PLANS, project=project_id)
    tx.run(sql.DELETE_PROGRESS, project=project_id)
