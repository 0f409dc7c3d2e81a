"""multishot: `~/.multishot/database.sqlite`.

Its races have no repository, so they can be read but not continued. Winners' files and logs beside
the database are not imported.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from corral.importers.mappings import target_rows
from corral.importers.mappings.types import (
    KEPT,
    KEY,
    NOT_IMPORTED,
    TableMapping,
    TargetRow,
    ToolMapping,
)
from corral.importers.source.row import SourceRow

_RACES = {"completed": "completed", "active": "abandoned"}
_ROUNDS = {"completed": "completed", "running": "abandoned", "selecting": "abandoned"}
_ATTEMPTS = {
    "completed": "completed",
    "selected": "completed",
    "failed": "failed",
    "running": "cancelled",
    "initializing": "cancelled",
}
_LIVE = "it had not ended when it was imported from multishot"


def _convert_race(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("created_at")
    name = row.read_text_or("name", "unnamed race", max_bytes=1_000)
    state = row.read_choice("status", _RACES, "abandoned")
    yield TargetRow(
        "races",
        {
            "id": row.create_id("rac", at),
            "project_id": row.source_project(),
            "name": name,
            "prompt": name,
            "state": state,
            "repository": "",
            "subdirectory": "",
            "managed_repository": 1,
            "base_commit": "",
            "host": "",
            "plan": "{}",
            "reason": _LIVE if state == "abandoned" else None,
            "created_at": at,
            "created_by": "import",
            "ended_at": row.now,
        },
    )


def _convert_round(row: SourceRow) -> Iterable[TargetRow]:
    race = row.find_ref("run_id")
    if race is None:
        row.report_reason("its race is missing")
        return
    at = row.read_created_at("created_at")
    state = row.read_choice("status", _ROUNDS, "abandoned")
    yield TargetRow(
        "rounds",
        {
            "id": row.create_id("rnd", at),
            "race_id": race,
            "project_id": row.source_project(),
            "number": row.read_integer_or("round_number", 1, minimum=1),
            "state": state,
            "base_commit": "",
            "prompt": row.read_text_or("base_prompt", ""),
            "reason": _LIVE if state == "abandoned" else None,
            "needs_driver": 0,
            "host": "",
            "fence": 0,
            "created_at": at,
            "ended_at": row.now,
        },
    )


def _convert_run(row: SourceRow) -> Iterable[TargetRow]:
    state = row.read_choice("status", _ATTEMPTS, "cancelled")
    reason = row.read_text("error_message") or (_LIVE if state == "cancelled" else None)
    at = row.read_created_at("created_at")
    yield from target_rows.build_run(
        row,
        at,
        state,
        row.read_end_time("completed_at", at),
        prompt=row.read_text("variation_prompt"),
        project_id=row.source_project(),
        reason=reason,
    )


def _convert_attempt(row: SourceRow) -> Iterable[TargetRow]:
    round_id = row.find_ref("round_id")
    if round_id is None:
        row.report_reason("its round is missing")
        return
    at = row.read_created_at("created_at")
    state = row.read_choice("status", _ATTEMPTS, "cancelled")
    variation = row.read_text("variation_prompt")
    yield TargetRow(
        "attempts",
        {
            "id": row.create_id("att", at),
            "round_id": round_id,
            "number": row.read_integer_or("agent_number", 1, minimum=1),
            "state": state,
            "variation": variation,
            "prompt": variation or "",
            "branch": "",
            "worktree": "",
            "run_id": row.find_id("agents.run", row.key),
            "try_number": 1,
            "checks": "[]",
            "reason": row.read_text("error_message") or (_LIVE if state == "cancelled" else None),
            "created_at": at,
            "started_at": at,
            "ended_at": row.read_end_time("completed_at", at) or row.now,
            "cleaned_at": row.now,
        },
    )


def _link_run(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "agents.run", row.key


def _convert_winner(row: SourceRow) -> Iterable[TargetRow]:
    round_id = row.find_id("rounds", row.key)
    winner = row.find_ref("winner_agent_id")
    if round_id is None or winner is None:
        return
    yield TargetRow(
        "selections",
        {
            "round_id": round_id,
            "number": 1,
            "verb": "select",
            "attempt_id": winner,
            "commit_id": "",
            "selected_by": "multishot",
            "selected_at": row.read_created_at("created_at"),
        },
    )


def _link_round(row: SourceRow) -> Iterator[tuple[str, str]]:
    yield "rounds", row.key


def _convert_output(row: SourceRow) -> Iterable[TargetRow]:
    run = row.find_ref("agent_id")
    if run is None:
        row.report_reason("its agent is missing")
        return
    at = row.read_created_at("timestamp")
    text = row.read_text("content") or ""
    yield target_rows.build_log_line(run, at, "info", text, source="multishot")


def _find_database(folder: Path) -> Path:
    places = (folder / "database.sqlite", folder / ".multishot/database.sqlite")
    return next((path for path in places if path.exists()), folder)


TOOL = ToolMapping(
    "multishot",
    "races of up to four agents, round by round",
    {"rounds": ("run_id", "round_number"), "agents": ("round_id", "agent_number")},
    (
        TableMapping(
            "runs",
            ("id",),
            {
                "id": KEY,
                "name": "races.name",
                "created_at": "races.created_at",
                "status": "races.state",
                "current_round_id": KEPT,
            },
            _convert_race,
        ),
        TableMapping(
            "rounds",
            ("id",),
            {
                "id": KEY,
                "run_id": "rounds.race_id",
                "round_number": "rounds.number",
                "base_prompt": "rounds.prompt",
                "created_at": "rounds.created_at",
                "winner_agent_id": "rounds.winner_id, selections.attempt_id",
                "winner_files_path": KEPT,
                "status": "rounds.state",
            },
            _convert_round,
            refs={"run_id": "runs"},
        ),
        TableMapping(
            "agents",
            ("id",),
            {
                "created_at": "runs.started_at",
                "completed_at": "runs.ended_at",
                "status": "runs.state",
                "error_message": "runs.reason",
                "variation_prompt": "launches.prompt",
            },
            _convert_run,
            alias="agents.run",
        ),
        TableMapping(
            "agents",
            ("id",),
            {
                "id": KEY,
                "round_id": "attempts.round_id",
                "agent_number": "attempts.number",
                "sandbox_id": KEPT,
                "variation_prompt": "attempts.variation",
                "status": "attempts.state",
                "created_at": "attempts.created_at",
                "completed_at": "attempts.ended_at",
                "error_message": "attempts.reason",
            },
            _convert_attempt,
            refs={"round_id": "rounds"},
            links=_link_run,
        ),
        TableMapping(
            "rounds",
            ("id",),
            {"winner_agent_id": "selections.attempt_id", "created_at": "selections.selected_at"},
            _convert_winner,
            refs={"winner_agent_id": "agents"},
            links=_link_round,
            alias="rounds.winner_agent_id",
        ),
        TableMapping(
            "output_logs",
            ("id",),
            {
                "id": KEY,
                "agent_id": "log_lines.run_id",
                "timestamp": "log_lines.at",
                "content": "log_lines.message",
            },
            _convert_output,
            refs={"agent_id": "agents.run"},
        ),
        TableMapping(
            "credentials",
            ("key",),
            {"key": KEPT, "value": NOT_IMPORTED, "updated_at": KEPT},
            reason="credentials are not imported",
        ),
    ),
    find_database=_find_database,
)
