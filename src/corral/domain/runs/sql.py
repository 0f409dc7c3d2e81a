"""SQL of runs."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import PrunableRows
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.runs.model import TRANSITIONS, Launch, ResourceSample, Run
from corral.kernel.pagination import LAST_ID

# Spelled exactly like the partial index conditions, so that the planner uses them.
_LIVE = "ended_at IS NULL"
_ACTIVE = "ended_at IS NULL AND state <> 'queued'"

IDS = IdColumn("run", "run", "runs")
RUNS = StatefulTable(Run, TRANSITIONS, table="runs", project="project_id")
_COLUMNS = RUNS.columns

ADD_LAUNCH = Statement("""
    INSERT INTO launches (run_id, host, labels, prompt, resume_session, env, secrets, approvals,
        raw, interactive, timeout_ms, idle_ms, grace_period_ms, max_restarts, budget_micros,
        max_output_bytes, sandbox, environment)
    VALUES (:run_id, :host, :labels, :prompt, :resume_session, :env, :secrets, :approvals,
        :raw, :interactive, :timeout_ms, :idle_ms, :grace_period_ms, :max_restarts, :budget_micros,
        :max_output_bytes, :sandbox, :environment)
""")

LAUNCH = Query(Launch, f"SELECT {columns_of(Launch)} FROM launches WHERE run_id = :run_id")

SET_ENVIRONMENT = Statement("""
    UPDATE launches SET environment = :environment
    WHERE run_id = :run_id
      AND EXISTS (SELECT 1 FROM runs WHERE id = :run_id AND fence = :fence)
    RETURNING run_id
""")

HEARTBEAT = Query(
    Run,
    f"""
    UPDATE runs
    SET lease_until = :until, seen_at = :now, output_bytes = :output_bytes,
        cpu_ms = coalesce(:cpu_ms, cpu_ms), peak_bytes = coalesce(:peak_bytes, peak_bytes)
    -- A stale fence changes nothing: another supervisor took the run over, or it has ended.
    WHERE id = :id AND fence = :fence AND {_ACTIVE}
    RETURNING {_COLUMNS}
""",
)

# A new supervisor for a run whose process outlived the old one, which the new fence rejects.
TAKE_OVER = Query(
    Run,
    f"""
    UPDATE runs
    SET owner = :owner, fence = fence + 1, lease_until = :until, seen_at = :now,
        supervisor_pid = :supervisor_pid, supervisor_token = :supervisor_token
    WHERE id = :id AND fence = :fence AND {_ACTIVE}
    RETURNING {_COLUMNS}
""",
)

SET_ATTENTION = Query(
    Run,
    f"""
    UPDATE runs
    SET attention = :attention, attention_at = :now, seen_at = :now,
        dialog = CAST(:dialog AS {{json}})
    WHERE id = :id AND fence = :fence AND {_LIVE}
      -- Only a change is written, so that it is reported once. The dialog is compared as text,
      -- because PostgreSQL cannot compare values of type JSON.
      AND (attention IS DISTINCT FROM :attention
        OR CAST(dialog AS TEXT) IS DISTINCT FROM CAST(:dialog AS TEXT))
    RETURNING {_COLUMNS}
""",
)

SET_DETAILS = Query(
    Run,
    f"""
    UPDATE runs
    SET model = coalesce(:model, model),
        provider_version = coalesce(:provider_version, provider_version),
        tokens = coalesce(:tokens, tokens), cost_micros = coalesce(:cost_micros, cost_micros),
        screen_rows = coalesce(:screen_rows, screen_rows),
        screen_columns = coalesce(:screen_columns, screen_columns)
    WHERE id = :id AND fence = :fence
    RETURNING {_COLUMNS}
""",
)

SET_DENIALS = Query(Run, f"UPDATE runs SET denials = :denials WHERE id = :id RETURNING {_COLUMNS}")

LINK_SESSION = Query(
    Run, f"UPDATE runs SET session_id = :session_id WHERE id = :id RETURNING {_COLUMNS}"
)


def _newest_in_state(condition: str = "") -> Listing[Run]:
    """List the runs in a state, newest first.

    Ordered by the state as well, although it is constant: ordered by id alone, PostgreSQL scans the
    primary key over the whole history until it has found enough runs of that state.
    """
    also = f"{condition} AND " if condition else ""
    query = Query(
        Run,
        f"""
        SELECT {_COLUMNS} FROM runs
        WHERE {also}(state, id) < (:state, :before) AND state >= :state
        ORDER BY state DESC, id DESC LIMIT :limit
    """,
    )
    return Listing(query, start={"before": LAST_ID}, key=lambda run: (run.id,))


# The supported combinations of filters, each with a statement that is served by an index.
LISTS = {
    (): RUNS.newest_first(),
    ("live",): RUNS.newest_first(_LIVE),
    ("state",): _newest_in_state(),
    ("project",): RUNS.newest_first("project_id = :project"),
    ("project", "state"): _newest_in_state("project_id = :project"),
    ("project", "live"): RUNS.newest_first(f"project_id = :project AND {_LIVE}"),
    ("session",): RUNS.newest_first("session_id = :session"),
    ("agent",): RUNS.newest_first("agent_id = :agent"),
}

BY_PID = Query(Run, f"SELECT {_COLUMNS} FROM runs WHERE pid = :pid ORDER BY id DESC LIMIT 1")
# At most one run with a name is live: the newest one. Several are read because the ids of machines
# with different clocks may be out of order.
BY_NAME = Query(
    Run,
    f"""
    SELECT {_COLUMNS} FROM runs
    WHERE name = :name AND name IS NOT NULL ORDER BY id DESC LIMIT 6
""",
)

# The runs that a recovery examines: those that have a process according to their state.
ACTIVE = Query(
    Run,
    f"""
    SELECT {_COLUMNS} FROM runs
    WHERE {_ACTIVE} AND id > :after ORDER BY id LIMIT :limit
""",
)

# Scans the active runs, whose number is bounded by the slots of the machines.
WITH_DIALOG = Query(
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

# Queued runs under an unexpired claim: a dispatcher is about to start them.
_CLAIMED = "id > '' AND ended_at IS NULL AND state = 'queued' AND lease_until > :now"
COUNT_CLAIMED = Statement(f"SELECT count(*) FROM runs WHERE {_CLAIMED}")
COUNT_CLAIMED_OF_HOST = Statement(f"""
    SELECT count(*) FROM runs WHERE {_CLAIMED} AND (host = :host OR node_id = :node_id)
""")

COUNT_ACTIVE_OF_AGENT = Statement(f"""
    SELECT count(*) FROM runs WHERE agent_id = :agent_id AND {_ACTIVE}
""")

# Fair between projects: the project with the fewest active runs goes first, then the one whose last
# start is longest ago. Only the oldest startable run of each project is a candidate.
NEXT_QUEUED = Query(
    Run,
    f"""
    SELECT {_COLUMNS} FROM runs WHERE id = (
        SELECT head.id
        FROM (
            SELECT coalesce(project_id, '') AS project, min(id) AS id
            FROM runs
            WHERE ended_at IS NULL AND state = 'queued'
              -- Not claimed by another dispatcher, or the claim has expired.
              AND (lease_until IS NULL OR lease_until <= :now)
              -- Due, and may run on this host.
              AND due_at <= :now AND (host IS NULL OR host = :host)
              -- Not skipped by the caller: this run, its agent, or its project. A skipped project
              -- still gets the runs that are pinned to this host.
              AND (:skipped = '[]' OR NOT EXISTS (
                  SELECT 1 FROM {{each_skipped}}
                  WHERE skipped.value IN (runs.id, agent_id)
                     OR (host IS NULL AND skipped.value = project_id)
              ))
              -- Every label that the run requires is offered here.
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
RELEASE_CLAIM = Statement("""
    UPDATE runs SET lease_until = NULL, node_id = NULL
    WHERE id = :id AND state = 'queued' RETURNING id
""")

DEFER = Query(
    Run,
    f"""
    UPDATE runs SET lease_until = NULL, node_id = NULL, due_at = :due, reason = :reason
    WHERE id = :id AND state = 'queued'
    RETURNING {_COLUMNS}
""",
)

# The next due time of a queued run, or the end of its claim: then it can be started.
NEXT_DUE = Statement("""
    SELECT min(CASE WHEN due_at > :now THEN due_at ELSE lease_until END) FROM runs
    WHERE ended_at IS NULL AND state = 'queued' AND (due_at > :now OR lease_until > :now)
""")

ADD_SAMPLE = Statement("""
    INSERT INTO resource_samples (run_id, at, cpu_ms, memory_bytes, processes)
    SELECT id, :at, :cpu_ms, :memory_bytes, :processes FROM runs
    WHERE id = :run_id AND fence = :fence
    ON CONFLICT (run_id, at) DO NOTHING
    RETURNING at
""")
SAMPLES = Query(
    ResourceSample,
    f"""
    SELECT {columns_of(ResourceSample)} FROM resource_samples
    WHERE run_id = :run_id ORDER BY at
""",
)

DELETE = Statement("DELETE FROM runs WHERE id = :id RETURNING id")
DELETE_LAUNCH = Statement("DELETE FROM launches WHERE run_id = :id RETURNING run_id")
DELETE_SAMPLES = Statement("DELETE FROM resource_samples WHERE run_id = :id RETURNING at")

PRUNABLE = PrunableRows(
    "runs",
    setting="runs.retention_ms",
    ended={"ended_at": "ended_at IS NOT NULL AND ended_at < :before"},
    batch=200,
)
