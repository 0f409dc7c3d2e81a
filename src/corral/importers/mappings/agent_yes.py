"""agent-yes: `<project>/.agent-yes/store.sqlite`.

`created_at` and `started_at` are in seconds, all other times in milliseconds.
"""

from collections.abc import Iterable
from pathlib import Path

from corral.importers.mappings import target_rows
from corral.importers.mappings.types import KEY, TableMapping, TargetRow, ToolMapping
from corral.importers.source.row import SourceRow

_ENDS = {
    "completed": "completed",
    "failed": "failed",
    "crashed": "crashed",
    "running": "interrupted",
}


def _convert_project(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("created_at")
    yield target_rows.build_project(
        row,
        "dir",
        at,
        command=row.read_text("cmd"),
        prompt=row.read_text("prompt"),
        updated_at=row.read_timestamp("updated_at") or at,
        last_run_at=row.read_timestamp("last_run_at"),
    )


def _convert_run(row: SourceRow) -> Iterable[TargetRow]:
    at = row.read_created_at("started_at")
    state = row.read_choice("status", _ENDS, "interrupted")
    args = row.read_json("args", list[str], [])
    code = row.read_integer("exit_code", minimum=-(1 << 31), maximum=1 << 31)
    reason = None
    if state == "interrupted":
        reason = "unknown: agent-yes had not recorded its end when it was imported"
    yield from target_rows.build_run(
        row,
        at,
        state,
        row.read_end_time("ended_at", at),
        project_id=row.find_ref("project_id"),
        pid=row.read_integer("pid", minimum=0),
        exit_code=code,
        args=target_rows.to_json_text(args),
        reason=reason,
    )


def _find_database(folder: Path) -> Path:
    return next(
        (
            path
            for path in (folder / ".agent-yes/store.sqlite", folder / "store.sqlite")
            if path.exists()
        ),
        folder,
    )


TOOL = ToolMapping(
    "agent-yes",
    "projects and runs",
    {"projects": ("dir", "cmd"), "runs": ("pid", "project_id")},
    (
        TableMapping(
            "projects",
            ("id",),
            {
                "id": KEY,
                "dir": "projects.dir",
                "cmd": "projects.command",
                "prompt": "projects.prompt",
                "created_at": "projects.created_at",
                "updated_at": "projects.updated_at",
                "last_run_at": "projects.last_run_at",
            },
            _convert_project,
        ),
        TableMapping(
            "runs",
            ("id",),
            {
                "id": KEY,
                "pid": "runs.pid",
                "project_id": "runs.project_id",
                "status": "runs.state",
                "exit_code": "runs.exit_code",
                "started_at": "runs.started_at",
                "ended_at": "runs.ended_at",
                "args": "runs.args",
            },
            _convert_run,
            refs={"project_id": "projects"},
        ),
    ),
    find_database=_find_database,
)
