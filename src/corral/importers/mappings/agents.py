"""agents: `.vscode/agents.db`, with a Prisma schema.

Prisma writes a timestamp as milliseconds or as text. A run has one number of tokens, which is
imported as input tokens. A cost of zero, its default, means unknown.
"""

from collections.abc import Iterable
from pathlib import Path

from corral.importers.mappings import target_rows
from corral.importers.mappings.types import KEPT, KEY, TableMapping, TargetRow, ToolMapping
from corral.importers.source.row import SourceRow, make_valid_name

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}
_ENDS = {
    "completed": "completed",
    "failed": "failed",
    "queued": "cancelled",
    "in_progress": "interrupted",
}
_REASONS = {
    "cancelled": "it was still queued when it was imported",
    "interrupted": "it was still in progress when it was imported",
}
_LEVELS = {"info": "info", "warn": "warn", "error": "error", "debug": "debug"}
MAX_CONTENT = 4 * 1024 * 1024


def _convert_agent(row: SourceRow) -> Iterable[TargetRow]:
    at = row.created_at("createdat")
    name = row.name("name", f"agent-{make_valid_name(row.key[:8], 'x')}")
    agent, version = target_rows.build_agent(
        row,
        name,
        at,
        role=row.single_line("role"),
        model=row.single_line("model"),
        instructions=row.text("instructions"),
    )
    agent.values["updated_at"] = row.timestamp("updatedat") or at
    return agent, version


def _convert_tool(row: SourceRow) -> Iterable[TargetRow]:
    agent, tool = row.ref("agentid"), row.single_line("toolname")
    if agent is None or tool is None:
        row.explain("its agent or its tool is missing")
        return
    allowed = int(row.flag("enabled"))
    values = {"agent_id": agent, "tool": tool, "allowed": allowed}
    yield TargetRow("tool_grants", values | {"updated_at": row.now, "updated_by": "import"})


def _convert_session(row: SourceRow) -> Iterable[TargetRow]:
    at = row.created_at("createdat")
    yield target_rows.build_session(
        row,
        at,
        title=row.single_line("title", most=1_000),
        agent_id=row.ref("agentid"),
        updated_at=row.timestamp("updatedat") or at,
    )


def _convert_message(row: SourceRow) -> Iterable[TargetRow]:
    session = row.ref("sessionid")
    if session is None:
        row.explain("its session is missing")
        return
    role = row.choice("role", _ROLES, "system")
    text = row.text("content", most=MAX_CONTENT) or ""
    yield target_rows.build_turn(session, role, text, row.created_at("createdat"))


def _convert_run(row: SourceRow) -> Iterable[TargetRow]:
    at = row.created_at("startedat")
    state = row.choice("status", _ENDS, "interrupted")
    session = row.ref("sessionid")
    tokens = row.tokens("tokensused")
    cost = row.micros("cost")
    targets = target_rows.build_run(
        row,
        at,
        state,
        row.end_time("completedat", at),
        session_id=session,
        tokens=tokens or None,
        cost_micros=cost,
        reason=_REASONS.get(state),
    )
    yield from targets
    if tokens or cost:
        run_id = targets[0].values["id"]
        yield target_rows.build_charge(
            at, run_id=run_id, session_id=session, input=tokens, cost_micros=cost
        )


def _convert_log(row: SourceRow) -> Iterable[TargetRow]:
    run = row.ref("runid")
    if run is None:
        row.explain("its run is missing")
        return
    level = row.choice("level", _LEVELS, "info")
    metadata = row.json("metadata", object, None)
    yield target_rows.build_log_line(
        run,
        row.created_at("createdat"),
        level,
        row.text("message") or "",
        metadata=None if metadata is None else target_rows.to_json_text(metadata),
        source="agents",
    )


def _find_database(folder: Path) -> Path:
    places = (folder / ".vscode/agents.db", folder / "agents.db")
    return next((path for path in places if path.exists()), folder)


TOOL = ToolMapping(
    "agents",
    "agents with their tools, sessions, messages, runs and logs",
    {"agenttool": ("agentid", "toolname"), "session": ("agentid",), "message": ("sessionid",)},
    (
        TableMapping(
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
            _convert_agent,
        ),
        TableMapping(
            "agenttool",
            ("id",),
            {
                "id": KEY,
                "agentid": "tool_grants.agent_id",
                "toolname": "tool_grants.tool",
                "enabled": "tool_grants.allowed",
            },
            _convert_tool,
            refs={"agentid": "agent"},
        ),
        TableMapping(
            "session",
            ("id",),
            {
                "id": KEY,
                "title": "sessions.title",
                "agentid": "sessions.agent_id",
                "createdat": "sessions.created_at",
                "updatedat": "sessions.updated_at",
            },
            _convert_session,
            refs={"agentid": "agent"},
        ),
        TableMapping(
            "message",
            ("id",),
            {
                "id": KEY,
                "sessionid": "turns.session_id",
                "role": "turns.role",
                "content": "turns.content",
                "createdat": "turns.at",
            },
            _convert_message,
            refs={"sessionid": "session"},
        ),
        TableMapping(
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
            _convert_run,
            refs={"sessionid": "session"},
        ),
        TableMapping(
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
            _convert_log,
            refs={"runid": "run"},
        ),
        TableMapping(
            "setting",
            ("key",),
            {"key": KEPT, "value": KEPT},
            reason="settings of the tool are not imported",
        ),
    ),
    find_database=_find_database,
)
