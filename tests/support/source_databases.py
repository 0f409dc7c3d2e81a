"""Databases of other agent tools as those tools create them, with valid and invalid rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw

AGENT_YES = """
    CREATE TABLE projects (id INTEGER PRIMARY KEY AUTOINCREMENT, dir TEXT NOT NULL UNIQUE,
        cmd TEXT NOT NULL, prompt TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
        last_run_at INTEGER);
    CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL,
        project_id INTEGER NOT NULL, status TEXT NOT NULL, exit_code INTEGER,
        started_at INTEGER NOT NULL, ended_at INTEGER, args TEXT NOT NULL DEFAULT '[]',
        FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE);
"""

MULTISHOT = """
    CREATE TABLE runs (id TEXT PRIMARY KEY, name TEXT NOT NULL, created_at INTEGER NOT NULL,
        status TEXT NOT NULL, current_round_id TEXT);
    CREATE TABLE rounds (id TEXT PRIMARY KEY, run_id TEXT NOT NULL, round_number INTEGER NOT NULL,
        base_prompt TEXT NOT NULL, created_at INTEGER NOT NULL, winner_agent_id TEXT,
        winner_files_path TEXT, status TEXT NOT NULL);
    CREATE TABLE agents (id TEXT PRIMARY KEY, round_id TEXT NOT NULL, agent_number INTEGER NOT NULL,
        sandbox_id TEXT, variation_prompt TEXT NOT NULL, status TEXT NOT NULL,
        created_at INTEGER NOT NULL, completed_at INTEGER, error_message TEXT);
    CREATE TABLE output_logs (id TEXT PRIMARY KEY, agent_id TEXT NOT NULL,
        timestamp INTEGER NOT NULL, content TEXT NOT NULL);
    CREATE TABLE credentials (key TEXT PRIMARY KEY, value TEXT NOT NULL,
        updated_at INTEGER NOT NULL);
"""

AGENTS = """
    CREATE TABLE "Agent" (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, role TEXT NOT NULL,
        model TEXT NOT NULL DEFAULT 'gpt-4-turbo', instructions TEXT NOT NULL,
        "createdAt" DATETIME NOT NULL, "updatedAt" DATETIME NOT NULL);
    CREATE TABLE "AgentTool" (id TEXT PRIMARY KEY, "agentId" TEXT NOT NULL,
        "toolName" TEXT NOT NULL, enabled BOOLEAN NOT NULL DEFAULT true);
    CREATE TABLE "Session" (id TEXT PRIMARY KEY, title TEXT, "agentId" TEXT NOT NULL,
        "createdAt" DATETIME NOT NULL, "updatedAt" DATETIME NOT NULL);
    CREATE TABLE "Message" (id TEXT PRIMARY KEY, "sessionId" TEXT NOT NULL, role TEXT NOT NULL,
        content TEXT NOT NULL, "createdAt" DATETIME NOT NULL);
    CREATE TABLE "Run" (id TEXT PRIMARY KEY, "sessionId" TEXT NOT NULL, status TEXT NOT NULL,
        "startedAt" DATETIME NOT NULL, "completedAt" DATETIME, "tokensUsed" INTEGER NOT NULL
        DEFAULT 0, cost REAL NOT NULL DEFAULT 0);
    CREATE TABLE "RunLog" (id TEXT PRIMARY KEY, "runId" TEXT NOT NULL, level TEXT NOT NULL,
        message TEXT NOT NULL, metadata JSONB, "createdAt" DATETIME NOT NULL);
    CREATE TABLE "Setting" (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

NANOCLAW = """
    CREATE TABLE agent_groups (id TEXT PRIMARY KEY, name TEXT NOT NULL, folder TEXT NOT NULL UNIQUE,
        is_admin INTEGER DEFAULT 0, agent_provider TEXT, container_config TEXT,
        created_at TEXT NOT NULL);
    CREATE TABLE messaging_groups (id TEXT PRIMARY KEY, channel_type TEXT NOT NULL,
        platform_id TEXT NOT NULL, name TEXT, is_group INTEGER DEFAULT 0, admin_user_id TEXT,
        created_at TEXT NOT NULL, UNIQUE (channel_type, platform_id));
    CREATE TABLE messaging_group_agents (id TEXT PRIMARY KEY, messaging_group_id TEXT NOT NULL,
        agent_group_id TEXT NOT NULL, trigger_rules TEXT, response_scope TEXT DEFAULT 'all',
        session_mode TEXT DEFAULT 'shared', priority INTEGER DEFAULT 0, created_at TEXT NOT NULL);
    CREATE TABLE sessions (id TEXT PRIMARY KEY, agent_group_id TEXT NOT NULL,
        messaging_group_id TEXT, thread_id TEXT, agent_provider TEXT, status TEXT DEFAULT 'active',
        container_status TEXT DEFAULT 'stopped', last_active TEXT, created_at TEXT NOT NULL);
    CREATE TABLE pending_questions (question_id TEXT PRIMARY KEY, session_id TEXT NOT NULL,
        message_out_id TEXT NOT NULL, platform_id TEXT, channel_type TEXT, thread_id TEXT,
        created_at TEXT NOT NULL);
"""

NANOCLAW_INBOUND = """
    CREATE TABLE messages_in (id TEXT PRIMARY KEY, seq INTEGER UNIQUE, kind TEXT NOT NULL,
        timestamp TEXT NOT NULL, status TEXT DEFAULT 'pending', process_after TEXT, recurrence TEXT,
        tries INTEGER DEFAULT 0, platform_id TEXT, channel_type TEXT, thread_id TEXT,
        content TEXT NOT NULL);
    CREATE TABLE delivered (message_out_id TEXT PRIMARY KEY, platform_message_id TEXT,
        status TEXT NOT NULL DEFAULT 'delivered', delivered_at TEXT NOT NULL);
    CREATE TABLE destinations (name TEXT PRIMARY KEY, display_name TEXT, type TEXT NOT NULL,
        channel_type TEXT, platform_id TEXT, agent_group_id TEXT);
    CREATE TABLE session_routing (id INTEGER PRIMARY KEY CHECK (id = 1), channel_type TEXT,
        platform_id TEXT, thread_id TEXT);
"""

NANOCLAW_OUTBOUND = """
    CREATE TABLE messages_out (id TEXT PRIMARY KEY, seq INTEGER UNIQUE, in_reply_to TEXT,
        timestamp TEXT NOT NULL, deliver_after TEXT, recurrence TEXT, kind TEXT NOT NULL,
        platform_id TEXT, channel_type TEXT, thread_id TEXT, content TEXT NOT NULL);
    CREATE TABLE processing_ack (message_id TEXT PRIMARY KEY, status TEXT NOT NULL,
        status_changed TEXT NOT NULL);
    CREATE TABLE session_state (key TEXT PRIMARY KEY, value TEXT NOT NULL,
        updated_at TEXT NOT NULL);
"""

FLIGHTDECK = """
    CREATE TABLE projects (id TEXT PRIMARY KEY, name TEXT NOT NULL, description TEXT DEFAULT '',
        cwd TEXT, status TEXT DEFAULT 'active', model_config TEXT DEFAULT '{}',
        oversight_level TEXT, created_at TEXT, updated_at TEXT);
    CREATE TABLE roles (id TEXT PRIMARY KEY, name TEXT NOT NULL, description TEXT DEFAULT '',
        system_prompt TEXT DEFAULT '', color TEXT, icon TEXT, built_in INTEGER DEFAULT 0,
        model TEXT);
    CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE agent_roster (agent_id TEXT PRIMARY KEY, role TEXT NOT NULL, model TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'idle', session_id TEXT, project_id TEXT, provider TEXT,
        team_id TEXT NOT NULL DEFAULT 'default', created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL, last_task_summary TEXT, metadata TEXT);
    CREATE TABLE project_sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, project_id TEXT NOT NULL,
        lead_id TEXT NOT NULL, session_id TEXT, role TEXT DEFAULT 'lead', task TEXT,
        status TEXT DEFAULT 'active', started_at TEXT, ended_at TEXT);
    CREATE TABLE conversations (id TEXT PRIMARY KEY, agent_id TEXT NOT NULL, task_id TEXT,
        created_at TEXT);
    CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, conversation_id TEXT NOT NULL,
        sender TEXT NOT NULL, content TEXT NOT NULL, from_role TEXT, timestamp TEXT);
    CREATE TABLE file_locks (file_path TEXT PRIMARY KEY, agent_id TEXT NOT NULL,
        agent_role TEXT NOT NULL, reason TEXT DEFAULT '', acquired_at TEXT,
        expires_at TEXT NOT NULL, project_id TEXT DEFAULT '');
    CREATE TABLE activity_log (id INTEGER PRIMARY KEY AUTOINCREMENT, agent_id TEXT NOT NULL,
        agent_role TEXT NOT NULL, action_type TEXT NOT NULL, summary TEXT NOT NULL,
        details TEXT DEFAULT '{}', timestamp TEXT, project_id TEXT DEFAULT '');
    CREATE TABLE decisions (id TEXT PRIMARY KEY, agent_id TEXT NOT NULL, agent_role TEXT NOT NULL,
        lead_id TEXT, project_id TEXT, title TEXT NOT NULL, rationale TEXT DEFAULT '',
        needs_confirmation INTEGER DEFAULT 0, status TEXT DEFAULT 'recorded',
        auto_approved INTEGER DEFAULT 0, confirmed_at TEXT, created_at TEXT);
    CREATE TABLE chat_groups (name TEXT NOT NULL, lead_id TEXT NOT NULL, project_id TEXT,
        roles TEXT, archived INTEGER DEFAULT 0, created_at TEXT, PRIMARY KEY (name, lead_id));
    CREATE TABLE chat_group_members (group_name TEXT NOT NULL, lead_id TEXT NOT NULL,
        agent_id TEXT NOT NULL, added_at TEXT, PRIMARY KEY (group_name, lead_id, agent_id));
    CREATE TABLE chat_group_messages (id TEXT PRIMARY KEY, group_name TEXT NOT NULL,
        lead_id TEXT NOT NULL, from_agent_id TEXT NOT NULL, from_role TEXT NOT NULL,
        content TEXT NOT NULL, reactions TEXT DEFAULT '{}', timestamp TEXT);
    CREATE TABLE dag_tasks (id TEXT NOT NULL, lead_id TEXT NOT NULL, project_id TEXT,
        team_id TEXT NOT NULL DEFAULT 'default', role TEXT NOT NULL, title TEXT,
        description TEXT NOT NULL DEFAULT '', files TEXT DEFAULT '[]', depends_on TEXT DEFAULT '[]',
        dag_status TEXT DEFAULT 'pending', priority INTEGER DEFAULT 0, model TEXT,
        assigned_agent_id TEXT, failure_reason TEXT, created_at TEXT, started_at TEXT,
        completed_at TEXT, archived_at TEXT, overridden_by TEXT, PRIMARY KEY (id, lead_id));
    CREATE TABLE agent_memory (id INTEGER PRIMARY KEY AUTOINCREMENT, lead_id TEXT NOT NULL,
        agent_id TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, created_at TEXT);
    CREATE TABLE agent_plans (agent_id TEXT PRIMARY KEY, lead_id TEXT,
        plan_json TEXT NOT NULL DEFAULT '[]', updated_at TEXT);
    CREATE TABLE active_delegations (delegation_id TEXT PRIMARY KEY, agent_id TEXT NOT NULL,
        task TEXT NOT NULL, context TEXT, dag_task_id TEXT, team_id TEXT NOT NULL DEFAULT 'default',
        status TEXT NOT NULL DEFAULT 'active', created_at TEXT NOT NULL, completed_at TEXT,
        result TEXT);
    CREATE TABLE agent_file_history (agent_id TEXT NOT NULL, agent_role TEXT NOT NULL,
        lead_id TEXT NOT NULL, file_path TEXT NOT NULL, first_touched_at TEXT, last_touched_at TEXT,
        touch_count INTEGER DEFAULT 1, PRIMARY KEY (agent_id, lead_id, file_path));
    CREATE TABLE collective_memory (id INTEGER PRIMARY KEY AUTOINCREMENT, category TEXT NOT NULL,
        key TEXT NOT NULL, value TEXT NOT NULL, source TEXT NOT NULL, project_id TEXT DEFAULT '',
        created_at TEXT, last_used_at TEXT, use_count INTEGER DEFAULT 0);
    CREATE TABLE knowledge (id INTEGER PRIMARY KEY AUTOINCREMENT, project_id TEXT NOT NULL,
        category TEXT NOT NULL, key TEXT NOT NULL, content TEXT NOT NULL, metadata TEXT,
        created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
    CREATE VIRTUAL TABLE knowledge_fts USING fts5 (key, content, category);
    CREATE TABLE task_cost_records (agent_id TEXT NOT NULL, dag_task_id TEXT NOT NULL,
        lead_id TEXT NOT NULL, project_id TEXT, input_tokens INTEGER DEFAULT 0,
        output_tokens INTEGER DEFAULT 0, cache_read_tokens INTEGER DEFAULT 0,
        cache_write_tokens INTEGER DEFAULT 0, cost_usd REAL DEFAULT 0, created_at TEXT,
        updated_at TEXT, PRIMARY KEY (agent_id, dag_task_id, lead_id));
    CREATE TABLE session_retros (id INTEGER PRIMARY KEY AUTOINCREMENT, lead_id TEXT NOT NULL,
        data TEXT NOT NULL, created_at TEXT);
    CREATE TABLE timers (id TEXT PRIMARY KEY, agent_id TEXT NOT NULL, agent_role TEXT NOT NULL,
        lead_id TEXT, label TEXT NOT NULL, message TEXT NOT NULL, delay_seconds INTEGER NOT NULL,
        fire_at TEXT NOT NULL, created_at TEXT, status TEXT NOT NULL DEFAULT 'pending',
        repeat INTEGER DEFAULT 0);
    CREATE TABLE message_queue (id INTEGER PRIMARY KEY AUTOINCREMENT, target_agent_id TEXT NOT NULL,
        source_agent_id TEXT, message_type TEXT NOT NULL, payload TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'queued', attempts INTEGER NOT NULL DEFAULT 0, created_at TEXT,
        delivered_at TEXT, project_id TEXT);
"""

Rows = dict[str, list[dict[str, Any]]]
WHEN = "2026-03-01T10:00:00Z"
LEAD = "11111111-2222-3333-4444-555555555555"
WORKER = "66666666-7777-8888-9999-000000000000"


def make(path: Path, schema: str, rows: Rows, *, wal: bool = False) -> Path:
    """Create a database with a schema and rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = apsw.Connection(str(path))
    if wal:
        file.execute("PRAGMA journal_mode = WAL").fetchall()
    file.execute(schema)
    fill(file, rows)
    file.close()
    return path


def grow(path: Path, rows: Rows) -> None:
    """Add rows to a database."""
    file = apsw.Connection(str(path))
    fill(file, rows)
    file.close()


def change(path: Path, sql: str) -> None:
    file = apsw.Connection(str(path))
    file.execute(sql)
    file.close()


def fill(file: apsw.Connection, rows: Rows) -> None:
    with file:
        for table, records in rows.items():
            for record in records:
                names = ", ".join(f'"{name}"' for name in record)
                marks = ", ".join("?" for _ in record)
                sql = f'INSERT INTO "{table}" ({names}) VALUES ({marks})'
                file.execute(sql, tuple(record.values()))


AGENT_YES_ROWS: Rows = {
    "projects": [
        {
            "id": 1,
            "dir": "/srv/shop",
            "cmd": "claude",
            "prompt": "fix it",
            "created_at": 1_770_000_000,
            "updated_at": 1_770_000_100_000,
            "last_run_at": 1_770_000_200_000,
        },
        {
            "id": 2,
            "dir": "/srv/blog",
            "cmd": "codex",
            "created_at": 1_770_000_000,
            "updated_at": 1_770_000_000_000,
        },
    ],
    "runs": [
        {
            "id": 1,
            "pid": 11,
            "project_id": 1,
            "status": "completed",
            "exit_code": 0,
            "started_at": 1_770_000_200,
            "ended_at": 1_770_000_290_000,
            "args": '["--fast"]',
        },
        {
            "id": 2,
            "pid": 12,
            "project_id": 1,
            "status": "running",
            "started_at": 1_770_000_300,
        },
        {
            "id": 3,
            "pid": 13,
            "project_id": 2,
            "status": "failed",
            "exit_code": 3,
            "started_at": 1_770_000_400,
            "ended_at": 1_770_000_401_000,
        },
        {
            "id": 4,
            "pid": 14,
            "project_id": 2,
            "status": "crashed",
            "started_at": 1_770_000_500,
            "ended_at": 1_770_000_501_000,
        },
    ],
}

MULTISHOT_ROWS: Rows = {
    "runs": [
        {"id": "r1", "name": "a shop", "created_at": 1_770_000_000_000, "status": "completed"},
        {
            "id": "r2",
            "name": "a blog",
            "created_at": 1_770_000_100_000,
            "status": "active",
            "current_round_id": "o2",
        },
    ],
    "rounds": [
        {
            "id": "o1",
            "run_id": "r1",
            "round_number": 1,
            "base_prompt": "make a shop",
            "created_at": 1_770_000_001_000,
            "winner_agent_id": "a2",
            "winner_files_path": "/srv/multishot/runs/r1/round-1-winner",
            "status": "completed",
        },
        {
            "id": "o2",
            "run_id": "r2",
            "round_number": 1,
            "base_prompt": "make a blog",
            "created_at": 1_770_000_101_000,
            "status": "running",
        },
    ],
    "agents": [
        {
            "id": "a1",
            "round_id": "o1",
            "agent_number": 1,
            "variation_prompt": "plain",
            "status": "failed",
            "created_at": 1_770_000_002_000,
            "completed_at": 1_770_000_003_000,
            "error_message": "out of memory",
            "sandbox_id": "sbx-1",
        },
        {
            "id": "a2",
            "round_id": "o1",
            "agent_number": 2,
            "variation_prompt": "bold",
            "status": "selected",
            "created_at": 1_770_000_002_000,
            "completed_at": 1_770_000_004_000,
        },
        {
            "id": "a3",
            "round_id": "o2",
            "agent_number": 1,
            "variation_prompt": "plain",
            "status": "running",
            "created_at": 1_770_000_102_000,
        },
    ],
    "output_logs": [
        {"id": "l1", "agent_id": "a2", "timestamp": 1_770_000_002_500, "content": "begun"},
        {"id": "l2", "agent_id": "a2", "timestamp": 1_770_000_003_500, "content": "done"},
    ],
    "credentials": [{"key": "anthropic", "value": "safe-storage-ref-77", "updated_at": 1}],
}

AGENTS_ROWS: Rows = {
    "Agent": [
        {
            "id": "g1",
            "name": "Builder",
            "role": "builder",
            "model": "gpt-4-turbo",
            "instructions": "Build well.",
            "createdAt": 1_770_000_000_000,
            "updatedAt": "2026-02-03T04:05:06.789Z",
        }
    ],
    "AgentTool": [
        {"id": "t1", "agentId": "g1", "toolName": "Bash", "enabled": 1},
        {"id": "t2", "agentId": "g1", "toolName": "WebFetch", "enabled": 0},
    ],
    "Session": [
        {
            "id": "s1",
            "title": "the shop",
            "agentId": "g1",
            "createdAt": 1_770_000_001_000,
            "updatedAt": 1_770_000_009_000,
        }
    ],
    "Message": [
        {
            "id": "m1",
            "sessionId": "s1",
            "role": "user",
            "content": "hello",
            "createdAt": 1_770_000_002_000,
        },
        {
            "id": "m2",
            "sessionId": "s1",
            "role": "assistant",
            "content": "hi",
            "createdAt": 1_770_000_003_000,
        },
    ],
    "Run": [
        {
            "id": "u1",
            "sessionId": "s1",
            "status": "completed",
            "startedAt": 1_770_000_002_000,
            "completedAt": 1_770_000_004_000,
            "tokensUsed": 1_500,
            "cost": 0.25,
        },
        {"id": "u2", "sessionId": "s1", "status": "queued", "startedAt": 1_770_000_005_000},
        {"id": "u3", "sessionId": "s1", "status": "in_progress", "startedAt": 1_770_000_006_000},
    ],
    "RunLog": [
        {
            "id": "w1",
            "runId": "u1",
            "level": "warn",
            "message": "slow",
            "metadata": '{"ms": 9}',
            "createdAt": 1_770_000_003_000,
        }
    ],
    "Setting": [{"key": "theme", "value": "dark"}],
}

NANOCLAW_ROWS: Rows = {
    "agent_groups": [
        {
            "id": "ag-1",
            "name": "Andy",
            "folder": "andy",
            "is_admin": 1,
            "agent_provider": "claude",
            "container_config": '{"packages": ["jq"]}',
            "created_at": WHEN,
        }
    ],
    "messaging_groups": [
        {
            "id": "mg-1",
            "channel_type": "telegram",
            "platform_id": "chat:7",
            "name": "family",
            "is_group": 1,
            "admin_user_id": "telegram:1",
            "created_at": WHEN,
        },
        {
            "id": "mg-2",
            "channel_type": "telegram",
            "platform_id": "chat:8",
            "is_group": 0,
            "created_at": WHEN,
        },
    ],
    "messaging_group_agents": [
        {
            "id": "mga-1",
            "messaging_group_id": "mg-1",
            "agent_group_id": "ag-1",
            "trigger_rules": '{"pattern": "andy"}',
            "session_mode": "per-thread",
            "priority": 10,
            "created_at": WHEN,
        }
    ],
    "sessions": [
        {
            "id": "sess-1",
            "agent_group_id": "ag-1",
            "messaging_group_id": "mg-1",
            "thread_id": "th",
            "container_status": "running",
            "last_active": "2026-03-02T10:00:00Z",
            "created_at": WHEN,
        }
    ],
    "pending_questions": [
        {
            "question_id": "q1",
            "session_id": "sess-1",
            "message_out_id": "out-1",
            "created_at": WHEN,
        }
    ],
}

NANOCLAW_INBOUND_ROWS: Rows = {
    "messages_in": [
        {
            "id": "in-1",
            "seq": 2,
            "kind": "chat",
            "timestamp": WHEN,
            "status": "completed",
            "platform_id": "chat:7",
            "channel_type": "telegram",
            "content": '{"text": "hello"}',
        },
        {
            "id": "in-2",
            "seq": 4,
            "kind": "chat",
            "timestamp": WHEN,
            "status": "pending",
            "content": '{"text": "still there?"}',
        },
        {
            "id": "in-3",
            "seq": 6,
            "kind": "chat",
            "timestamp": WHEN,
            "status": "pending",
            "content": '{"text": "seen to"}',
        },
        {
            "id": "in-4",
            "seq": 8,
            "kind": "task",
            "timestamp": WHEN,
            "status": "pending",
            "recurrence": "0 9 * * *",
            "process_after": "2026-03-03T09:00:00Z",
            "content": '{"prompt": "report"}',
        },
    ],
    "delivered": [
        {"message_out_id": "out-1", "platform_message_id": "55", "delivered_at": WHEN},
    ],
    "destinations": [
        {
            "name": "family",
            "display_name": "The family",
            "type": "channel",
            "channel_type": "telegram",
            "platform_id": "chat:7",
        }
    ],
    "session_routing": [
        {"id": 1, "channel_type": "telegram", "platform_id": "chat:7", "thread_id": "th"}
    ],
}

NANOCLAW_OUTBOUND_ROWS: Rows = {
    "messages_out": [
        {
            "id": "out-1",
            "seq": 3,
            "in_reply_to": "in-1",
            "timestamp": WHEN,
            "kind": "chat",
            "platform_id": "chat:7",
            "channel_type": "telegram",
            "content": '{"text": "hi"}',
        },
        {"id": "out-2", "seq": 5, "timestamp": WHEN, "kind": "chat", "content": '{"text": "lost"}'},
    ],
    "processing_ack": [{"message_id": "in-3", "status": "completed", "status_changed": WHEN}],
    "session_state": [{"key": "sdk_session_id", "value": "abc", "updated_at": WHEN}],
}

FLIGHTDECK_ROWS: Rows = {
    "projects": [
        {
            "id": "shop-1a2b3c",
            "name": "Shop",
            "description": "sells",
            "cwd": "/srv/shop",
            "created_at": WHEN,
            "updated_at": "2026-03-01 11:00:00",
        }
    ],
    "roles": [{"id": "tester", "name": "Tester", "system_prompt": "Test.", "color": "#888"}],
    "settings": [{"key": "activeProvider", "value": '"claude"'}],
    "agent_roster": [
        {
            "agent_id": LEAD,
            "role": "lead",
            "model": "opus",
            "status": "running",
            "project_id": "shop-1a2b3c",
            "provider": "claude",
            "created_at": WHEN,
            "updated_at": WHEN,
        },
        {
            "agent_id": WORKER,
            "role": "developer",
            "model": "sonnet",
            "status": "idle",
            "created_at": WHEN,
            "updated_at": WHEN,
            "metadata": '{"parentId": "x"}',
        },
    ],
    "project_sessions": [
        {
            "id": 1,
            "project_id": "shop-1a2b3c",
            "lead_id": LEAD,
            "session_id": "prov-1",
            "task": "build it",
            "started_at": WHEN,
        }
    ],
    "conversations": [
        {"id": "c1", "agent_id": WORKER, "task_id": "build the cart", "created_at": WHEN}
    ],
    "messages": [
        {"id": 1, "conversation_id": "c1", "sender": "user", "content": "go", "timestamp": WHEN},
        {
            "id": 2,
            "conversation_id": "c1",
            "sender": "thinking",
            "content": "hm",
            "timestamp": "2026-03-01T10:00:00.500Z",
        },
        {
            "id": 3,
            "conversation_id": "c1",
            "sender": "external",
            "from_role": "lead",
            "content": "hurry",
            "timestamp": WHEN,
        },
    ],
    "file_locks": [
        {
            "file_path": "src/cart.py",
            "agent_id": WORKER,
            "agent_role": "developer",
            "reason": "cart",
            "acquired_at": WHEN,
            "expires_at": "2026-03-01T10:05:00Z",
            "project_id": "shop-1a2b3c",
        }
    ],
    "activity_log": [
        {
            "id": 1,
            "agent_id": WORKER,
            "agent_role": "developer",
            "action_type": "file_edit",
            "summary": "edited",
            "details": '{"n": 1}',
            "timestamp": WHEN,
            "project_id": "shop-1a2b3c",
        }
    ],
    "decisions": [
        {
            "id": "d1",
            "agent_id": LEAD,
            "agent_role": "lead",
            "project_id": "shop-1a2b3c",
            "title": "use SQLite",
            "rationale": "small",
            "needs_confirmation": 1,
            "status": "confirmed",
            "auto_approved": 1,
            "confirmed_at": WHEN,
            "created_at": WHEN,
        }
    ],
    "chat_groups": [
        {
            "name": "cart team",
            "lead_id": LEAD,
            "project_id": "shop-1a2b3c",
            "roles": '["developer"]',
            "created_at": WHEN,
        }
    ],
    "chat_group_members": [
        {"group_name": "cart team", "lead_id": LEAD, "agent_id": WORKER, "added_at": WHEN},
        {"group_name": "cart team", "lead_id": LEAD, "agent_id": "human", "added_at": WHEN},
    ],
    "chat_group_messages": [
        {
            "id": "p1",
            "group_name": "cart team",
            "lead_id": LEAD,
            "from_agent_id": WORKER,
            "from_role": "developer",
            "content": "done?",
            "reactions": '{"+1": ["human"]}',
            "timestamp": WHEN,
        }
    ],
    "dag_tasks": [
        {
            "id": "cart",
            "lead_id": LEAD,
            "project_id": "shop-1a2b3c",
            "role": "developer",
            "title": "The cart",
            "depends_on": '["base"]',
            "files": '["src/cart.py"]',
            "dag_status": "running",
            "assigned_agent_id": WORKER,
            "created_at": WHEN,
            "started_at": WHEN,
        },
        {
            "id": "base",
            "lead_id": LEAD,
            "project_id": "shop-1a2b3c",
            "role": "developer",
            "dag_status": "done",
            "created_at": WHEN,
            "completed_at": WHEN,
        },
    ],
    "agent_memory": [
        {
            "id": 1,
            "lead_id": LEAD,
            "agent_id": WORKER,
            "key": "role",
            "value": "developer",
            "created_at": WHEN,
        }
    ],
    "agent_plans": [
        {
            "agent_id": WORKER,
            "lead_id": LEAD,
            "plan_json": '[{"content": "look", "status": "pending", "priority": "high"}]',
            "updated_at": WHEN,
        }
    ],
    "active_delegations": [
        {"delegation_id": "del-1", "agent_id": WORKER, "task": "build", "created_at": WHEN}
    ],
    "agent_file_history": [
        {
            "agent_id": WORKER,
            "agent_role": "developer",
            "lead_id": LEAD,
            "file_path": "src/cart.py",
            "first_touched_at": WHEN,
            "last_touched_at": WHEN,
            "touch_count": 3,
        }
    ],
    "collective_memory": [
        {
            "id": 1,
            "category": "gotcha",
            "key": "tests",
            "value": "run them twice",
            "source": WORKER,
            "project_id": "shop-1a2b3c",
            "created_at": WHEN,
            "last_used_at": WHEN,
            "use_count": 4,
        }
    ],
    "knowledge": [
        {
            "id": 1,
            "project_id": "shop-1a2b3c",
            "category": "core",
            "key": "money",
            "content": "prices are in cents",
            "metadata": '{"confidence": 0.9}',
            "created_at": WHEN,
            "updated_at": WHEN,
        }
    ],
    "task_cost_records": [
        {
            "agent_id": WORKER,
            "dag_task_id": "cart",
            "lead_id": LEAD,
            "project_id": "shop-1a2b3c",
            "input_tokens": 100,
            "output_tokens": 50,
            "cost_usd": 0.01,
            "created_at": WHEN,
            "updated_at": WHEN,
        }
    ],
    "session_retros": [{"id": 1, "lead_id": LEAD, "data": '{"tasks": 2}', "created_at": WHEN}],
    "timers": [
        {
            "id": "tmr-1",
            "agent_id": WORKER,
            "agent_role": "developer",
            "label": "look",
            "message": "look again",
            "delay_seconds": 300,
            "fire_at": WHEN,
            "created_at": WHEN,
            "repeat": 1,
        }
    ],
    "message_queue": [
        {
            "id": 1,
            "target_agent_id": WORKER,
            "message_type": "agent_message",
            "payload": "come",
            "status": "queued",
            "created_at": WHEN,
        }
    ],
}


def make_agent_yes(folder: Path) -> Path:
    return make(folder / ".agent-yes/store.sqlite", AGENT_YES, AGENT_YES_ROWS, wal=True)


def make_multishot(folder: Path) -> Path:
    return make(folder / ".multishot/database.sqlite", MULTISHOT, MULTISHOT_ROWS)


def make_agents(folder: Path) -> Path:
    return make(folder / ".vscode/agents.db", AGENTS, AGENTS_ROWS)


def make_flightdeck(folder: Path, **instead: Any) -> Path:
    """Create one, with other rows for some tables if given."""
    return make(folder / "flightdeck.db", FLIGHTDECK, FLIGHTDECK_ROWS | instead, wal=True)


def make_nanoclaw(folder: Path) -> Path:
    session = folder / "data/v2-sessions/ag-1/sess-1"
    make(session / "inbound.db", NANOCLAW_INBOUND, NANOCLAW_INBOUND_ROWS)
    make(session / "outbound.db", NANOCLAW_OUTBOUND, NANOCLAW_OUTBOUND_ROWS)
    return make(folder / "data/v2.db", NANOCLAW, NANOCLAW_ROWS, wal=True)


MAKERS: dict[str, Callable[[Path], Path]] = {
    "agent-yes": make_agent_yes,
    "agents": make_agents,
    "flightdeck": make_flightdeck,
    "multishot": make_multishot,
    "nanoclaw": make_nanoclaw,
}
SCHEMAS: dict[str, Sequence[str]] = {
    "agent-yes": (AGENT_YES,),
    "agents": (AGENTS,),
    "flightdeck": (FLIGHTDECK,),
    "multishot": (MULTISHOT,),
    "nanoclaw": (NANOCLAW, NANOCLAW_INBOUND, NANOCLAW_OUTBOUND),
}
