"""The rows of one project in each table: a condition, or the reason why the table is excluded.

`{project}` stands for the project's id.
"""

_OWN = "project_id = '{project}'"
_OF_RUN = f"run_id IN (SELECT id FROM runs WHERE {_OWN})"
_OF_SESSION = f"session_id IN (SELECT id FROM sessions WHERE {_OWN})"
_OF_TASK = f"(SELECT id FROM tasks WHERE {_OWN})"
_OF_ROUND = f"round_id IN (SELECT id FROM rounds WHERE {_OWN})"
_OF_GROUP = f"group_id IN (SELECT id FROM groups WHERE {_OWN})"
_AGENTS = f"""(
    SELECT agent_id FROM runs WHERE {_OWN} AND agent_id IS NOT NULL
    UNION SELECT agent_id FROM sessions WHERE {_OWN} AND agent_id IS NOT NULL
    UNION SELECT from_agent_id FROM handoffs WHERE {_OF_SESSION} AND from_agent_id IS NOT NULL
    UNION SELECT to_agent_id FROM handoffs WHERE {_OF_SESSION}
    UNION SELECT agent_id FROM tasks WHERE {_OWN} AND agent_id IS NOT NULL
    UNION SELECT assignee_id FROM tasks WHERE {_OWN} AND assignee_id IS NOT NULL
    UNION SELECT to_agent_id FROM delegations WHERE {_OWN}
    UNION SELECT agent_id FROM progress WHERE {_OWN}
    UNION SELECT agent_id FROM charges WHERE {_OWN} AND agent_id IS NOT NULL)"""

PROJECT_CONDITIONS = {
    "projects": "id = '{project}'",
    "settings": "scope = 'project:{project}'",
    "events": f"{_OWN} OR kind = 'output' AND subject IN (SELECT id FROM runs WHERE {_OWN})",
    "letters": f"""{_OWN} OR project_id IS NULL AND mailbox IN (
        SELECT 'session:' || id FROM sessions WHERE {_OWN})""",
    "schedules": _OWN,
    "occurrences": _OWN,
    "runs": _OWN,
    "launches": _OF_RUN,
    "resource_samples": _OF_RUN,
    "outputs": _OF_RUN,
    "output_chunks": _OF_RUN,
    "log_lines": _OF_RUN,
    "agents": f"id IN {_AGENTS}",
    "agent_versions": f"agent_id IN {_AGENTS}",
    "tool_grants": f"agent_id IN {_AGENTS}",
    "sessions": _OWN,
    "turns": _OF_SESSION,
    "session_state": _OF_SESSION,
    "handoffs": _OF_SESSION,
    "retros": _OF_SESSION,
    "passages": _OWN,
    "search_cursors": "TRUE",
    "charges": _OWN,
    "usage_totals": f"""scope = 'project:{{project}}'
        OR scope IN (SELECT 'run:' || id FROM runs WHERE {_OWN})
        OR scope IN (SELECT 'session:' || id FROM sessions WHERE {_OWN})""",
    "budgets": "scope = 'project:{project}'",
    "budget_reservations": _OF_RUN,
    "tasks": _OWN,
    "task_dependencies": f"task_id IN {_OF_TASK} AND depends_on_id IN {_OF_TASK}",
    "delegations": _OWN,
    "plans": _OWN,
    "progress": _OWN,
    "locks": _OWN,
    "file_touches": _OWN,
    "questions": _OWN,
    "groups": _OWN,
    "group_roles": _OF_GROUP,
    "group_members": _OF_GROUP,
    "posts": _OF_GROUP,
    "reactions": f"post_id IN (SELECT id FROM posts WHERE {_OF_GROUP})",
    "decisions": _OWN,
    "notes": _OWN,
    "races": _OWN,
    "rounds": _OWN,
    "attempts": _OWN,
    "verdicts": _OWN,
    "selections": _OF_ROUND,
    "grafts": _OF_ROUND,
}

_CHAT_REASON = "chats belong to channels, not to projects; their content is in the sessions"
_ACCESS_REASON = "it grants access, or says where a secret is"
EXCLUDED_TABLES = {
    "secrets": _ACCESS_REASON,
    "tokens": _ACCESS_REASON,
    "alerts": "its target may contain a secret",
    "idempotency_keys": "it belongs to a call, not to a project",
    "nodes": "machines belong to the store",
    "leaders": "machines belong to the store",
    "usage_counters": "it is only needed where the usage continues to be counted",
    "imports": "it is only needed where the files are imported again",
    "import_origins": "it is only needed where the rows are imported again",
    "checkpoints": "threads of frameworks belong to no project",
    "checkpoint_writes": "threads of frameworks belong to no project",
    **dict.fromkeys(
        ("channels", "places", "people", "senders", "wirings", "destinations", "messages",
         "conversations", "sandbox_outcomes", "question_cards", "host_requests", "letter_chains"),
        _CHAT_REASON,
    ),
}  # fmt: skip
