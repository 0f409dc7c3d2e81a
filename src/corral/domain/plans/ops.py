"""Keeping what agents say they will do, and how far they have come."""

from collections.abc import Sequence
from typing import Any

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.plans import sql
from corral.domain.plans.model import Plan, Progress, Step, read_steps
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json

KEPT = (sql.PLANS_KEPT, sql.PROGRESS_KEPT)
MAX_PLAN = 256 * 1024
MAX_SUMMARY = 4_000


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
    entries = encode_json(read_steps(steps), "The plan", most=MAX_PLAN)
    of = agents.get(tx, agent).id if agent else run
    if not of:
        raise Invalid("Say whose plan it is: name the agent.")
    said = tx.one(
        sql.SET_PLAN,
        subject=clean_text(of, "The run", most=MAX_NAME),
        run_id=run,
        project_id=project_id,
        entries=entries,
        now=tx.now,
    )
    assert said is not None
    tx.note("plan", "set", said.subject, project_id=project_id)
    return said


def get_plan(tx: Tx, of: str) -> Plan:
    """The latest plan of an agent, or of a run without one."""
    subject = of if of.startswith("run_") else agents.get(tx, of).id
    found = tx.one(sql.PLAN, subject=clean_text(subject, "The run", most=MAX_NAME))
    if found is None:
        raise NotFound(
            f"{of} has published no plan; `corral plan list` shows those that there are.",
            subject=subject,
        )
    return found


def list_plans(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Plan]:
    """The latest plan of everybody who has one."""
    (subject,) = decode_cursor(after, "")
    rows = tx.all(sql.PLANS, after=subject, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda plan: (plan.subject,))


def report(
    tx: Tx,
    summary: str,
    *,
    agent: str,
    percent: int | None = None,
    task_id: str | None = None,
    run: str | None = None,
    project_id: str | None = None,
) -> Progress:
    """Say how far an agent is, with a task or in general; it takes the place of what it said of
    that before."""
    if percent is not None and not 0 <= check_int(percent, "The percentage") <= 100:
        raise Invalid(f"A percentage goes from 0 to 100, not {percent}.", percent=percent)
    who = agents.get(tx, agent)
    said = tx.one(
        sql.REPORT,
        id=f"{who.id}/{task_id or ''}",
        agent_id=who.id,
        task_id=task_id,
        run_id=clean_text(run, "The run", most=MAX_NAME) if run else None,
        project_id=project_id,
        summary=clean_text(summary, "The summary", most=MAX_SUMMARY),
        percent=percent,
        now=tx.now,
    )
    assert said is not None
    tx.note(
        "progress",
        "report",
        task_id or who.id,
        project_id=project_id,
        data={"agent": who.name, "summary": said.summary, "percent": percent},
    )
    return said


def list_progress(
    tx: Tx,
    *,
    agent: str | None = None,
    task_id: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Progress]:
    """How far everybody, one agent, or those who do a task, say they are."""
    if agent is not None and task_id is not None:
        raise Invalid("Progress is listed by agent or by task, not by both.")
    first, named = "", {}
    if agent is not None:
        first = agents.get(tx, agent).id
        named = {"agent_end": f"{first}/~"}
    elif task_id is not None:
        named = {"task": sql.TASK_IDS.find(tx, task_id)}
    (id,) = decode_cursor(after, first)
    kind = ("agent",) if agent is not None else ("task",) if task_id is not None else ()
    rows = tx.all(sql.LISTS[kind], after=max(id, first), limit=check_limit(limit) + 1, **named)
    return page_of(rows, limit, lambda each: (each.id,))


def forget_project(tx: Tx, project_id: str) -> None:
    """Forget the plans and the progress of a project that is being deleted."""
    tx.run(sql.FORGET_PLANS, project=project_id)
    tx.run(sql.FORGET_PROGRESS, project=project_id)
