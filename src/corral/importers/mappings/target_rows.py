"""Factories of target rows with all required columns.

Nothing that they create is live: runs have ended, letters are not delivered, tasks cannot be
claimed, schedules do not fire, and channels are removed.
"""

import os
from typing import Any

import msgspec

from corral.importers.mappings.types import TargetRow
from corral.importers.source.row import SourceRow, make_valid_name
from corral.kernel.validation import encode_json


def build_project(row: SourceRow, column: str, at: int, **columns: Any) -> TargetRow:
    """Build a project. A missing or relative directory is resolved in the source's folder."""
    dir = row.read_text(column, max_bytes=4_096)
    if dir is None or not os.path.isabs(dir):
        row.keep(column)
        row.problems.append(
            f"{column} is not an absolute path; a directory by the database is used"
        )
        dir = os.path.join(row.folder, dir or make_valid_name(row.key, "project"))
    real = os.path.realpath(dir)
    if real != dir:
        row.keep(column)
    values = {
        "id": row.create_id("prj", at),
        "dir": real,
        "name": os.path.basename(dir.rstrip("/")) or dir,
        "state": "active",
        "created_at": at,
        "updated_at": at,
    }
    return TargetRow("projects", values | columns)


def build_agent(
    row: SourceRow, name: str, at: int, *, state: str = "active", **content: Any
) -> list[TargetRow]:
    """Build an agent with one version. Permissions are not imported."""
    id = row.create_id("agt", at)
    values = {
        "id": id,
        "name": name,
        "state": state,
        "version": 1,
        "admin": 0,
        "created_at": at,
        "updated_at": at,
    }
    version = {
        "agent_id": id,
        "number": 1,
        "role": None,
        "provider": None,
        "model": None,
        "command": None,
        "instructions": None,
        "workspace": None,
        "limits": "{}",
        "created_at": at,
        "created_by": "import",
    } | content
    return [TargetRow("agents", values), TargetRow("agent_versions", version)]


def build_session(row: SourceRow, at: int, *, state: str = "open", **columns: Any) -> TargetRow:
    closed = {"closed_at": row.now} if state == "closed" else {}
    values = {
        "id": row.create_id("ses", at),
        "state": state,
        "turns": 0,
        "cleared_turn": 0,
        "parent_turn": 0,
        "created_at": at,
        "updated_at": at,
    }
    return TargetRow("sessions", values | closed | columns)


def build_turn(session_id: str, role: str, content: str, at: int, **columns: Any) -> TargetRow:
    """Build a turn. It gets its number when it is stored."""
    values = {
        "session_id": session_id,
        "role": role,
        "content": content,
        "is_error": 0,
        "at": at,
    }
    return TargetRow("turns", values | columns)


def build_run(
    row: SourceRow,
    at: int,
    state: str,
    ended_at: int | None,
    *,
    prompt: str | None = None,
    **columns: Any,
) -> list[TargetRow]:
    """Build an ended run and its launch."""
    id = row.create_id("run", at)
    values = {
        "id": id,
        "state": state,
        "provider": "plain",
        "mode": "recorded",
        "command": "",
        "args": "[]",
        "cwd": "",
        "fence": 1,
        "attempts": 1,
        "quick_failures": 0,
        "due_at": at,
        "output_bytes": 0,
        "created_at": at,
        "started_at": at,
        "ended_at": ended_at or row.now,
    } | columns
    launch = {
        "run_id": id,
        "labels": "[]",
        "prompt": prompt,
        "env": "{}",
        "secrets": "{}",
        "approvals": "[]",
        "raw": 1,
        "interactive": 0,
        "grace_period_ms": 10_000,
        "max_restarts": 0,
        "max_output_bytes": 0,
        "environment": "{}",
    }
    return [TargetRow("runs", values), TargetRow("launches", launch)]


def build_log_line(run_id: str, at: int, level: str, message: str, **columns: Any) -> TargetRow:
    values = {"run_id": run_id, "at": at, "level": level, "message": message}
    return TargetRow("log_lines", values | columns)


def build_charge(at: int, **columns: Any) -> TargetRow:
    return TargetRow("charges", {"at": at} | columns)


def build_task(
    row: SourceRow, project_id: str, key: str, at: int, state: str, **columns: Any
) -> TargetRow:
    has_ended = state != "paused"
    values = {
        "id": row.create_id("tsk", at),
        "project_id": project_id,
        "key": key,
        "state": state,
        "title": key,
        "files": "[]",
        "priority": 0,
        "fence": 0,
        "attempts": 0,
        "open_dependencies": 0,
        "failed_dependencies": 0,
        "created_at": at,
        "created_by": "import",
    }
    target = TargetRow("tasks", values | columns)
    if has_ended and not target.values.get("ended_at"):
        target.values["ended_at"] = row.now
    return target


def build_delegation(
    row: SourceRow, at: int, state: str, ended_at: int | None, **columns: Any
) -> TargetRow:
    values = {
        "id": row.create_id("dlg", at),
        "state": state,
        "created_at": at,
        "ended_at": ended_at or row.now,
    }
    return TargetRow("delegations", values | columns)


def build_decision(
    row: SourceRow, at: int, state: str, ended_at: int | None, **columns: Any
) -> TargetRow:
    values = {
        "id": row.create_id("dec", at),
        "state": state,
        "category": "general",
        "rationale": "",
        "alternatives": "[]",
        "answerers": "[]",
        "deadline_outcome": "dismiss",
        "created_at": at,
        "ended_at": None if state == "recorded" else ended_at or row.now,
    }
    return TargetRow("decisions", values | columns)


def build_group(row: SourceRow, name: str, at: int, **columns: Any) -> TargetRow:
    """Build an archived group, which can only be read."""
    values = {
        "id": row.create_id("grp", at),
        "name": name,
        "kind": "group",
        "roles": "[]",
        "state": "archived",
        "posts": 0,
        "created_by": "import",
        "created_at": at,
        "updated_at": at,
        "ended_at": row.now,
    }
    return TargetRow("groups", values | columns)


def build_note(row: SourceRow, scope: str, at: int, *, text: str, **columns: Any) -> TargetRow:
    values = {
        "id": row.create_id("nte", at),
        "scope": scope,
        "category": "general",
        "text": text,
        "source": "import",
        "confidence": 50,
        "uses": 0,
        "state": "current",
        "created_at": at,
    }
    return TargetRow("notes", values | columns)


def build_letter(
    row: SourceRow,
    mailbox: str,
    body: Any,
    at: int,
    state: str,
    ended_at: int | None,
    **columns: Any,
) -> TargetRow:
    """Build a letter that is not delivered any more."""
    values = {
        "mailbox": mailbox,
        "body": encode_json(body, "The body", max_bytes=1 << 30),
        "rank": 0,
        "state": state,
        "due_at": at,
        "queue_at": at,
        "fence": 0,
        "attempts": 0,
        "created_at": at,
        "ended_at": ended_at or row.now,
    }
    return TargetRow("letters", values | columns)


def build_schedule(row: SourceRow, mailbox: str, at: int, state: str, **columns: Any) -> TargetRow:
    values = {
        "id": row.create_id("sch", at),
        "mailbox": mailbox,
        "priority": 0,
        "kind": "once",
        "rule": "",
        "time_zone": "UTC",
        "anchor_at": at,
        "misfire": "latest",
        "overlap": "allow",
        "state": state,
        "failures": 0,
        "created_at": at,
        "ended_at": None if state == "paused" else row.now,
    }
    return TargetRow("schedules", values | columns)


def build_lock(
    row: SourceRow, project_id: str, path: str, owner: str, at: int, until: int
) -> TargetRow:
    """Build a lock that has expired, at the latest at the time of the import."""
    end = min(until, row.now)
    return TargetRow(
        "locks",
        {
            "state": "expired",
            "project_id": project_id,
            "path": path,
            "path_prefix": "",
            "mode": "exclusive",
            "owner": owner,
            "ttl_ms": max(until - at, 1),
            "lease_until": until,
            "notify": 0,
            "created_at": at,
            "held_at": at,
            "ended_at": end,
            "ended_by": "import",
        },
    )


def build_removed(row: SourceRow, table: str, id: str, at: int, **columns: Any) -> TargetRow:
    """Build a removed channel or wiring."""
    values = {
        "id": id,
        "state": "removed",
        "created_at": at,
        "created_by": "import",
        "ended_at": row.now,
    }
    return TargetRow(table, values | columns)


def to_json_text(value: Any) -> str:
    """Encode a value as JSON text."""
    return msgspec.json.encode(value).decode()
