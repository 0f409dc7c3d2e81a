"""Rows of Corral's tables for what another tool had, whole with all that every row needs.

Nothing made here is live: no run has a process, no letter is to be delivered, no task may be taken,
no schedule puts anything, no channel is listened to.
"""

import os
from typing import Any

import msgspec

from corral.importers.mapping import Thing
from corral.importers.row import Row, valid_name
from corral.kernel.text import encode_json


def project(row: Row, column: str, at: int, **columns: Any) -> Thing:
    """A project; where its directory is not known, or relative, it is looked for by the source."""
    dir = row.text(column, most=4_096)
    if dir is None or not os.path.isabs(dir):
        row.keep(column)
        row.troubles.append(f"{column} is not an absolute path; a folder by the database is used")
        dir = os.path.join(row.folder, dir or valid_name(row.key, "project"))
    real = os.path.realpath(dir)
    if real != dir:
        row.keep(column)
    values = {
        "id": row.new_id("prj", at),
        "dir": real,
        "name": os.path.basename(dir.rstrip("/")) or dir,
        "state": "active",
        "created_at": at,
        "updated_at": at,
    }
    return Thing("projects", values | columns)


def agent(row: Row, name: str, at: int, *, state: str = "active", **content: Any) -> list[Thing]:
    """An agent with its one version. It may change nothing: rights are not brought in."""
    id = row.new_id("agt", at)
    made = {
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
    return [Thing("agents", made), Thing("agent_versions", version)]


def session(row: Row, at: int, *, state: str = "open", **columns: Any) -> Thing:
    closed = {"closed_at": row.now} if state == "closed" else {}
    values = {
        "id": row.new_id("ses", at),
        "state": state,
        "turns": 0,
        "cleared_turn": 0,
        "parent_turn": 0,
        "created_at": at,
        "updated_at": at,
    }
    return Thing("sessions", values | closed | columns)


def turn(session_id: str, role: str, content: str, at: int, **columns: Any) -> Thing:
    """A turn; its number is given when it is stored."""
    values = {
        "session_id": session_id,
        "role": role,
        "content": content,
        "is_error": 0,
        "at": at,
    }
    return Thing("turns", values | columns)


def run(
    row: Row,
    at: int,
    state: str,
    ended_at: int | None,
    *,
    prompt: str | None = None,
    **columns: Any,
) -> list[Thing]:
    """A run that is over, with what it was started with."""
    id = row.new_id("run", at)
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
        "grace_ms": 10_000,
        "restarts": 0,
        "output_cap": 0,
        "environment": "{}",
    }
    return [Thing("runs", values), Thing("launches", launch)]


def log_line(run_id: str, at: int, level: str, message: str, **columns: Any) -> Thing:
    values = {"run_id": run_id, "at": at, "level": level, "message": message}
    return Thing("log_lines", values | columns)


def charge(at: int, **columns: Any) -> Thing:
    return Thing("charges", {"at": at} | columns)


def task(row: Row, project_id: str, key: str, at: int, state: str, **columns: Any) -> Thing:
    over = state != "paused"
    values = {
        "id": row.new_id("tsk", at),
        "project_id": project_id,
        "key": key,
        "state": state,
        "title": key,
        "files": "[]",
        "priority": 0,
        "fence": 0,
        "attempts": 0,
        "open_needs": 0,
        "broken_needs": 0,
        "created_at": at,
        "created_by": "import",
    }
    thing = Thing("tasks", values | columns)
    if over and not thing.values.get("ended_at"):
        thing.values["ended_at"] = row.now
    return thing


def delegation(row: Row, at: int, state: str, ended_at: int | None, **columns: Any) -> Thing:
    values = {
        "id": row.new_id("dlg", at),
        "state": state,
        "created_at": at,
        "ended_at": ended_at or row.now,
    }
    return Thing("delegations", values | columns)


def decision(row: Row, at: int, state: str, ended_at: int | None, **columns: Any) -> Thing:
    values = {
        "id": row.new_id("dec", at),
        "state": state,
        "category": "general",
        "rationale": "",
        "alternatives": "[]",
        "answerers": "[]",
        "at_deadline": "dismiss",
        "created_at": at,
        "ended_at": None if state == "recorded" else ended_at or row.now,
    }
    return Thing("decisions", values | columns)


def group(row: Row, name: str, at: int, **columns: Any) -> Thing:
    """A group that can be read, and in which nobody posts any more."""
    values = {
        "id": row.new_id("grp", at),
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
    return Thing("groups", values | columns)


def note(row: Row, scope: str, at: int, *, text: str, **columns: Any) -> Thing:
    values = {
        "id": row.new_id("nte", at),
        "scope": scope,
        "category": "general",
        "text": text,
        "source": "import",
        "confidence": 50,
        "uses": 0,
        "state": "current",
        "created_at": at,
    }
    return Thing("notes", values | columns)


def letter(
    row: Row, mailbox: str, body: Any, at: int, state: str, ended_at: int | None, **columns: Any
) -> Thing:
    """A letter whose fate is known, or will not be: nobody is given it any more."""
    values = {
        "mailbox": mailbox,
        "body": encode_json(body, "The body", most=1 << 30),
        "rank": 0,
        "state": state,
        "due_at": at,
        "line_at": at,
        "fence": 0,
        "attempts": 0,
        "created_at": at,
        "ended_at": ended_at or row.now,
    }
    return Thing("letters", values | columns)


def schedule(row: Row, mailbox: str, at: int, state: str, **columns: Any) -> Thing:
    values = {
        "id": row.new_id("sch", at),
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
    return Thing("schedules", values | columns)


def lock(row: Row, project_id: str, path: str, owner: str, at: int, until: int) -> Thing:
    """A lock that ended, at the latest when it was brought in."""
    end = min(until, row.now)
    return Thing(
        "locks",
        {
            "state": "expired",
            "project_id": project_id,
            "path": path,
            "head": "",
            "mode": "exclusive",
            "owner": owner,
            "ttl_ms": max(until - at, 1),
            "lease_until": until,
            "tells": 0,
            "created_at": at,
            "held_at": at,
            "ended_at": end,
            "ended_by": "import",
        },
    )


def removed(row: Row, table: str, id: str, at: int, **columns: Any) -> Thing:
    """A channel or a wiring, which is not in force here."""
    values = {
        "id": id,
        "state": "removed",
        "created_at": at,
        "created_by": "import",
        "ended_at": row.now,
    }
    return Thing(table, values | columns)


def json_of(value: Any) -> str:
    return msgspec.json.encode(value).decode()
