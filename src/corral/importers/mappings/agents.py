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
    at = row.read_created_at("createdat")
    name = row.read_name("name", f"agent-{make_valid_name(row.key[:8], 'x')}")
    agent, version = target_rows.build_agent(
        row,
        name,
        at,
        role=row.read_line("role"),
        model=row.read_line("model"),
        instructions=row.read_text("instructions"),
    )
    agent.values["updated_at"] = row.read_timestamp("updatedat") or at
    return agent, version


def _convert_tool(row: SourceRow) -> Iterable[TargetRow]:
    agent, tool = row.find_ref("agentid"), row.read_line("toolname")
    if agent is None or tool is None:
        row.report_reason("its agent or its tool is missing")
        return
    allowed = int(row.read_flag("enabled"))
    values = {"agent_id": agent, "tool": tool, "allowed": allowed}
    yield TargetRow("tool_grants", values | {"updated_at": row.now, "updated_by": "import"})


def _convert_session(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("createdat")
    yield target_rows.build_session(
        row,
        at,
        title=row.read_line("title", max_bytes=1_000),
        agent_id=row.find_ref("agentid"),
        updated_at=row.read_timestamp("updatedat") or at,
    )


def _convert_message(row: SourceRow) -> Iterable[TargetRow]:
    session = row.find_ref("sessionid")
    if session is None:
        row.report_reason("its session is missing")
        return
    role = row.read_choice("role", _ROLES, "system")
    text = row.read_text("content", max_bytes=MAX_CONTENT) or ""
    yield target_rows.build_turn(session, role, text, row.read_created_at("createdat"))


def _convert_run(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("startedat")
    state = row.read_choice("status", _ENDS, "interrupted")
    session = row.find_ref("sessionid")
    tokens = row.read_tokens("tokensused")
    cost = row.read_micros("cost")
    targets = target_rows.build_run(
        row,
        at,
        state,
        row.read_end_time("completedat", at),
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
    run = row.find_ref("runid")
    if run is None:
        row.report_reason("its run is missing")
        return
    level = row.read_choice("level", _LEVELS, "info")
    metadata = row.read_json("metadata", object, None)
    yield target_rows.build_log_line(
        run,
        row.read_created_at("createdat"),
        level,
        row.read_text("message") or "",
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
