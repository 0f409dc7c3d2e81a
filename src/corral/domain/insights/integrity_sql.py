"""Rows that contradict one another: most statements count them and name one."""

from typing import NamedTuple

from corral.db.statement import Statement


class Belongs(NamedTuple):
    """A column that names a row of another table, though no foreign key says so."""

    table: str
    column: str
    parent: str
    key: str = "id"
    when: str = "TRUE"
    """Which rows: a row that is over may outlive what it belonged to."""


BELONGS = (
    Belongs("launches", "run_id", "runs"),
    Belongs("samples", "run_id", "runs"),
    Belongs("outputs", "run_id", "runs", when="state <> 'deleted'"),
    Belongs("log_lines", "run_id", "runs", when="run_id <> ''"),
    Belongs("output_chunks", "run_id", "outputs", "run_id"),
    Belongs("reservations", "run_id", "runs"),
    Belongs("turns", "session_id", "sessions", when="session_id <> ''"),
    Belongs("session_state", "session_id", "sessions"),
    Belongs("handoffs", "session_id", "sessions"),
    Belongs("retros", "session_id", "sessions"),
    Belongs("sessions", "parent_id", "sessions"),
    Belongs("sessions", "agent_id", "agents"),
    Belongs("agent_versions", "agent_id", "agents"),
    Belongs("grants", "agent_id", "agents"),
    Belongs("tasks", "project_id", "projects"),
    Belongs("tasks", "held_by", "tasks", when="ended_at IS NULL"),
    Belongs("tasks", "cause_id", "tasks", when="ended_at IS NULL"),
    Belongs("edges", "task_id", "tasks"),
    Belongs("edges", "needs_id", "tasks"),
    Belongs("races", "project_id", "projects"),
    Belongs("rounds", "race_id", "races"),
    Belongs("rounds", "winner_id", "attempts"),
    Belongs("attempts", "round_id", "rounds"),
    Belongs("verdicts", "round_id", "rounds"),
    Belongs("choices", "round_id", "rounds"),
    Belongs("grafts", "round_id", "rounds"),
    Belongs("locks", "project_id", "projects", when="ended_at IS NULL"),
    Belongs("touches", "project_id", "projects"),
    Belongs("notes", "project_id", "projects"),
    Belongs("schedules", "project_id", "projects", when="ended_at IS NULL"),
    Belongs("occurrences", "schedule_id", "schedules", when="state = 'checking'"),
    Belongs("group_roles", "group_id", "groups"),
    Belongs("members", "group_id", "groups"),
    Belongs("posts", "group_id", "groups"),
    Belongs("reactions", "post_id", "posts"),
    Belongs("cards", "question_id", "questions", when="settled = 0"),
    Belongs("places", "channel_id", "channels"),
    Belongs("senders", "channel_id", "channels"),
    Belongs("wirings", "channel_id", "channels"),
    Belongs("wirings", "agent_id", "agents"),
    Belongs("wirings", "place_id", "places"),
    Belongs("destinations", "agent_id", "agents"),
    Belongs("destinations", "place_id", "places"),
    Belongs("messages", "place_id", "places"),
)


def _orphans(each: Belongs) -> Statement:
    table, column, parent, key, when = each
    return Statement(f"""
        SELECT count(*), min({table}.{column}) FROM {table}
        WHERE {table}.{column} IS NOT NULL AND ({when}) AND NOT EXISTS (
            SELECT 1 FROM {parent} AS parent WHERE parent.{key} = {table}.{column})
    """)


ORPHANS = {f"{each.table}.{each.column}": _orphans(each) for each in BELONGS}


def _passages(kind: str, parent: str) -> Statement:
    return Statement(f"""
        SELECT count(*), min(subject) FROM passages
        WHERE kind = '{kind}' AND NOT EXISTS (
            SELECT 1 FROM {parent} AS parent WHERE parent.id = passages.subject)
    """)


PASSAGES = {
    "turn": _passages("turn", "sessions"),
    "output": _passages("output", "runs"),
    "note": _passages("note", "notes"),
}


def _unread(kind: str, parent: str) -> Statement:
    """Letters that nobody can ever take. Agents and people need no row to have a mailbox."""
    return Statement(f"""
        SELECT count(*), min(seq) FROM letters
        WHERE state IN ('waiting', 'unknown') AND substr(mailbox, 1, {len(kind) + 1}) = '{kind}:'
          AND NOT EXISTS (SELECT 1 FROM {parent} AS parent
                          WHERE parent.id = substr(letters.mailbox, {len(kind) + 2}))
    """)


LETTERS = {"session": _unread("session", "sessions"), "place": _unread("place", "places")}


def _chosen(table: str) -> Statement:
    return Statement(f"""
        SELECT count(*), min(scope) FROM {table}
        WHERE substr(scope, 1, 8) = 'project:' AND NOT EXISTS (
            SELECT 1 FROM projects WHERE projects.id = substr(scope, 9))
    """)


SCOPES = {"settings": _chosen("settings"), "budgets": _chosen("budgets")}

# -- what is counted beside what it counts ---------------------------------------------------------

_BROKEN_NEED = """(need.state IN ('failed', 'cancelled') OR (need.broken_needs > 0
    AND need.state IN ('pending', 'ready', 'blocked', 'paused')))"""

COUNTS = {
    # A session that is being forgotten goes over several transactions, its turns first.
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
    # What has ended keeps the counts that it ended with, whatever is forgotten since.
    "tasks": Statement(f"""
        SELECT count(*), min(tasks.id) FROM tasks
        WHERE ended_at IS NULL AND (
            open_needs <> (
                SELECT count(*) FROM edges JOIN tasks AS need ON need.id = edges.needs_id
                WHERE edges.task_id = tasks.id AND need.state NOT IN ('done', 'skipped'))
            OR broken_needs <> (
                SELECT count(*) FROM edges JOIN tasks AS need ON need.id = edges.needs_id
                WHERE edges.task_id = tasks.id AND {_BROKEN_NEED})
            OR state = 'ready' AND open_needs > 0
            OR state = 'pending' AND (open_needs = 0 OR broken_needs > 0)
            OR state = 'blocked' AND broken_needs = 0)
    """),
    "outputs": Statement("""
        SELECT count(*), min(outputs.run_id) FROM outputs JOIN (
            SELECT run_id, stream, sum(length(data)) AS bytes FROM output_chunks
            GROUP BY run_id, stream
        ) AS kept ON kept.run_id = outputs.run_id
        WHERE state = 'deleted' OR state = 'sealed' AND kept.bytes <> coalesce(
            CASE kept.stream WHEN 'output' THEN sealed_bytes ELSE errors_bytes END, 0)
    """),
}

# -- totals ----------------------------------------------------------------------------------------

FIGURES = ("unknown", "input", "output", "cache_read", "cache_write", "reasoning", "cost_micros")
_SUMS = """count(*) AS charges,
    CAST(sum(CASE WHEN cost_micros IS NULL THEN 1 ELSE 0 END) AS {integer}) AS unknown,
    CAST(sum(input) AS {integer}) AS input, CAST(sum(output) AS {integer}) AS output,
    CAST(sum(cache_read) AS {integer}) AS cache_read,
    CAST(sum(cache_write) AS {integer}) AS cache_write,
    CAST(sum(reasoning) AS {integer}) AS reasoning,
    CAST(coalesce(sum(cost_micros), 0) AS {integer}) AS cost_micros, max(at) AS newest"""

NEXT_CHARGES = Statement("""
    SELECT max(seq) FROM (
        SELECT seq FROM charges WHERE seq > :after ORDER BY seq LIMIT :limit) AS piece
""")

# A piece at a time: what is sorted for it stays small, and there are few of these groups.
SUMMED = Statement(f"""
    SELECT project_id, agent_id, model, at / 86400000 AS day, {_SUMS}
    FROM charges WHERE seq > :after AND seq <= :upto AND run_id IS DISTINCT FROM ''
    GROUP BY project_id, agent_id, model, at / 86400000
""")

TOTALS = Statement(f"""
    SELECT scope, day, charges, {", ".join(FIGURES)} FROM totals
    WHERE NOT (scope > 'run:' AND scope < 'run;' OR scope > 'session:' AND scope < 'session;')
""")


def _totals(kind: str, column: str) -> Statement:
    """Totals outlive their charges, so they may be more, and never less. Those of a run or a
    session are forgotten in the end: then they are missing, or have begun anew."""
    differs = " OR ".join(f"totals.{name} <> summed.{name}" for name in FIGURES)
    is_less = " OR ".join(f"totals.{name} < summed.{name}" for name in FIGURES)
    return Statement(f"""
        SELECT count(*), min(summed.scope) FROM (
            SELECT '{kind}:' || {column} AS scope, {_SUMS} FROM charges
            WHERE {column} <> '' GROUP BY {column}
        ) AS summed LEFT JOIN totals ON totals.scope = summed.scope AND totals.day = ''
        WHERE totals.scope IS NULL AND summed.newest >= :kept_since
           OR totals.charges = summed.charges AND ({differs})
           OR :outlast = 1 AND totals.charges <> summed.charges
              AND (totals.charges < summed.charges OR {is_less})
    """)


TOTALS_OF = {"run": _totals("run", "run_id"), "session": _totals("session", "session_id")}

# -- what there are files of -----------------------------------------------------------------------

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

# Sessions of boxed agents, of which something was taken over from their files.
BOXED = Statement("""
    SELECT talks.session_id FROM talks JOIN sessions ON sessions.id = talks.session_id
    WHERE talks.session_id > :after AND taken > 0 AND sessions.state = 'open'
    ORDER BY talks.session_id LIMIT :limit
""")
