"""agent-yes: `<project>/.agent-yes/store.sqlite`.

Its `created_at` and `started_at` count seconds and all its other times milliseconds.
"""

from collections.abc import Iterable
from pathlib import Path

from corral.importers import records
from corral.importers.mapping import KEY, Table, Thing, Tool
from corral.importers.row import Row

_ENDS = {
    "completed": "completed",
    "failed": "failed",
    "crashed": "crashed",
    "running": "interrupted",
}


def _project(row: Row) -> Iterable[Thing]:
    at = row.born("created_at")
    yield records.project(
        row,
        "dir",
        at,
        command=row.text("cmd"),
        prompt=row.text("prompt"),
        updated_at=row.moment("updated_at") or at,
        last_run_at=row.moment("last_run_at"),
    )


def _run(row: Row) -> Iterable[Thing]:
    at = row.born("started_at")
    state = row.choice("status", _ENDS, "interrupted")
    args = row.json("args", list[str], [])
    code = row.whole("exit_code", least=-(1 << 31), most=1 << 31)
    reason = None
    if state == "interrupted":
        reason = "nobody here saw how it ended; agent-yes had not told it when it was imported"
    yield from records.run(
        row,
        at,
        state,
        row.end("ended_at", at),
        project_id=row.ref("project_id"),
        pid=row.whole("pid", least=0),
        exit_code=code,
        args=records.json_of(args),
        reason=reason,
    )


def _around(folder: Path) -> Path:
    return next(
        (
            path
            for path in (folder / ".agent-yes/store.sqlite", folder / "store.sqlite")
            if path.exists()
        ),
        folder,
    )


TOOL = Tool(
    "agent-yes",
    "projects and runs",
    {"projects": ("dir", "cmd"), "runs": ("pid", "project_id")},
    (
        Table(
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
            _project,
        ),
        Table(
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
            _run,
            refs={"project_id": "projects"},
        ),
    ),
    around=_around,
)
