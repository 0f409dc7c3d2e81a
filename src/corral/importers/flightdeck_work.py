"""flightdeck: the work of a crew: tasks, delegations, locks, decisions, timers, and its mail."""

from collections.abc import Iterable, Iterator

from corral.importers import records
from corral.importers.flightdeck_crew import mailbox, project_of_lead
from corral.importers.mapping import KEPT, KEY, SAME, Table, Thing
from corral.importers.row import Row
from corral.importers.source.database import key_of
from corral.kernel.path_patterns import head_of

_TASKS = {
    "done": "done",
    "failed": "failed",
    "skipped": "skipped",
    "cancelled": "cancelled",
    "pending": "paused",
    "ready": "paused",
    "running": "paused",
    "in_review": "paused",
    "blocked": "paused",
    "paused": "paused",
}
_DELEGATIONS = {
    "completed": "done",
    "failed": "failed",
    "cancelled": "cancelled",
    "terminated": "cancelled",
    "active": "expired",
}
_DECISIONS = {
    "recorded": "recorded",
    "confirmed": "confirmed",
    "rejected": "rejected",
    "dismissed": "dismissed",
}
_TIMERS = {"pending": "paused", "fired": "finished", "cancelled": "cancelled"}
_LETTERS = {"queued": "expired", "delivered": "done", "expired": "expired"}
_WAITED = "it was still waiting when it was imported from flightdeck"


def _task(row: Row) -> Iterable[Thing]:
    at = row.born("created_at")
    found = row.plain_text("dag_status")
    state = row.choice("dag_status", _TASKS, "paused")
    own = row.line("id", most=100) or row.key[:100]
    lead = row.line("lead_id", most=100) or ""
    reason = row.text("failure_reason")
    if state == "paused" and found != "paused":
        if reason is not None:
            row.keep("failure_reason")
        reason = f"it was {found[:40] or 'pending'} when it was imported from flightdeck"
    project = row.ref("project_id")
    if project is None:
        project = row.id_of("project_sessions.project_id", row.names("lead_id") or "")
    made = records.task(
        row,
        project or row.home(),
        f"{own}@{lead[:8]}",
        at,
        state,
        role=row.line("role"),
        title=row.line("title") or own,
        description=row.text("description"),
        files=records.json_of(row.json("files", list[str], [])),
        priority=row.whole("priority", least=-1_000_000, most=1_000_000) or 0,
        lead=mailbox(row, "lead_id"),
        agent_id=row.ref("assigned_agent_id"),
        reason=reason,
        started_at=row.moment("started_at"),
        ended_at=row.end("completed_at", at) if state != "paused" else None,
    )
    if state == "paused":
        row.keep("completed_at")
        row.keep("archived_at")
    else:
        made.values["archived_at"] = row.moment("archived_at")
    yield made


def _needs(row: Row) -> Iterable[Thing]:
    own = row.id_of("dag_tasks", row.key_of("id", "lead_id"))
    if own is None:
        return
    yield Thing(SAME, {"table": "tasks", "id": own})
    for need in row.json("depends_on", list[str], []):
        other = row.id_of("dag_tasks", key_of([need, row.plain_text("lead_id")]))
        if other is None or other == own:
            row.keep("depends_on")
            row.troubles.append("depends_on names a task that is not there, or itself")
        else:
            yield Thing("edges", {"task_id": own, "needs_id": other})


def _needed(row: Row) -> Iterator[tuple[str, str]]:
    yield "dag_tasks", row.key_of("id", "lead_id")
    for need in row.quiet_list("depends_on"):
        yield "dag_tasks", key_of([need, row.plain_text("lead_id")])


def _delegation(row: Row) -> Iterable[Thing]:
    agent = row.ref("agent_id")
    if agent is None:
        row.explain("its agent is not there")
        return
    state = row.choice("status", _DELEGATIONS, "expired")
    result = row.json("result", object, None)
    at = row.born("created_at")
    yield records.delegation(
        row,
        at,
        state,
        row.end("completed_at", at),
        from_mailbox="user:flightdeck",
        to_agent_id=agent,
        to_mailbox=mailbox(row, "agent_id"),
        text=row.words("task", "(no words)"),
        context=row.text("context"),
        result=None if result is None else records.json_of(result),
        reason=_WAITED if state == "expired" else None,
    )


def _lock(row: Row) -> Iterable[Thing]:
    at = row.born("acquired_at")
    until = row.moment("expires_at") or at
    path = row.words("file_path", ".", most=2_000)
    project = row.ref("project_id") or row.home()
    made = records.lock(row, project, path, mailbox(row, "agent_id"), at, until)
    made.values["head"] = head_of(path)
    made.values["reason"] = row.text("reason")
    yield made


def _touch(row: Row) -> Iterable[Thing]:
    project = row.id_of("project_sessions.project_id", row.names("lead_id") or "")
    at = row.born("first_touched_at")
    yield Thing(
        "touches",
        {
            "project_id": project or row.home(),
            "path": row.words("file_path", ".", most=2_000),
            "owner": mailbox(row, "agent_id"),
            "count": row.whole_or("touch_count", 1, least=1),
            "first_at": at,
            "last_at": row.end("last_touched_at", at) or at,
        },
    )


def _decision(row: Row) -> Iterable[Thing]:
    state = row.choice("status", _DECISIONS, "recorded")
    by_itself = row.flag("auto_approved")
    if state == "recorded":
        row.keep("confirmed_at")
    yield records.decision(
        row,
        row.born("created_at"),
        state,
        row.moment("confirmed_at"),
        project_id=row.ref("project_id"),
        author=mailbox(row, "agent_id"),
        title=row.words("title", "(no title)", most=1_000),
        rationale=row.text("rationale") or "",
        reason="it was confirmed by itself, when nobody had answered" if by_itself else None,
    )


def _timer(row: Row) -> Iterable[Thing]:
    at = row.born("created_at")
    state = row.choice("status", _TIMERS, "paused")
    seconds = row.whole_or("delay_seconds", 60, least=1)
    fire_at = row.moment("fire_at") or at
    again = row.flag("repeat")
    label = row.line("label")
    if not again:
        row.keep("delay_seconds")
    body = {"label": label, "message": row.text("message")}
    yield records.schedule(
        row,
        mailbox(row, "agent_id"),
        at,
        state,
        name=label,
        body=records.json_of(body),
        kind="every" if again else "once",
        rule=str(seconds * 1_000) if again else "",
        anchor_at=fire_at,
        next_at=fire_at if state == "paused" else None,
        last_error=_WAITED if state == "paused" else None,
    )


def _letter(row: Row) -> Iterable[Thing]:
    state = row.choice("status", _LETTERS, "expired")
    body = {"type": row.line("message_type"), "payload": row.text("payload", most=1 << 20)}
    yield records.letter(
        row,
        mailbox(row, "target_agent_id"),
        body,
        row.born("created_at"),
        state,
        row.moment("delivered_at"),
        sender=mailbox(row, "source_agent_id") if row.has("source_agent_id") else None,
        project_id=row.ref("project_id"),
        attempts=row.whole("attempts", least=0) or 0,
        last_error=_WAITED if state == "expired" else None,
    )


_PROJECT = {"project_id": "projects"}

TABLES = (
    Table(
        "dag_tasks",
        ("id", "lead_id"),
        {
            "id": "tasks.key",
            "lead_id": "tasks.key, tasks.lead",
            "project_id": "tasks.project_id",
            "team_id": KEPT,
            "role": "tasks.role",
            "title": "tasks.title",
            "description": "tasks.description",
            "files": "tasks.files",
            "depends_on": "edges.needs_id",
            "dag_status": "tasks.state",
            "priority": "tasks.priority",
            "model": KEPT,
            "assigned_agent_id": "tasks.agent_id",
            "failure_reason": "tasks.reason",
            "created_at": "tasks.created_at",
            "started_at": "tasks.started_at",
            "completed_at": "tasks.ended_at",
            "archived_at": "tasks.archived_at",
            "overridden_by": KEPT,
        },
        _task,
        refs={"project_id": "projects", "assigned_agent_id": "agent_roster"},
        links=project_of_lead,
    ),
    Table(
        "dag_tasks",
        ("id", "lead_id"),
        {"depends_on": "edges.needs_id"},
        _needs,
        links=_needed,
        part="dag_tasks.depends_on",
    ),
    Table(
        "active_delegations",
        ("delegation_id",),
        {
            "delegation_id": KEY,
            "agent_id": "delegations.to_agent_id",
            "task": "delegations.text",
            "context": "delegations.context",
            "dag_task_id": KEPT,
            "team_id": KEPT,
            "status": "delegations.state",
            "created_at": "delegations.created_at",
            "completed_at": "delegations.ended_at",
            "result": "delegations.result",
        },
        _delegation,
        refs={"agent_id": "agent_roster"},
    ),
    Table(
        "file_locks",
        ("file_path",),
        {
            "file_path": "locks.path",
            "agent_id": "locks.owner",
            "agent_role": KEPT,
            "reason": "locks.reason",
            "acquired_at": "locks.held_at",
            "expires_at": "locks.lease_until",
            "project_id": "locks.project_id",
        },
        _lock,
        refs=_PROJECT,
    ),
    Table(
        "agent_file_history",
        ("agent_id", "lead_id", "file_path"),
        {
            "agent_id": "touches.owner",
            "agent_role": KEPT,
            "lead_id": "touches.project_id",
            "file_path": "touches.path",
            "first_touched_at": "touches.first_at",
            "last_touched_at": "touches.last_at",
            "touch_count": "touches.count",
        },
        _touch,
        links=project_of_lead,
    ),
    Table(
        "decisions",
        ("id",),
        {
            "id": KEY,
            "agent_id": "decisions.author",
            "agent_role": KEPT,
            "lead_id": KEPT,
            "project_id": "decisions.project_id",
            "title": "decisions.title",
            "rationale": "decisions.rationale",
            "needs_confirmation": KEPT,
            "status": "decisions.state",
            "auto_approved": "decisions.reason",
            "confirmed_at": "decisions.ended_at",
            "created_at": "decisions.created_at",
        },
        _decision,
        refs=_PROJECT,
    ),
    Table(
        "timers",
        ("id",),
        {
            "id": KEY,
            "agent_id": "schedules.mailbox",
            "agent_role": KEPT,
            "lead_id": KEPT,
            "label": "schedules.name",
            "message": "schedules.body",
            "delay_seconds": "schedules.rule",
            "fire_at": "schedules.anchor_at",
            "created_at": "schedules.created_at",
            "status": "schedules.state",
            "repeat": "schedules.kind",
        },
        _timer,
    ),
    Table(
        "message_queue",
        ("id",),
        {
            "id": KEY,
            "target_agent_id": "letters.mailbox",
            "source_agent_id": "letters.sender",
            "message_type": "letters.body",
            "payload": "letters.body",
            "status": "letters.state",
            "attempts": "letters.attempts",
            "created_at": "letters.created_at",
            "delivered_at": "letters.ended_at",
            "project_id": "letters.project_id",
        },
        _letter,
        refs=_PROJECT,
    ),
)
