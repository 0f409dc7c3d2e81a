"""Every table with states, and how to insert a row in any state directly."""

from collections.abc import Callable
from typing import Any

from corral.db.stateful_table import StatefulTable
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.services.store.declarations import find_declarations

# A plain row of each table. A new table with states needs a row here; its tests follow from it.
ROWS: dict[str, dict[str, Any]] = {
    "alerts": {
        "id": "alr_1",
        "project_id": "prj_1",
        "kinds": '["crashed"]',
        "target_kind": "desktop",
        "target": "",
        "created_at": 1,
        "created_by": "user:tester",
    },
    "agents": {
        "id": "agt_1",
        "name": "ada",
        "version": 1,
        "admin": 0,
        "created_at": 1,
        "updated_at": 1,
    },
    "channels": {
        "id": "chn_1",
        "name": "chat",
        "kind": "terminal",
        "policy": "ask",
        "on_unconfirmed": "give_up",
        "config": "{}",
        "secrets": "{}",
        "created_at": 1,
        "created_by": "user:tester",
    },
    "delegations": {
        "id": "dlg_1",
        "project_id": "prj_1",
        "from_mailbox": "agent:lead",
        "to_agent_id": "agt_1",
        "to_mailbox": "agent:ada",
        "text": "find out",
        "created_at": 1,
    },
    "decisions": {
        "id": "dec_1",
        "project_id": "prj_1",
        "author": "agent:ada",
        "category": "general",
        "title": "this",
        "rationale": "",
        "alternatives": "[]",
        "answerers": "[]",
        "deadline_outcome": "reject",
        "created_at": 1,
    },
    "destinations": {
        "id": "dst_1",
        "agent_id": "agt_1",
        "name": "room",
        "place_id": "plc_1",
        "created_at": 1,
        "created_by": "user:tester",
    },
    "groups": {
        "id": "grp_1",
        "name": "build",
        "project_id": "prj_1",
        "kind": "group",
        "roles": "[]",
        "posts": 0,
        "created_by": "user:tester",
        "created_at": 1,
        "updated_at": 1,
    },
    "notes": {
        "id": "nte_1",
        "scope": "project:prj_1",
        "project_id": "prj_1",
        "category": "general",
        "text": "hello",
        "source": "user:tester",
        "confidence": 100,
        "uses": 0,
        "created_at": 1,
    },
    "letters": {
        "mailbox": "agent:ada",
        "project_id": "prj_1",
        "body": '"hello"',
        "rank": 0,
        "due_at": 1,
        "queue_at": 1,
        "fence": 3,
        "attempts": 1,
        "created_at": 1,
    },
    "locks": {
        "project_id": "prj_1",
        "path": "src",
        "path_prefix": "src/",
        "mode": "exclusive",
        "owner": "agent:ada",
        "ttl_ms": 1,
        "lease_until": 1,
        "notify": 0,
        "created_at": 1,
    },
    "messages": {
        "channel_id": "chn_1",
        "place_id": "plc_1",
        "direction": "in",
        "kind": "text",
        "event_id": "in:1",
        "platform_ids": "[]",
        "text": "hello",
        "routes": "[]",
        "at": 1,
        "created_at": 1,
    },
    "nodes": {
        "id": "nod_1",
        "name": "host",
        "boot_id": "boot",
        "owner": "daemon",
        "fence": 3,
        "lease_until": 1,
        "slots": 1,
        "labels": "[]",
        "joined_at": 1,
        "seen_at": 1,
    },
    "outputs": {
        "run_id": "run_1",
        "host": "host",
        "folder": "/somewhere",
        "mode": "pipe",
        "bytes": 0,
        "dropped_bytes": 0,
        "sha256": "0",
        "created_at": 1,
    },
    "places": {
        "id": "plc_1",
        "channel_id": "chn_1",
        "platform_id": "room",
        "direct": 0,
        "created_at": 1,
        "updated_at": 1,
    },
    "projects": {
        "id": "prj_1",
        "dir": "/somewhere",
        "name": "somewhere",
        "created_at": 1,
        "updated_at": 1,
    },
    "questions": {
        "id": "qst_1",
        "project_id": "prj_1",
        "asker": "agent:ada",
        "text": "which?",
        "options": "[]",
        "free_text": 1,
        "answerers": "[]",
        "deadline_at": 1,
        "created_at": 1,
    },
    "runs": {
        "id": "run_1",
        "project_id": "prj_1",
        "provider": "plain",
        "mode": "pipe",
        "command": "true",
        "args": "[]",
        "cwd": "/somewhere",
        "fence": 3,
        "attempts": 1,
        "quick_failures": 0,
        "due_at": 1,
        "output_bytes": 0,
        "created_at": 1,
    },
    "races": {
        "id": "rac_1",
        "project_id": "prj_1",
        "name": "a race",
        "prompt": "do it",
        "repository": "/srv/here",
        "subdirectory": "",
        "managed_repository": 0,
        "base_commit": "0",
        "host": "here",
        "plan": "{}",
        "created_at": 1,
        "created_by": "user:tester",
    },
    "rounds": {
        "id": "rnd_1",
        "race_id": "rac_1",
        "project_id": "prj_1",
        "number": 1,
        "base_commit": "0",
        "prompt": "do it",
        "needs_driver": 0,
        "host": "here",
        "fence": 3,
        "created_at": 1,
    },
    "attempts": {
        "id": "att_1",
        "race_id": "rac_1",
        "round_id": "rnd_1",
        "project_id": "prj_1",
        "number": 1,
        "prompt": "do it",
        "branch": "b",
        "worktree": "/srv/there",
        "try_number": 1,
        "checks": "[]",
        "created_at": 1,
    },
    "verdicts": {
        "id": "vdt_1",
        "race_id": "rac_1",
        "round_id": "rnd_1",
        "project_id": "prj_1",
        "number": 1,
        "judge": "ada",
        "labels": "{}",
        "prompt_hash": "0",
        "truncated": 0,
        "created_at": 1,
    },
    "schedules": {
        "id": "sch_1",
        "project_id": "prj_1",
        "mailbox": "agent:ada",
        "body": '"hello"',
        "priority": 0,
        "kind": "every",
        "rule": "60000",
        "time_zone": "UTC",
        "anchor_at": 1,
        "misfire": "latest",
        "overlap": "allow",
        "created_at": 1,
    },
    "occurrences": {
        "id": "occ_1",
        "schedule_id": "sch_1",
        "project_id": "prj_1",
        "scheduled_at": 1,
        "attempts": 0,
        "created_at": 1,
    },
    "host_requests": {
        "id": "req_1",
        "agent_id": "agt_1",
        "action": "create_agent",
        "arguments": "{}",
        "effect": "an agent is created",
        "created_at": 1,
    },
    "senders": {
        "id": "snd_1",
        "channel_id": "chn_1",
        "platform_id": "ann",
        "person": "ann",
        "created_at": 1,
        "updated_at": 1,
    },
    "sessions": {
        "id": "ses_1",
        "project_id": "prj_1",
        "turns": 0,
        "cleared_turn": 0,
        "parent_turn": 0,
        "created_at": 1,
        "updated_at": 1,
    },
    "tasks": {
        "id": "tsk_1",
        "project_id": "prj_1",
        "key": "build",
        "title": "Build it",
        "files": "[]",
        "priority": 0,
        "fence": 3,
        "attempts": 0,
        "open_dependencies": 0,
        "failed_dependencies": 0,
        "created_at": 1,
        "created_by": "user:tester",
    },
    "wirings": {
        "id": "wir_1",
        "channel_id": "chn_1",
        "place_id": "plc_1",
        "agent_id": "agt_1",
        "trigger": "always",
        "scope": "all",
        "unmatched": "drop",
        "mode": "shared",
        "priority": 0,
        "created_at": 1,
        "created_by": "user:tester",
    },
    "tokens": {
        "id": "tok_1",
        "name": "script",
        "scope": "full",
        "hash": "0",
        "created_at": 1,
        "created_by": "user:tester",
    },
}

# Columns in which two rows of a table must differ.
NAMES = (
    "id", "dir", "key", "name", "run_id", "hash", "race_id", "round_id",
    "platform_id", "event_id", "place_id", "schedule_id",
)  # fmt: skip

# Columns that CHECK constraints tie to the state.
TIED: dict[str, Callable[[str], dict[str, Any]]] = {
    "alerts": lambda state: {"ended_at": None if state == "active" else 9},
    "channels": lambda state: {"ended_at": None if state == "active" else 9},
    "delegations": lambda state: {"ended_at": None if state == "active" else 9},
    "destinations": lambda state: {"ended_at": None if state == "granted" else 9},
    "messages": lambda state: {"ended_at": None if state in ("held", "queued") else 9},
    "host_requests": lambda state: {"ended_at": None if state == "waiting" else 9},
    "occurrences": lambda state: {"ended_at": None if state == "checking" else 9},
    "wirings": lambda state: {"ended_at": None if state == "active" else 9},
    "decisions": lambda state: {"ended_at": None if state in ("recorded", "proposed") else 9},
    "groups": lambda state: {"ended_at": None if state == "open" else 9},
    "notes": lambda state: {"ended_at": None if state == "current" else 9},
    "questions": lambda state: {"ended_at": None if state == "open" else 9},
    "letters": lambda state: {"ended_at": None if state in ("waiting", "unconfirmed") else 9},
    "locks": lambda state: {"ended_at": None if state in ("held", "waiting") else 9},
    "races": lambda state: {"ended_at": None if state == "active" else 9},
    "rounds": lambda state: {
        "ended_at": None if state in ("running", "selecting", "failed") else 9,
    },
    "attempts": lambda state: {
        "ended_at": None if state in ("preparing", "running", "checking") else 9,
    },
    "verdicts": lambda state: {"ended_at": None if state == "pending" else 9},
    "runs": lambda state: {
        "ended_at": None if state in ("queued", "starting", "running", "stopping") else 9,
    },
    "schedules": lambda state: {
        "next_at": 9 if state == "active" else None,
        "ended_at": None if state in ("active", "paused") else 9,
    },
    "tokens": lambda state: {"ended_at": None if state == "active" else 9},
    "sessions": lambda state: {"closed_at": None if state == "open" else 9},
    "tasks": lambda state: {
        "ended_at": 9 if state in ("done", "failed", "skipped", "cancelled") else None,
    },
}


def state_tables() -> dict[str, StatefulTable[Any]]:
    """Return every table with states, by name."""
    return {table.table: table for table in find_declarations(StatefulTable).values()}


def tied_to(table: StatefulTable[Any], state: str) -> dict[str, Any]:
    return TIED[table.table](state) if table.table in TIED else {}


def has_lease(table: StatefulTable[Any]) -> bool:
    return "fence" in ROWS[table.table]


def insert(tx: Tx, table: StatefulTable[Any], state: str) -> str | int:
    """Insert a row in any state, bypassing the operations; return its key.

    It differs from existing rows only in its unique columns.
    """
    values = {**ROWS[table.table], **tied_to(table, state), "state": state}
    nth = tx.value(Statement(f"SELECT count(*) FROM {table.table}"))
    values |= {name: f"{values[name]}{nth}" for name in NAMES if name in values}
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    key: str | int = tx.value(
        Statement(f"INSERT INTO {table.table} ({names}) VALUES ({places}) RETURNING {table.key}"),
        **values,
    )
    return key
