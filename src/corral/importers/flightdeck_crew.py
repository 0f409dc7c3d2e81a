"""flightdeck: its projects and agents, and what these said, did and spent.

Its sessions are known by their lead's id, and almost every table names its agent by the id of its
process: each of those is an agent here, retired, under a name made of that id.
"""

import re
from collections.abc import Iterable, Iterator

from corral.domain.plans.model import Step
from corral.importers import records
from corral.importers.mapping import KEPT, KEY, SAME, Table, Thing
from corral.importers.row import Row, valid_name

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


def called(agent_id: str) -> str:
    """The name here of an agent that is known there by its id."""
    short = agent_id[:13] if _UUID.fullmatch(agent_id) else agent_id
    return f"flightdeck-{valid_name(short, 'unknown')}"


def mailbox(row: Row, name: str) -> str:
    """The mailbox of the agent or person that a column names by id; the whole id is kept."""
    id = row.line(name) or "unknown"
    found = mailbox_of(id)
    if not names_whole(found, id):
        row.keep(name)
    return found


def names_whole(mailbox: str, id: str) -> bool:
    """Whether the mailbox of an agent or a person still has the whole id."""
    return mailbox in (f"user:{id}", f"agent:flightdeck-{id}")


def mailbox_of(id: str) -> str:
    return f"user:{id}" if id in _PEOPLE else f"agent:{called(id)}"


def session_of_lead(row: Row) -> Iterator[tuple[str, str]]:
    yield "project_sessions.lead_id", row.names("lead_id") or ""


def project_of_lead(row: Row) -> Iterator[tuple[str, str]]:
    yield "project_sessions.project_id", row.names("lead_id") or ""


def _project(row: Row) -> Iterable[Thing]:
    at = row.born("created_at")
    made = records.project(row, "cwd", at)
    made.values["name"] = row.line("name") or made.values["name"]
    made.values["state"] = row.choice("status", _PROJECTS, "archived")
    made.values["updated_at"] = row.moment("updated_at") or at
    yield made


def _role(row: Row) -> Iterable[Thing]:
    name = valid_name(row.key, "role")
    row.read.add("id")
    if name != row.plain_text("id"):
        row.keep("id", "has characters that a name here cannot have, or is too long")
    return records.agent(
        row,
        name,
        row.now,
        role=name,
        model=row.line("model"),
        instructions=row.text("system_prompt"),
    )


def _agent(row: Row) -> Iterable[Thing]:
    at = row.born("created_at")
    agent, version = records.agent(
        row,
        called(row.line("agent_id") or row.key),
        at,
        state="retired",
        role=row.line("role"),
        model=row.line("model"),
        provider=row.line("provider"),
    )
    agent.values["updated_at"] = row.moment("updated_at") or at
    return agent, version


def _session(row: Row) -> Iterable[Thing]:
    at = row.born("started_at")
    made = records.session(
        row,
        at,
        state="closed",
        title=row.line("task", most=1_000),
        project_id=row.ref("project_id"),
        agent_id=row.ref("lead_id"),
        provider_session=row.line("session_id", most=400),
    )
    made.values["closed_at"] = row.end("ended_at", at) or row.now
    yield made


def _of_lead(row: Row) -> Iterable[Thing]:
    session = row.id_of("project_sessions", row.plain_text("id"))
    if session is not None:
        yield Thing(SAME, {"table": "sessions", "id": session})


def _own_session(row: Row) -> Iterator[tuple[str, str]]:
    yield "project_sessions", row.plain_text("id")


def _project_of(row: Row) -> Iterable[Thing]:
    project = row.id_of("projects", row.plain_text("project_id"))
    if project is not None:
        yield Thing(SAME, {"table": "projects", "id": project})


def _own_project(row: Row) -> Iterator[tuple[str, str]]:
    yield "projects", row.plain_text("project_id")


def _conversation(row: Row) -> Iterable[Thing]:
    at = row.born("created_at")
    title = row.line("task_id", most=1_000)
    yield records.session(row, at, state="closed", title=title, agent_id=row.ref("agent_id"))


def _message(row: Row) -> Iterable[Thing]:
    session = row.ref("conversation_id")
    if session is None:
        row.explain("its conversation is not there")
        return
    sender = row.plain_text("sender")
    role = row.choice("sender", _SENDERS, "system")
    if len(sender) > 200:
        row.keep("sender")
    meta = {"sender": sender[:200], "from_role": row.line("from_role")}
    words = row.text("content", most=MAX_CONTENT) or ""
    yield records.turn(session, role, words, row.born("timestamp"), meta=records.json_of(meta))


def _activity(row: Row) -> Iterable[Thing]:
    agent = row.line("agent_id") or "unknown"
    details = row.json("details", object, {})
    data = {
        "agent": agent,
        "role": row.line("agent_role"),
        "summary": row.text("summary"),
        "details": details,
    }
    yield Thing(
        "events",
        {
            "at": row.born("timestamp"),
            "actor": mailbox(row, "agent_id"),
            "kind": "activity",
            "verb": row.line("action_type") or "unknown",
            "subject": called(agent),
            "project_id": row.ref("project_id"),
            "data": records.json_of(data),
        },
    )


def _plan(row: Row) -> Iterable[Thing]:
    agent = row.ref("agent_id")
    if agent is None:
        row.explain("its agent is not there")
        return
    steps = row.json("plan_json", list[Step], [])
    at = row.born("updated_at")
    yield Thing("plans", {"subject": agent, "entries": records.json_of(steps), "updated_at": at})


def _charge(row: Row) -> Iterable[Thing]:
    figures = {
        "input": row.tokens("input_tokens"),
        "output": row.tokens("output_tokens"),
        "cache_read": row.tokens("cache_read_tokens"),
        "cache_write": row.tokens("cache_write_tokens"),
        "cost_micros": row.micros("cost_usd"),
    }
    if not any(figures.values()):
        row.explain("it has no tokens and no cost")
        return
    row.read.add("lead_id")
    yield records.charge(
        row.moment("updated_at") or row.born("created_at"),
        agent_id=row.ref("agent_id"),
        project_id=row.ref("project_id"),
        session_id=row.id_of("project_sessions.lead_id", row.names("lead_id") or ""),
        **figures,
    )


def _retro(row: Row) -> Iterable[Thing]:
    session = row.id_of("project_sessions.lead_id", row.names("lead_id") or "")
    if session is None:
        row.troubles.append("its session is not there")
        return
    row.read.add("lead_id")
    body = row.json("data", object, None)
    values = {"session_id": session, "body": records.json_of(body)}
    yield Thing("retros", values | {"created_at": row.born("created_at")})


_AGENT = {"agent_id": "agent_roster"}

TABLES = (
    Table(
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
        _project,
    ),
    Table(
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
        _role,
    ),
    Table(
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
        _agent,
    ),
    Table(
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
        _session,
        refs={"project_id": "projects", "lead_id": "agent_roster"},
    ),
    Table(
        "project_sessions",
        ("lead_id",),
        {"id": "sessions.id"},
        _of_lead,
        links=_own_session,
        part="project_sessions.lead_id",
    ),
    Table(
        "project_sessions",
        ("lead_id",),
        {"project_id": "projects.id"},
        _project_of,
        links=_own_project,
        part="project_sessions.project_id",
    ),
    Table(
        "conversations",
        ("id",),
        {
            "id": KEY,
            "agent_id": "sessions.agent_id",
            "task_id": "sessions.title",
            "created_at": "sessions.created_at",
        },
        _conversation,
        refs=_AGENT,
    ),
    Table(
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
        _message,
        refs={"conversation_id": "conversations"},
    ),
    Table(
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
        _activity,
        refs={"project_id": "projects"},
    ),
    Table(
        "agent_plans",
        ("agent_id",),
        {
            "agent_id": "plans.subject",
            "lead_id": KEPT,
            "plan_json": "plans.entries",
            "updated_at": "plans.updated_at",
        },
        _plan,
        refs=_AGENT,
    ),
    Table(
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
        _charge,
        refs={"agent_id": "agent_roster", "project_id": "projects"},
        links=session_of_lead,
    ),
    Table(
        "session_retros",
        ("id",),
        {
            "id": KEY,
            "lead_id": "retros.session_id",
            "data": "retros.body",
            "created_at": "retros.created_at",
        },
        _retro,
        links=session_of_lead,
    ),
    Table(
        "settings",
        ("key",),
        {"key": KEPT, "value": KEPT},
        why="settings of the tool mean nothing here",
    ),
)
