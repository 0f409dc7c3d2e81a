"""flightdeck: tasks, delegations, locks, decisions, timers and mail."""

from collections.abc import Iterable, Iterator

from corral.importers.mappings import target_rows
from corral.importers.mappings.flightdeck_agents import link_project_of_lead, resolve_mailbox
from corral.importers.mappings.types import EXISTING, KEPT, KEY, TableMapping, TargetRow
from corral.importers.source.database import encode_key
from corral.importers.source.row import SourceRow
from corral.kernel.path_patterns import get_literal_prefix

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


def _convert_task(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("created_at")
    status = row.peek_text("dag_status")
    state = row.read_choice("dag_status", _TASKS, "paused")
    name = row.read_line("id", max_bytes=100) or row.key[:100]
    lead = row.read_line("lead_id", max_bytes=100) or ""
    reason = row.read_text("failure_reason")
    if state == "paused" and status != "paused":
        if reason is not None:
            row.keep("failure_reason")
        reason = f"it was {status[:40] or 'pending'} when it was imported from flightdeck"
    project = row.find_ref("project_id")
    if project is None:
        project = row.find_id("project_sessions.project_id", row.peek_key("lead_id") or "")
    task = target_rows.build_task(
        row,
        project or row.source_project(),
        f"{name}@{lead[:8]}",
        at,
        state,
        role=row.read_line("role"),
        title=row.read_line("title") or name,
        description=row.read_text("description"),
        files=target_rows.to_json_text(row.read_json("files", list[str], [])),
        priority=row.read_integer("priority", minimum=-1_000_000, maximum=1_000_000) or 0,
        lead=resolve_mailbox(row, "lead_id"),
        agent_id=row.find_ref("assigned_agent_id"),
        reason=reason,
        started_at=row.read_timestamp("started_at"),
        ended_at=row.read_end_time("completed_at", at) if state != "paused" else None,
    )
    if state == "paused":
        row.keep("completed_at")
        row.keep("archived_at")
    else:
        task.values["archived_at"] = row.read_timestamp("archived_at")
    yield task


def _convert_dependencies(row: SourceRow) -> Iterable[TargetRow]:
    task = row.find_id("dag_tasks", row.build_key("id", "lead_id"))
    if task is None:
        return
    yield TargetRow(EXISTING, {"table": "tasks", "id": task})
    for need in row.read_json("depends_on", list[str], []):
        other = row.find_id("dag_tasks", encode_key([need, row.peek_text("lead_id")]))
        if other is None or other == task:
            row.keep("depends_on")
            row.problems.append("depends_on refers to a missing task, or to itself")
        else:
            yield TargetRow("task_dependencies", {"task_id": task, "depends_on_id": other})


def _link_dependencies(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "dag_tasks", row.build_key("id", "lead_id")
    for need in row.peek_list("depends_on"):
        yield "dag_tasks", encode_key([need, row.peek_text("lead_id")])


def _convert_delegation(row: SourceRow) -> Iterable[TargetRow]:
    agent = row.find_ref("agent_id")
    if agent is None:
        row.report_reason("its agent is missing")
        return
    state = row.read_choice("status", _DELEGATIONS, "expired")
    result = row.read_json("result", object, None)
    at = row.read_created_at("created_at")
    yield target_rows.build_delegation(
        row,
        at,
        state,
        row.read_end_time("completed_at", at),
        from_mailbox="user:flightdeck",
        to_agent_id=agent,
        to_mailbox=resolve_mailbox(row, "agent_id"),
        text=row.read_text_or("task", "(no text)"),
        context=row.read_text("context"),
        result=None if result is None else target_rows.to_json_text(result),
        reason=_WAITED if state == "expired" else None,
    )


def _convert_lock(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("acquired_at")
    until = row.read_timestamp("expires_at") or at
    path = row.read_text_or("file_path", ".", max_bytes=2_000)
    project = row.find_ref("project_id") or row.source_project()
    lock = target_rows.build_lock(row, project, path, resolve_mailbox(row, "agent_id"), at, until)
    lock.values["path_prefix"] = get_literal_prefix(path)
    lock.values["reason"] = row.read_text("reason")
    yield lock


def _convert_touch(row: SourceRow) -> Iterable[TargetRow]:
    project = row.find_id("project_sessions.project_id", row.peek_key("lead_id") or "")
    at = row.read_created_at("first_touched_at")
    yield TargetRow(
        "file_touches",
        {
            "project_id": project or row.source_project(),
            "path": row.read_text_or("file_path", ".", max_bytes=2_000),
            "owner": resolve_mailbox(row, "agent_id"),
            "count": row.read_integer_or("touch_count", 1, minimum=1),
            "first_at": at,
            "last_at": row.read_end_time("last_touched_at", at) or at,
        },
    )


def _convert_decision(row: SourceRow) -> Iterable[TargetRow]:
    state = row.read_choice("status", _DECISIONS, "recorded")
    auto_approved = row.read_flag("auto_approved")
    if state == "recorded":
        row.keep("confirmed_at")
    yield target_rows.build_decision(
        row,
        row.read_created_at("created_at"),
        state,
        row.read_timestamp("confirmed_at"),
        project_id=row.find_ref("project_id"),
        author=resolve_mailbox(row, "agent_id"),
        title=row.read_text_or("title", "(no title)", max_bytes=1_000),
        rationale=row.read_text("rationale") or "",
        reason="it was approved automatically" if auto_approved else None,
    )


def _convert_timer(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("created_at")
    state = row.read_choice("status", _TIMERS, "paused")
    seconds = row.read_integer_or("delay_seconds", 60, minimum=1)
    fire_at = row.read_timestamp("fire_at") or at
    repeats = row.read_flag("repeat")
    label = row.read_line("label")
    if not repeats:
        row.keep("delay_seconds")
    body = {"label": label, "message": row.read_text("message")}
    yield target_rows.build_schedule(
        row,
        resolve_mailbox(row, "agent_id"),
        at,
        state,
        name=label,
        body=target_rows.to_json_text(body),
        kind="every" if repeats else "once",
        rule=str(seconds * 1_000) if repeats else "",
        anchor_at=fire_at,
        next_at=fire_at if state == "paused" else None,
        last_error=_WAITED if state == "paused" else None,
    )


def _convert_letter(row: SourceRow) -> Iterable[TargetRow]:
    state = row.read_choice("status", _LETTERS, "expired")
    body = {
        "type": row.read_line("message_type"),
        "payload": row.read_text("payload", max_bytes=1 << 20),
    }
    yield target_rows.build_letter(
        row,
        resolve_mailbox(row, "target_agent_id"),
        body,
        row.read_created_at("created_at"),
        state,
        row.read_timestamp("delivered_at"),
        sender=resolve_mailbox(row, "source_agent_id")
        if row.has_value("source_agent_id")
        else None,
        project_id=row.find_ref("project_id"),
        attempts=row.read_integer("attempts", minimum=0) or 0,
        last_error=_WAITED if state == "expired" else None,
    )


_PROJECT = {"project_id": "projects"}

TABLES = (
    TableMapping(
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
            "depends_on": "task_dependencies.depends_on_id",
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
        _convert_task,
        refs={"project_id": "projects", "assigned_agent_id": "agent_roster"},
        links=link_project_of_lead,
    ),
    TableMapping(
        "dag_tasks",
        ("id", "lead_id"),
        {"depends_on": "task_dependencies.depends_on_id"},
        _convert_dependencies,
        links=_link_dependencies,
        alias="dag_tasks.depends_on",
    ),
    TableMapping(
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
        _convert_delegation,
        refs={"agent_id": "agent_roster"},
    ),
    TableMapping(
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
        _convert_lock,
        refs=_PROJECT,
    ),
    TableMapping(
        "agent_file_history",
        ("agent_id", "lead_id", "file_path"),
        {
            "agent_id": "file_touches.owner",
            "agent_role": KEPT,
            "lead_id": "file_touches.project_id",
            "file_path": "file_touches.path",
            "first_touched_at": "file_touches.first_at",
            "last_touched_at": "file_touches.last_at",
            "touch_count": "file_touches.count",
        },
        _convert_touch,
        links=link_project_of_lead,
    ),
    TableMapping(
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
        _convert_decision,
        refs=_PROJECT,
    ),
    TableMapping(
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
        _convert_timer,
    ),
    TableMapping(
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
        _convert_letter,
        refs=_PROJECT,
    ),
)
