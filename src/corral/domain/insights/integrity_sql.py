"""SQL of the integrity checks. Most statements return a count and one example."""

from typing import NamedTuple

from corral.db.statement import Statement


class ParentReference(NamedTuple):
    """A column that refers to another table without a foreign key."""

    table: str
    column: str
    parent: str
    key: str = "id"
    when: str = "TRUE"
    """The rows to check: an ended row may outlive its parent."""


PARENT_REFERENCES = (
    ParentReference("launches", "run_id", "runs"),
    ParentReference("resource_samples", "run_id", "runs"),
    ParentReference("outputs", "run_id", "runs", when="state <> 'deleted'"),
    ParentReference("log_lines", "run_id", "runs", when="run_id <> ''"),
    ParentReference("output_chunks", "run_id", "outputs", "run_id"),
    ParentReference("budget_reservations", "run_id", "runs"),
    ParentReference("turns", "session_id", "sessions", when="session_id <> ''"),
    ParentReference("session_state", "session_id", "sessions"),
    ParentReference("handoffs", "session_id", "sessions"),
    ParentReference("retros", "session_id", "sessions"),
    ParentReference("sessions", "parent_id", "sessions"),
    ParentReference("sessions", "agent_id", "agents"),
    ParentReference("agent_versions", "agent_id", "agents"),
    ParentReference("tool_grants", "agent_id", "agents"),
    ParentReference("tasks", "project_id", "projects"),
    ParentReference("tasks", "conflicts_with_id", "tasks", when="ended_at IS NULL"),
    ParentReference("tasks", "blocked_by_id", "tasks", when="ended_at IS NULL"),
    ParentReference("task_dependencies", "task_id", "tasks"),
    ParentReference("task_dependencies", "depends_on_id", "tasks"),
    ParentReference("races", "project_id", "projects"),
    ParentReference("rounds", "race_id", "races"),
    ParentReference("rounds", "winner_id", "attempts"),
    ParentReference("attempts", "round_id", "rounds"),
    ParentReference("verdicts", "round_id", "rounds"),
    ParentReference("selections", "round_id", "rounds"),
    ParentReference("grafts", "round_id", "rounds"),
    ParentReference("locks", "project_id", "projects", when="ended_at IS NULL"),
    ParentReference("file_touches", "project_id", "projects"),
    ParentReference("notes", "project_id", "projects"),
    ParentReference("schedules", "project_id", "projects", when="ended_at IS NULL"),
    ParentReference("occurrences", "schedule_id", "schedules", when="state = 'checking'"),
    ParentReference("group_roles", "group_id", "groups"),
    ParentReference("group_members", "group_id", "groups"),
    ParentReference("posts", "group_id", "groups"),
    ParentReference("reactions", "post_id", "posts"),
    ParentReference("question_cards", "question_id", "questions", when="closed = 0"),
    ParentReference("places", "channel_id", "channels"),
    ParentReference("senders", "channel_id", "channels"),
    ParentReference("wirings", "channel_id", "channels"),
    ParentReference("wirings", "agent_id", "agents"),
    ParentReference("wirings", "place_id", "places"),
    ParentReference("destinations", "agent_id", "agents"),
    ParentReference("destinations", "place_id", "places"),
    ParentReference("messages", "place_id", "places"),
)


def _build_orphan_check(ref: ParentReference) -> Statement:
    table, column, parent, key, when = ref
    return Statement(f"""
        SELECT count(*), min({table}.{column}) FROM {table}
        WHERE {table}.{column} IS NOT NULL AND ({when}) AND NOT EXISTS (
            SELECT 1 FROM {parent} AS parent WHERE parent.{key} = {table}.{column})
    """)


ORPHANS = {f"{ref.table}.{ref.column}": _build_orphan_check(ref) for ref in PARENT_REFERENCES}


def _build_passage_check(kind: str, parent: str) -> Statement:
    return Statement(f"""
        SELECT count(*), min(subject) FROM passages
        WHERE kind = '{kind}' AND NOT EXISTS (
            SELECT 1 FROM {parent} AS parent WHERE parent.id = passages.subject)
    """)


PASSAGES = {
    "turn": _build_passage_check("turn", "sessions"),
    "output": _build_passage_check("output", "runs"),
    "note": _build_passage_check("note", "notes"),
}


def _build_recipient_check(kind: str, parent: str) -> Statement:
    """Build the check for letters to a missing session or place, which cannot be claimed."""
    return Statement(f"""
        SELECT count(*), min(seq) FROM letters
        WHERE state IN ('waiting', 'unconfirmed')
          AND substr(mailbox, 1, {len(kind) + 1}) = '{kind}:'
          AND NOT EXISTS (SELECT 1 FROM {parent} AS parent
                          WHERE parent.id = substr(letters.mailbox, {len(kind) + 2}))
    """)


LETTERS = {
    "session": _build_recipient_check("session", "sessions"),
    "place": _build_recipient_check("place", "places"),
}


def _build_project_check(table: str) -> Statement:
    return Statement(f"""
        SELECT count(*), min(scope) FROM {table}
        WHERE substr(scope, 1, 8) = 'project:' AND NOT EXISTS (
            SELECT 1 FROM projects WHERE projects.id = substr(scope, 9))
    """)


SCOPES = {"settings": _build_project_check("settings"), "budgets": _build_project_check("budgets")}

# -- counters --------------------------------------------------------------------------------------

_DEPENDENCIES = """task_dependencies JOIN tasks AS dependency ON dependency.id = depends_on_id
                WHERE task_id = tasks.id"""
_BLOCKING_DEPENDENCY = """(dependency.state IN ('failed', 'cancelled')
    OR (dependency.failed_dependencies > 0
        AND dependency.state IN ('pending', 'ready', 'blocked', 'paused')))"""

COUNTS = {
    # Excludes sessions that retention deletes in several transactions, turns first.
    "sessions": Statement("""
        SELECT count(*), min(sessions.id) FROM sessions LEFT JOIN (
            SELECT session_id, count(*) AS turns, min(number) AS first, max(number) AS last
            FROM turns GROUP BY session_id
        ) AS own ON own.session_id = sessions.id
        WHERE (sessions.closed_at IS NULL OR sessions.closed_at >= :forgotten)
          AND (coalesce(own.turns, 0) <> sessions.turns - sessions.parent_turn
               OR own.first <> sessions.parent_turn + 1 OR own.last <> sessions.turns)
    """),
    "forks": Statement("""
        SELECT count(*), min(sessions.id)
        FROM sessions JOIN sessions AS parent ON parent.id = sessions.parent_id
        WHERE parent.id = sessions.id OR sessions.parent_turn > parent.turns
    """),
    "groups": Statement("""
        SELECT count(*), min(id) FROM groups
        WHERE posts < (SELECT max(number) FROM posts WHERE posts.group_id = groups.id)
    """),
    "agents": Statement("""
        SELECT count(*), min(id) FROM agents WHERE NOT EXISTS (
            SELECT 1 FROM agent_versions
            WHERE agent_versions.agent_id = agents.id AND agent_versions.number = agents.version)
    """),
    # Only open tasks: ended ones keep their counts when their dependencies are pruned.
    "tasks": Statement(f"""
        SELECT count(*), min(tasks.id) FROM tasks
        WHERE ended_at IS NULL AND (
            open_dependencies <> (
                SELECT count(*) FROM {_DEPENDENCIES}
                  AND dependency.state NOT IN ('done', 'skipped'))
            OR failed_dependencies <> (
                SELECT count(*) FROM {_DEPENDENCIES}
                  AND {_BLOCKING_DEPENDENCY})
            OR state = 'ready' AND open_dependencies > 0
            OR state = 'pending' AND (open_dependencies = 0 OR failed_dependencies > 0)
            OR state = 'blocked' AND failed_dependencies = 0)
    """),
    "outputs": Statement("""
        SELECT count(*), min(outputs.run_id) FROM outputs JOIN (
            SELECT run_id, stream, sum(length(data)) AS bytes FROM output_chunks
            GROUP BY run_id, stream
        ) AS kept ON kept.run_id = outputs.run_id
        WHERE state = 'deleted' OR state = 'sealed' AND kept.bytes <> coalesce(
            CASE kept.stream WHEN 'output' THEN sealed_bytes ELSE stderr_bytes END, 0)
    """),
}

# -- totals ----------------------------------------------------------------------------------------

FIGURES = ("unpriced", "input", "output", "cache_read", "cache_write", "reasoning", "cost_micros")
_SUMS = """count(*) AS charges,
    CAST(sum(CASE WHEN cost_micros IS NULL THEN 1 ELSE 0 END) AS {integer}) AS unpriced,
    CAST(sum(input) AS {integer}) AS input, CAST(sum(output) AS {integer}) AS output,
    CAST(sum(cache_read) AS {integer}) AS cache_read,
    CAST(sum(cache_write) AS {integer}) AS cache_write,
    CAST(sum(reasoning) AS {integer}) AS reasoning,
    CAST(coalesce(sum(cost_micros), 0) AS {integer}) AS cost_micros, max(at) AS newest"""

NEXT_CHARGES = Statement("""
    SELECT max(seq) FROM (
        SELECT seq FROM charges WHERE seq > :after ORDER BY seq LIMIT :limit) AS piece
""")

# In batches, so that the sort stays small.
SUMMED = Statement(f"""
    SELECT project_id, agent_id, model, at / 86400000 AS day, {_SUMS}
    FROM charges WHERE seq > :after AND seq <= :upto AND run_id IS DISTINCT FROM ''
    GROUP BY project_id, agent_id, model, at / 86400000
""")

TOTALS = Statement(f"""
    SELECT scope, day, charges, {", ".join(FIGURES)} FROM usage_totals
    WHERE NOT (scope > 'run:' AND scope < 'run;' OR scope > 'session:' AND scope < 'session;')
""")


def _build_totals_check(kind: str, column: str) -> Statement:
    """Build the check of totals of runs or sessions.

    Totals outlive their charges, so they may be larger, but never smaller. They are pruned
    eventually: then they are missing, or start again from 0.
    """
    differs = " OR ".join(f"usage_totals.{name} <> summed.{name}" for name in FIGURES)
    is_less = " OR ".join(f"usage_totals.{name} < summed.{name}" for name in FIGURES)
    return Statement(f"""
        SELECT count(*), min(summed.scope) FROM (
            SELECT '{kind}:' || {column} AS scope, {_SUMS} FROM charges
            WHERE {column} <> '' GROUP BY {column}
        ) AS summed
        LEFT JOIN usage_totals ON usage_totals.scope = summed.scope AND usage_totals.day = ''
        WHERE usage_totals.scope IS NULL AND summed.newest >= :kept_since
           OR usage_totals.charges = summed.charges AND ({differs})
           OR :outlast = 1 AND usage_totals.charges <> summed.charges
              AND (usage_totals.charges < summed.charges OR {is_less})
    """)


TOTALS_OF = {
    "run": _build_totals_check("run", "run_id"),
    "session": _build_totals_check("session", "session_id"),
}

# -- files -----------------------------------------------------------------------------------------

KNOWN_RUNS = Statement("""
    SELECT id FROM runs WHERE id {is_listed}
    UNION SELECT run_id FROM outputs WHERE run_id {is_listed}
""")

KNOWN_FOLDERS = Statement("""
    SELECT id FROM channels WHERE id {is_listed} UNION SELECT id FROM agents WHERE id {is_listed}
""")

MESSAGES = Statement("""
    SELECT seq, created_at, data FROM messages WHERE seq > :after AND data IS NOT NULL
    ORDER BY seq LIMIT :limit
""")

# Open sessions of sandboxed agents from whose files messages were ingested.
SANDBOXED_SESSIONS = Statement("""
    SELECT conversations.session_id FROM conversations
    JOIN sessions ON sessions.id = conversations.session_id
    WHERE conversations.session_id > :after AND ingested_seq > 0 AND sessions.state = 'open'
    ORDER BY conversations.session_id LIMIT :limit
""")
