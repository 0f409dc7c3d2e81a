"""flightdeck: projects, agents, sessions, messages, activity, plans and costs.

Its sessions are identified by the id of their lead, and almost every table refers to an agent by
the id of its process. Each of these becomes a retired agent whose name contains that id.
"""

import re
from collections.abc import Iterable, Iterator

from corral.domain.plans.model import PlanStep
from corral.importers.mappings import target_rows
from corral.importers.mappings.types import EXISTING, KEPT, KEY, TableMapping, TargetRow
from corral.importers.source.row import SourceRow, make_valid_name

_SENDERS = {
    "user": "user",
    "agent": "assistant",
    "thinking": "assistant",
    "system": "system",
    "external": "user",
}
_PROJECTS = {"active": "active", "archived": "archived", "completed": "archived"}
_PEOPLE = ("human", "user", "system")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")
MAX_CONTENT = 4 * 1024 * 1024


def build_agent_name(agent_id: str) -> str:
    """Return the name of an agent with this id."""
    short = agent_id[:13] if _UUID.fullmatch(agent_id) else agent_id
    return f"flightdeck-{make_valid_name(short, 'unknown')}"


def resolve_mailbox(row: SourceRow, name: str) -> str:
    """Return the mailbox of the agent or person that a column refers to by id.

    The id is kept if the mailbox does not contain it completely.
    """
    id = row.read_line(name) or "unknown"
    address = build_mailbox(id)
    if not has_complete_id(address, id):
        row.keep(name)
    return address


def has_complete_id(mailbox: str, id: str) -> bool:
    """Return whether the mailbox of an agent or a person contains the complete id."""
    return mailbox in (f"user:{id}", f"agent:flightdeck-{id}")


def build_mailbox(id: str) -> str:
    return f"user:{id}" if id in _PEOPLE else f"agent:{build_agent_name(id)}"


def link_session_of_lead(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "project_sessions.lead_id", row.peek_key("lead_id") or ""


def link_project_of_lead(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "project_sessions.project_id", row.peek_key("lead_id") or ""


def _convert_project(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("created_at")
    project = target_rows.build_project(row, "cwd", at)
    project.values["name"] = row.read_line("name") or project.values["name"]
    project.values["state"] = row.read_choice("status", _PROJECTS, "archived")
    project.values["updated_at"] = row.read_timestamp("updated_at") or at
    yield project


def _convert_role(row: SourceRow) -> Iterable[TargetRow]:
    name = make_valid_name(row.key, "role")
    row.used_columns.add("id")
    if name != row.peek_text("id"):
        row.keep("id", "has characters that a name cannot have, or is too long")
    return target_rows.build_agent(
        row,
        name,
        row.now,
        role=name,
        model=row.read_line("model"),
        instructions=row.read_text("system_prompt"),
    )


def _convert_agent(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("created_at")
    agent, version = target_rows.build_agent(
        row,
        build_agent_name(row.read_line("agent_id") or row.key),
        at,
        state="retired",
        role=row.read_line("role"),
        model=row.read_line("model"),
        provider=row.read_line("provider"),
    )
    agent.values["updated_at"] = row.read_timestamp("updated_at") or at
    return agent, version


def _convert_session(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("started_at")
    session = target_rows.build_session(
        row,
        at,
        state="closed",
        title=row.read_line("task", max_bytes=1_000),
        project_id=row.find_ref("project_id"),
        agent_id=row.find_ref("lead_id"),
        provider_session=row.read_line("session_id", max_bytes=400),
    )
    session.values["closed_at"] = row.read_end_time("ended_at", at) or row.now
    yield session


def _find_session_of_lead(row: SourceRow) -> Iterable[TargetRow]:
    session = row.find_id("project_sessions", row.peek_text("id"))
    if session is not None:
        yield TargetRow(EXISTING, {"table": "sessions", "id": session})


def _link_session(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "project_sessions", row.peek_text("id")


def _find_project_of_session(row: SourceRow) -> Iterable[TargetRow]:
    project = row.find_id("projects", row.peek_text("project_id"))
    if project is not None:
        yield TargetRow(EXISTING, {"table": "projects", "id": project})


def _link_project(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "projects", row.peek_text("project_id")


def _convert_conversation(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("created_at")
    title = row.read_line("task_id", max_bytes=1_000)
    yield target_rows.build_session(
        row, at, state="closed", title=title, agent_id=row.find_ref("agent_id")
    )


def _convert_message(row: SourceRow) -> Iterable[TargetRow]:
    session = row.find_ref("conversation_id")
    if session is None:
        row.report_reason("its conversation is missing")
        return
    sender = row.peek_text("sender")
    role = row.read_choice("sender", _SENDERS, "system")
    if len(sender) > 200:
        row.keep("sender")
    meta = {"sender": sender[:200], "from_role": row.read_line("from_role")}
    text = row.read_text("content", max_bytes=MAX_CONTENT) or ""
    yield target_rows.build_turn(
        session, role, text, row.read_created_at("timestamp"), meta=target_rows.to_json_text(meta)
    )


def _convert_activity(row: SourceRow) -> Iterable[TargetRow]:
    agent = row.read_line("agent_id") or "unknown"
    details = row.read_json("details", object, {})
    data = {
        "agent": agent,
        "role": row.read_line("agent_role"),
        "summary": row.read_text("summary"),
        "details": details,
    }
    yield TargetRow(
        "events",
        {
            "at": row.read_created_at("timestamp"),
            "actor": resolve_mailbox(row, "agent_id"),
            "kind": "activity",
            "verb": row.read_line("action_type") or "unknown",
            "subject": build_agent_name(agent),
            "project_id": row.find_ref("project_id"),
            "data": target_rows.to_json_text(data),
        },
    )


def _convert_plan(row: SourceRow) -> Iterable[TargetRow]:
    agent = row.find_ref("agent_id")
    if agent is None:
        row.report_reason("its agent is missing")
        return
    steps = row.read_json("plan_json", list[PlanStep], [])
    at = row.read_created_at("updated_at")
    yield TargetRow(
        "plans", {"subject": agent, "entries": target_rows.to_json_text(steps), "updated_at": at}
    )


def _convert_charge(row: SourceRow) -> Iterable[TargetRow]:
    figures = {
        "input": row.read_tokens("input_tokens"),
        "output": row.read_tokens("output_tokens"),
        "cache_read": row.read_tokens("cache_read_tokens"),
        "cache_write": row.read_tokens("cache_write_tokens"),
        "cost_micros": row.read_micros("cost_usd"),
    }
    if not any(figures.values()):
        row.report_reason("it has no tokens and no cost")
        return
    row.used_columns.add("lead_id")
    yield target_rows.build_charge(
        row.read_timestamp("updated_at") or row.read_created_at("created_at"),
        agent_id=row.find_ref("agent_id"),
        project_id=row.find_ref("project_id"),
        session_id=row.find_id("project_sessions.lead_id", row.peek_key("lead_id") or ""),
        **figures,
    )


def _convert_retro(row: SourceRow) -> Iterable[TargetRow]:
    session = row.find_id("project_sessions.lead_id", row.peek_key("lead_id") or "")
    if session is None:
        row.problems.append("its session is missing")
        return
    row.used_columns.add("lead_id")
    body = row.read_json("data", object, None)
    values = {"session_id": session, "body": target_rows.to_json_text(body)}
    yield TargetRow("retros", values | {"created_at": row.read_created_at("created_at")})


_AGENT = {"agent_id": "agent_roster"}

TABLES = (
    TableMapping(
        "projects",
        ("id",),
        {
            "id": KEY,
            "name": "projects.name",
            "description": KEPT,
            "cwd": "projects.dir",
            "status": "projects.state",
            "model_config": KEPT,
            "oversight_level": KEPT,
            "created_at": "projects.created_at",
            "updated_at": "projects.updated_at",
        },
        _convert_project,
    ),
    TableMapping(
        "roles",
        ("id",),
        {
            "id": "agents.name, agent_versions.role",
            "name": KEPT,
            "description": KEPT,
            "system_prompt": "agent_versions.instructions",
            "color": KEPT,
            "icon": KEPT,
            "built_in": KEPT,
            "model": "agent_versions.model",
        },
        _convert_role,
    ),
    TableMapping(
        "agent_roster",
        ("agent_id",),
        {
            "agent_id": "agents.name",
            "role": "agent_versions.role",
            "model": "agent_versions.model",
            "status": KEPT,
            "session_id": KEPT,
            "project_id": KEPT,
            "provider": "agent_versions.provider",
            "team_id": KEPT,
            "created_at": "agents.created_at",
            "updated_at": "agents.updated_at",
            "last_task_summary": KEPT,
            "metadata": KEPT,
        },
        _convert_agent,
    ),
    TableMapping(
        "project_sessions",
        ("id",),
        {
            "id": KEY,
            "project_id": "sessions.project_id",
            "lead_id": "sessions.agent_id",
            "session_id": "sessions.provider_session",
            "role": KEPT,
            "task": "sessions.title",
            "status": KEPT,
            "started_at": "sessions.created_at",
            "ended_at": "sessions.closed_at",
        },
        _convert_session,
        refs={"project_id": "projects", "lead_id": "agent_roster"},
    ),
    TableMapping(
        "project_sessions",
        ("lead_id",),
        {"id": "sessions.id"},
        _find_session_of_lead,
        links=_link_session,
        alias="project_sessions.lead_id",
    ),
    TableMapping(
        "project_sessions",
        ("lead_id",),
        {"project_id": "projects.id"},
        _find_project_of_session,
        links=_link_project,
        alias="project_sessions.project_id",
    ),
    TableMapping(
        "conversations",
        ("id",),
        {
            "id": KEY,
            "agent_id": "sessions.agent_id",
            "task_id": "sessions.title",
            "created_at": "sessions.created_at",
        },
        _convert_conversation,
        refs=_AGENT,
    ),
    TableMapping(
        "messages",
        ("id",),
        {
            "id": KEY,
            "conversation_id": "turns.session_id",
            "sender": "turns.role, turns.meta",
            "content": "turns.content",
            "from_role": "turns.meta",
            "timestamp": "turns.at",
        },
        _convert_message,
        refs={"conversation_id": "conversations"},
    ),
    TableMapping(
        "activity_log",
        ("id",),
        {
            "id": KEY,
            "agent_id": "events.actor",
            "agent_role": "events.data",
            "action_type": "events.verb",
            "summary": "events.data",
            "details": "events.data",
            "timestamp": "events.at",
            "project_id": "events.project_id",
        },
        _convert_activity,
        refs={"project_id": "projects"},
    ),
    TableMapping(
        "agent_plans",
        ("agent_id",),
        {
            "agent_id": "plans.subject",
            "lead_id": KEPT,
            "plan_json": "plans.entries",
            "updated_at": "plans.updated_at",
        },
        _convert_plan,
        refs=_AGENT,
    ),
    TableMapping(
        "task_cost_records",
        ("agent_id", "dag_task_id", "lead_id"),
        {
            "agent_id": "charges.agent_id",
            "dag_task_id": KEPT,
            "lead_id": "charges.session_id",
            "project_id": "charges.project_id",
            "input_tokens": "charges.input",
            "output_tokens": "charges.output",
            "cache_read_tokens": "charges.cache_read",
            "cache_write_tokens": "charges.cache_write",
            "cost_usd": "charges.cost_micros",
            "created_at": "charges.at",
            "updated_at": "charges.at",
        },
        _convert_charge,
        refs={"agent_id": "agent_roster", "project_id": "projects"},
        links=link_session_of_lead,
    ),
    TableMapping(
        "session_retros",
        ("id",),
        {
            "id": KEY,
            "lead_id": "retros.session_id",
            "data": "retros.body",
            "created_at": "retros.created_at",
        },
        _convert_retro,
        links=link_session_of_lead,
    ),
    TableMapping(
        "settings",
        ("key",),
        {"key": KEPT, "value": KEPT},
        reason="settings of the tool are not imported",
    ),
)
