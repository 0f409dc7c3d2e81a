"""The agents of the Prisma schema: `.vscode/agents.db`.

Prisma writes a moment as milliseconds or as text. It has one number of tokens for a run, which is
charged as read; a cost of nothing, its default, is not known.
"""

from collections.abc import Iterable
from pathlib import Path

from corral.importers import records
from corral.importers.mapping import KEPT, KEY, Table, Thing, Tool
from corral.importers.row import Row, valid_name

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}
_ENDS = {
    "completed": "completed",
    "failed": "failed",
    "queued": "cancelled",
    "in_progress": "interrupted",
}
_WHY = {
    "cancelled": "it was still queued when it was imported",
    "interrupted": "it was still in progress when it was imported",
}
_LEVELS = {"info": "info", "warn": "warn", "error": "error", "debug": "debug"}
MAX_CONTENT = 4 * 1024 * 1024


def _agent(row: Row) -> Iterable[Thing]:
    at = row.born("createdat")
    name = row.name("name", f"agent-{valid_name(row.key[:8], 'x')}")
    agent, version = records.agent(
        row,
        name,
        at,
        role=row.line("role"),
        model=row.line("model"),
        instructions=row.text("instructions"),
    )
    agent.values["updated_at"] = row.moment("updatedat") or at
    return agent, version


def _tool(row: Row) -> Iterable[Thing]:
    agent, tool = row.ref("agentid"), row.line("toolname")
    if agent is None or tool is None:
        row.explain("it names no agent or no tool")
        return
    allowed = int(row.flag("enabled"))
    values = {"agent_id": agent, "tool": tool, "allowed": allowed}
    yield Thing("grants", values | {"updated_at": row.now, "updated_by": "import"})


def _session(row: Row) -> Iterable[Thing]:
    at = row.born("createdat")
    yield records.session(
        row,
        at,
        title=row.line("title", most=1_000),
        agent_id=row.ref("agentid"),
        updated_at=row.moment("updatedat") or at,
    )


def _message(row: Row) -> Iterable[Thing]:
    session = row.ref("sessionid")
    if session is None:
        row.explain("its session is not there")
        return
    role = row.choice("role", _ROLES, "system")
    words = row.text("content", most=MAX_CONTENT) or ""
    yield records.turn(session, role, words, row.born("createdat"))


def _run(row: Row) -> Iterable[Thing]:
    at = row.born("startedat")
    state = row.choice("status", _ENDS, "interrupted")
    session = row.ref("sessionid")
    tokens = row.tokens("tokensused")
    cost = row.micros("cost")
    made = records.run(
        row,
        at,
        state,
        row.end("completedat", at),
        session_id=session,
        tokens=tokens or None,
        cost_micros=cost,
        reason=_WHY.get(state),
    )
    yield from made
    if tokens or cost:
        run_id = made[0].values["id"]
        yield records.charge(at, run_id=run_id, session_id=session, input=tokens, cost_micros=cost)


def _log(row: Row) -> Iterable[Thing]:
    run = row.ref("runid")
    if run is None:
        row.explain("its run is not there")
        return
    level = row.choice("level", _LEVELS, "info")
    metadata = row.json("metadata", object, None)
    yield records.log_line(
        run,
        row.born("createdat"),
        level,
        row.text("message") or "",
        metadata=None if metadata is None else records.json_of(metadata),
        source="agents",
    )


def _around(folder: Path) -> Path:
    places = (folder / ".vscode/agents.db", folder / "agents.db")
    return next((path for path in places if path.exists()), folder)


TOOL = Tool(
    "agents",
    "agents with their tools, sessions, messages, runs and logs",
    {"agenttool": ("agentid", "toolname"), "session": ("agentid",), "message": ("sessionid",)},
    (
        Table(
            "agent",
            ("id",),
            {
                "id": KEY,
                "name": "agents.name",
                "role": "agent_versions.role",
                "model": "agent_versions.model",
                "instructions": "agent_versions.instructions",
                "createdat": "agents.created_at",
                "updatedat": "agents.updated_at",
            },
            _agent,
        ),
        Table(
            "agenttool",
            ("id",),
            {
                "id": KEY,
                "agentid": "grants.agent_id",
                "toolname": "grants.tool",
                "enabled": "grants.allowed",
            },
            _tool,
            refs={"agentid": "agent"},
        ),
        Table(
            "session",
            ("id",),
            {
                "id": KEY,
                "title": "sessions.title",
                "agentid": "sessions.agent_id",
                "createdat": "sessions.created_at",
                "updatedat": "sessions.updated_at",
            },
            _session,
            refs={"agentid": "agent"},
        ),
        Table(
            "message",
            ("id",),
            {
                "id": KEY,
                "sessionid": "turns.session_id",
                "role": "turns.role",
                "content": "turns.content",
                "createdat": "turns.at",
            },
            _message,
            refs={"sessionid": "session"},
        ),
        Table(
            "run",
            ("id",),
            {
                "id": KEY,
                "sessionid": "runs.session_id",
                "status": "runs.state",
                "startedat": "runs.started_at",
                "completedat": "runs.ended_at",
                "tokensused": "runs.tokens, charges.input",
                "cost": "runs.cost_micros, charges.cost_micros",
            },
            _run,
            refs={"sessionid": "session"},
        ),
        Table(
            "runlog",
            ("id",),
            {
                "id": KEY,
                "runid": "log_lines.run_id",
                "level": "log_lines.level",
                "message": "log_lines.message",
                "metadata": "log_lines.metadata",
                "createdat": "log_lines.at",
            },
            _log,
            refs={"runid": "run"},
        ),
        Table(
            "setting",
            ("key",),
            {"key": KEPT, "value": KEPT},
            why="settings of the tool mean nothing here",
        ),
    ),
    around=_around,
)
