from corral.db.lookup import IdColumn
from corral.db.retention import Scoped
from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable
from corral.domain.runs.model import MOVES, Launch, Run, Sample

_COLUMNS = """id, name, title, state, project_id, session_id, agent_id, agent_version, parent_id,
    provider, provider_version, model, mode, command, args, cwd, owner, fence, lease_until,
    seen_at, node_id, host, boot_id, pid, start_token, keeper_pid, keeper_token, attempts,
    quick_failures, due_at, stop_kind, stop_reason, exit_code, signal, reason, attention,
    attention_at, dialog, screen_rows, screen_columns, tokens, cost_micros, output_bytes, cpu_ms,
    peak_bytes, created_at, started_at, ended_at, denials"""

# In words that the partial indexes have: a run that is not over has no end.
_LIVE = "ended_at IS NULL"
_ACTIVE = "ended_at IS NULL AND state <> 'queued'"

IDS = IdColumn("run", "run", "runs")
RUNS = StateTable(Run, MOVES, table="runs", columns=_COLUMNS, project="project_id")

ADD_LAUNCH = Statement("""
    INSERT INTO launches (run_id, host, labels, prompt, resume_session, env, secrets, approvals,
        raw, interactive, timeout_ms, idle_ms, grace_ms, restarts, budget_micros, output_cap,
        sandbox, environment)
    VALUES (:run_id, :host, :labels, :prompt, :resume_session, :env, :secrets, :approvals,
        :raw, :interactive, :timeout_ms, :idle_ms, :grace_ms, :restarts, :budget_micros,
        :output_cap, :sandbox, :environment)
""")

LAUNCH = Query(
    Launch,
    """
    SELECT run_id, host, labels, prompt, resume_session, env, secrets, approvals, raw, interactive,
        timeout_ms, idle_ms, grace_ms, restarts, budget_micros, output_cap, sandbox,
        environment
    FROM launches WHERE run_id = :run_id
""",
)

DESCRIBE = Statement("""
    UPDATE launches SET environment = :environment WHERE run_id = :run_id RETURNING run_id
""")

# What a keeper says of its run; a lease renewed is no event.
HEARTBEAT = Query(
    Run,
    f"""
    UPDATE runs
    SET lease_until = :until, seen_at = :now, output_bytes = :output_bytes,
        cpu_ms = coalesce(:cpu_ms, cpu_ms), peak_bytes = coalesce(:peak_bytes, peak_bytes)
    WHERE id = :id AND fence = :fence AND {_ACTIVE}
    RETURNING {_COLUMNS}
""",
)

# A keeper takes a run whose process lives on without one.
TAKE_OVER = Query(
    Run,
    f"""
    UPDATE runs
    SET owner = :owner, fence = fence + 1, lease_until = :until, seen_at = :now,
        keeper_pid = :keeper_pid, keeper_token = :keeper_token
    WHERE id = :id AND fence = :fence AND {_ACTIVE}
    RETURNING {_COLUMNS}
""",
)

# The dialog as text: values of type JSON cannot be compared on both engines.
SET_ATTENTION = Query(
    Run,
    f"""
    UPDATE runs
    SET attention = :attention, attention_at = :now, seen_at = :now,
        dialog = CAST(:dialog AS {{json}})
    WHERE id = :id AND fence = :fence AND {_LIVE}
      AND (attention IS DISTINCT FROM :attention
        OR CAST(dialog AS TEXT) IS DISTINCT FROM CAST(:dialog AS TEXT))
    RETURNING {_COLUMNS}
""",
)

SET_TOLD = Query(
    Run,
    f"""
    UPDATE runs
    SET model = coalesce(:model, model),
        provider_version = coalesce(:provider_version, provider_version),
        tokens = coalesce(:tokens, tokens), cost_micros = coalesce(:cost_micros, cost_micros),
        screen_rows = coalesce(:screen_rows, screen_rows),
        screen_columns = coalesce(:screen_columns, screen_columns)
    WHERE id = :id
    RETURNING {_COLUMNS}
""",
)

SET_DENIALS = Query(Run, f"UPDATE runs SET denials = :denials WHERE id = :id RETURNING {_COLUMNS}")

LINK_SESSION = Query(
    Run, f"UPDATE runs SET session_id = :session_id WHERE id = :id RETURNING {_COLUMNS}"
)

_NEWEST = "id < :before ORDER BY id DESC LIMIT :limit"
_RUNS = f"SELECT {_COLUMNS} FROM runs WHERE"

# Ordered by the state too, though it is one: by the id alone PostgreSQL would walk along all runs
# that ever were until it has met enough of that state.
_NEWEST_IN_STATE = """(state, id) < (:state, :before) AND state >= :state
    ORDER BY state DESC, id DESC LIMIT :limit"""

# What a list of runs may be asked for, and the statement that has an index for it.
LISTS = {
    (): Query(Run, f"{_RUNS} {_NEWEST}"),
    ("live",): Query(Run, f"{_RUNS} {_LIVE} AND {_NEWEST}"),
    ("state",): Query(Run, f"{_RUNS} {_NEWEST_IN_STATE}"),
    ("project",): Query(Run, f"{_RUNS} project_id = :project AND {_NEWEST}"),
    ("project", "state"): Query(Run, f"{_RUNS} project_id = :project AND {_NEWEST_IN_STATE}"),
    ("project", "live"): Query(Run, f"{_RUNS} project_id = :project AND {_LIVE} AND {_NEWEST}"),
    ("session",): Query(Run, f"{_RUNS} session_id = :session AND {_NEWEST}"),
    ("agent",): Query(Run, f"{_RUNS} agent_id = :agent AND {_NEWEST}"),
}

BY_PID = Query(Run, f"SELECT {_COLUMNS} FROM runs WHERE pid = :pid ORDER BY id DESC LIMIT 1")
BY_NAME = Query(
    Run,
    f"""
    SELECT {_COLUMNS} FROM runs
    WHERE name = :name AND name IS NOT NULL ORDER BY id DESC LIMIT 6
""",
)

# Everything that a recovery must judge: what is said to have a process.
ACTIVE = Query(
    Run,
    f"""
    SELECT {_COLUMNS} FROM runs
    WHERE {_ACTIVE} AND id > :after ORDER BY id LIMIT :limit
""",
)

# Scans the active runs, whose number is limited by the machines.
ASKING = Query(
    Run,
    f"""
    SELECT {_COLUMNS} FROM runs
    WHERE {_ACTIVE} AND id > '' AND dialog IS NOT NULL ORDER BY id DESC LIMIT :limit
""",
)

COUNT_ACTIVE = Statement(f"""
    SELECT count(*) FROM runs WHERE id > '' AND {_ACTIVE} AND mode <> 'recorded'
""")

COUNT_ACTIVE_OF_HOST = Statement(f"""
    SELECT count(*) FROM runs
    WHERE id > '' AND {_ACTIVE} AND mode <> 'recorded' AND host = :host
""")

# Those that somebody is about to start: anywhere, and on one machine.
_CLAIMED = "id > '' AND ended_at IS NULL AND state = 'queued' AND lease_until > :now"
COUNT_CLAIMED = Statement(f"SELECT count(*) FROM runs WHERE {_CLAIMED}")
COUNT_CLAIMED_OF_HOST = Statement(f"""
    SELECT count(*) FROM runs WHERE {_CLAIMED} AND (host = :host OR node_id = :node_id)
""")

COUNT_ACTIVE_OF_AGENT = Statement(f"""
    SELECT count(*) FROM runs WHERE agent_id = :agent_id AND {_ACTIVE}
""")

# The next run to start: of the project that has the fewest going, then of the one whose last start
# is longest ago. Only the head of each project's line is looked at.
NEXT_QUEUED = Query(
    Run,
    f"""
    SELECT {_COLUMNS} FROM runs WHERE id = (
        SELECT head.id
        FROM (
            SELECT coalesce(project_id, '') AS project, min(id) AS id
            FROM runs
            WHERE ended_at IS NULL AND state = 'queued'
              AND (lease_until IS NULL OR lease_until <= :now)
              AND due_at <= :now AND (host IS NULL OR host = :host)
              AND (:passed = '[]' OR NOT EXISTS (
                  SELECT 1 FROM {{each_passed}}
                  WHERE passed.value IN (runs.id, agent_id)
                     OR (host IS NULL AND passed.value = project_id)
              ))
              AND NOT EXISTS (
                  SELECT 1 FROM launches, {{each_wanted_label}}
                  WHERE launches.run_id = runs.id
                    AND wanted.value NOT IN (SELECT offered.value FROM {{each_offered_label}})
              )
            GROUP BY coalesce(project_id, '')
        ) AS head
        LEFT JOIN (
            SELECT coalesce(project_id, '') AS project, count(*) AS going
            FROM runs WHERE id > '' AND {_ACTIVE} GROUP BY coalesce(project_id, '')
        ) AS busy ON busy.project = head.project
        LEFT JOIN projects ON projects.id = head.project
        ORDER BY coalesce(busy.going, 0), coalesce(projects.last_run_at, 0), head.id LIMIT 1
    )
""",
)

CLAIM = Statement("""
    UPDATE runs SET lease_until = :until, node_id = :node_id
    WHERE id = :id AND state = 'queued' AND (lease_until IS NULL OR lease_until <= :now)
    RETURNING id
""")
UNCLAIM = Statement("""
    UPDATE runs SET lease_until = NULL, node_id = NULL
    WHERE id = :id AND state = 'queued' RETURNING id
""")

PUT_OFF = Query(
    Run,
    f"""
    UPDATE runs SET lease_until = NULL, node_id = NULL, due_at = :due, reason = :reason
    WHERE id = :id AND state = 'queued'
    RETURNING {_COLUMNS}
""",
)

# What is claimed may be started by others when the claim is over.
NEXT_DUE = Statement("""
    SELECT min(CASE WHEN due_at > :now THEN due_at ELSE lease_until END) FROM runs
    WHERE ended_at IS NULL AND state = 'queued' AND (due_at > :now OR lease_until > :now)
""")

SAMPLE = Statement("""
    INSERT INTO samples (run_id, at, cpu_ms, memory_bytes, processes)
    VALUES (:run_id, :at, :cpu_ms, :memory_bytes, :processes)
    ON CONFLICT (run_id, at) DO NOTHING
""")
SAMPLES = Query(
    Sample,
    """
    SELECT at, cpu_ms, memory_bytes, processes FROM samples WHERE run_id = :run_id ORDER BY at
""",
)

DELETE = Statement("DELETE FROM runs WHERE id = :id RETURNING id")
DELETE_LAUNCH = Statement("DELETE FROM launches WHERE run_id = :id RETURNING run_id")
DELETE_SAMPLES = Statement("DELETE FROM samples WHERE run_id = :id RETURNING at")

_OLD = "FROM runs WHERE ended_at IS NOT NULL AND ended_at < :before AND {whose}"
ENDED_BEFORE = Scoped(f"SELECT id {_OLD} ORDER BY ended_at LIMIT :limit {{skip_locked}}")
COUNT_ENDED_BEFORE = Scoped(f"SELECT count(*) {_OLD}")
