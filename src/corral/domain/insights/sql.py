"""SQL of the reports."""

from collections.abc import Iterable

from corral.db.listing import Listing
from corral.db.statement import Query, Statement, columns_of
from corral.domain.insights.model import (
    CrashedRun,
    DailyCost,
    NamedItem,
    PastLock,
    RaceSummary,
    RunSummary,
    Stats,
    SubmittedTask,
    TaskCost,
    TaskEvent,
)
from corral.domain.runs.model import Run
from corral.domain.tasks.model import TRANSITIONS
from corral.kernel.pagination import LAST_ID

_SUMMARY = columns_of(RunSummary, "r", project="p.name")

# Range conditions and ORDER BY state make PostgreSQL use the index by state. Ordered by id alone,
# it scans the primary key over the whole history until it has found enough runs of that state.
_OF_STATE = "r.state >= :state AND r.state <= :state"
_NEWEST = "ORDER BY r.state DESC, r.id DESC LIMIT :limit"

IN_STATE = Query(
    RunSummary,
    f"""
    SELECT {_SUMMARY} FROM runs AS r LEFT JOIN projects AS p ON p.id = r.project_id
    WHERE {_OF_STATE} {_NEWEST}
""",
)

# Scans the active runs, whose number is bounded by the slots of the machines.
ATTENTION = Query(
    RunSummary,
    f"""
    SELECT {_SUMMARY} FROM runs AS r LEFT JOIN projects AS p ON p.id = r.project_id
    WHERE {_OF_STATE} AND r.attention IS NOT NULL {_NEWEST}
""",
)

# Repeats the condition of the partial index; with `state IN (…)` SQLite would sort.
FAILED = Query(
    RunSummary,
    f"""
    SELECT {_SUMMARY} FROM runs AS r LEFT JOIN projects AS p ON p.id = r.project_id
    WHERE r.ended_at >= :since
      AND r.state NOT IN ('queued', 'starting', 'running', 'stopping', 'completed', 'cancelled')
    ORDER BY r.ended_at DESC LIMIT :limit
""",
)

RECENT = Query(
    RunSummary,
    f"""
    SELECT {_SUMMARY} FROM runs AS r LEFT JOIN projects AS p ON p.id = r.project_id
    WHERE r.ended_at IS NOT NULL ORDER BY r.ended_at DESC LIMIT :limit
""",
)

# Counts read at most `limit` entries of an index.
COUNT_RUNS = Statement("""
    SELECT count(*) FROM (SELECT 1 FROM runs WHERE state = :state LIMIT :limit) AS counted
""")

COUNT_LETTERS = Statement("""
    SELECT count(*) FROM (
        SELECT 1 FROM letters
        WHERE state = :state AND state IN ('unconfirmed', 'dead', 'refused', 'expired') LIMIT :limit
    ) AS counted
""")

COUNT_QUESTIONS = Statement("""
    SELECT count(*) FROM (
        SELECT 1 FROM questions WHERE state = 'open' AND deadline_at > :now LIMIT :limit
    ) AS counted
""")

COUNT_DECISIONS = Statement("""
    SELECT count(*) FROM (
        SELECT 1 FROM decisions WHERE state = 'proposed' AND deadline_at > :now LIMIT :limit
    ) AS counted
""")

SUBMITTED = Query(
    SubmittedTask,
    """
    SELECT t.id, t.key, t.title, t.project_id, p.name AS project, t.agent_id, t.submitted_at
    FROM tasks AS t LEFT JOIN projects AS p ON p.id = t.project_id
    WHERE t.state = 'submitted' AND t.check_command IS NULL AND t.submitted_at > 0
    ORDER BY t.submitted_at, t.id LIMIT :limit
""",
)

COUNT_SUBMITTED = Statement("""
    SELECT count(*) FROM (
        SELECT 1 FROM tasks
        WHERE state = 'submitted' AND check_command IS NULL AND submitted_at > 0 LIMIT :limit
    ) AS counted
""")

COUNT_OF_PROJECT = Statement("""
    SELECT count(*) FROM (
        SELECT 1 FROM runs WHERE project_id = :project_id AND state = :state LIMIT :limit
    ) AS counted
""")

LATEST = Query(
    Run,
    f"""
    SELECT {", ".join(Run.__struct_fields__)} FROM runs WHERE project_id = :project_id
    ORDER BY id DESC LIMIT 1
""",
)

CRASHED = Listing(
    Query(
        CrashedRun,
        f"""
        SELECT {columns_of(CrashedRun, "r", dir="p.dir")}
        FROM runs AS r LEFT JOIN projects AS p ON p.id = r.project_id
        -- Ordered by the constant state as well, so that PostgreSQL uses the index by state.
        WHERE (r.state, r.id) < ('crashed', :before) AND r.state >= 'crashed'
        ORDER BY r.state DESC, r.id DESC LIMIT :limit
    """,
    ),
    start={"before": LAST_ID},
    key=lambda run: (run.id,),
)


def _build_stats(key: str, label: str = "CAST(NULL AS TEXT)", join: str = "") -> Query[Stats]:
    """Build the statistics of runs that ended since a time, grouped by `key`, in one pass.

    `place` is the rank of a run by duration. The median is the middle duration, or the mean of the
    middle two; p95 is the smallest duration that 95 percent of the runs do not exceed. A run that
    never started has no duration.
    """
    return Query(
        Stats,
        f"""
        SELECT g.key, {label} AS label, g.runs, g.completed, g.failed, g.crashed, g.cancelled,
            g.timed_out, g.interrupted, g.median_ms, g.p95_ms, g.tokens, g.cost_micros, g.unpriced
        FROM (
            SELECT key, count(*) AS runs,
                count(CASE state WHEN 'completed' THEN 1 END) AS completed,
                count(CASE state WHEN 'failed' THEN 1 END) AS failed,
                count(CASE state WHEN 'crashed' THEN 1 END) AS crashed,
                count(CASE state WHEN 'cancelled' THEN 1 END) AS cancelled,
                count(CASE state WHEN 'timed_out' THEN 1 END) AS timed_out,
                count(CASE state WHEN 'interrupted' THEN 1 END) AS interrupted,
                (min(CASE WHEN place = (timed + 1) / 2 THEN duration END)
                 + min(CASE WHEN place = (timed + 2) / 2 THEN duration END)) / 2 AS median_ms,
                min(CASE WHEN place = (95 * timed + 99) / 100 THEN duration END) AS p95_ms,
                CAST(sum(tokens) AS BIGINT) AS tokens,
                CAST(sum(cost_micros) AS BIGINT) AS cost_micros,
                count(*) - count(cost_micros) AS unpriced
            FROM (
                SELECT key, state, tokens, cost_micros, duration,
                    count(duration) OVER (PARTITION BY key) AS timed,
                    row_number() OVER (
                        PARTITION BY key ORDER BY duration IS NULL, duration
                    ) AS place
                FROM (
                    SELECT {key} AS key, state, tokens, cost_micros,
                        CASE WHEN ended_at > started_at THEN ended_at - started_at
                             WHEN started_at IS NOT NULL THEN 0 END AS duration
                    FROM runs WHERE ended_at >= :since
                ) AS ended
            ) AS placed
            GROUP BY key
        ) AS g {join}
        WHERE coalesce(g.key, '') >= :first ORDER BY coalesce(g.key, '') LIMIT :limit
    """,
    )


BY_PROJECT = _build_stats("project_id", "p.name", "LEFT JOIN projects AS p ON p.id = g.key")
BY_AGENT = _build_stats("agent_id", "a.name", "LEFT JOIN agents AS a ON a.id = g.key")
BY_MODEL = _build_stats("model")
BY_PROVIDER = _build_stats("provider")
# Days since 1970 as text of fixed length; `list_stats` converts them to dates.
BY_DAY = _build_stats("substr(CAST(100000 + ended_at / 86400000 AS TEXT), 2)")

# An id exists in only one of these tables.
_NAMED = " UNION ALL ".join(
    f"SELECT t.id, {label} AS label FROM {{each_of_rows}} JOIN {table} AS t"
    " ON t.id = each.value ->> 'id'"
    for table, label in (
        ("projects", "t.name"),
        ("agents", "t.name"),
        ("sessions", "coalesce(t.title, t.id)"),
        ("runs", "coalesce(t.name, t.title, t.command)"),
        ("channels", "t.name"),
        ("places", "coalesce(t.name, t.platform_id)"),
        (
            "senders",
            "CASE WHEN t.person <> t.id THEN t.person WHEN t.name <> t.platform_id"
            " THEN t.name || ' (' || t.platform_id || ')' ELSE t.platform_id END",
        ),
    )
)
NAMES = Query(NamedItem, _NAMED)

# A prefix search; `high` sorts after all names with the prefix.
RUNS_NAMED = Query(
    NamedItem,
    """
    SELECT id, name AS label FROM runs
    WHERE name >= :low AND name < :high AND name IS NOT NULL ORDER BY name, id LIMIT :limit
""",
)
AGENTS_NAMED = Query(
    NamedItem,
    """
    SELECT id, name AS label FROM agents
    WHERE name >= :low AND name < :high ORDER BY name LIMIT :limit
""",
)

# `scope || ''` keeps the engines from using the index by scope, which would read all days.
COSTS = Query(
    DailyCost,
    """
    SELECT scope, day, charges, unpriced, input + output + cache_read + cache_write AS tokens,
        CASE WHEN charges > unpriced THEN cost_micros END AS cost_micros
    FROM usage_totals
    WHERE day >= :since AND day > '' AND scope || '' > :low AND scope || '' < :high
    ORDER BY day, scope LIMIT :limit
""",
)


def _build_task_costs(which: str) -> Query[TaskCost]:
    """Build the costs of tasks. A run works on one task at a time; its charges belong to that."""
    return Query(
        TaskCost,
        f"""
        SELECT t.id, t.key, t.title, t.state, t.agent_id, t.run_id,
            count(c.seq) AS charges, count(c.seq) - count(c.cost_micros) AS unpriced,
            CAST(coalesce(sum(c.input + c.output + c.cache_read + c.cache_write), 0) AS BIGINT)
                AS tokens,
            CAST(sum(c.cost_micros) AS BIGINT) AS cost_micros
        FROM (
            SELECT id, key, title, state, agent_id, run_id, started_at, (
                SELECT min(n.started_at) FROM tasks AS n
                WHERE n.run_id = tasks.run_id AND n.run_id IS NOT NULL
                  AND (n.started_at, n.id) > (tasks.started_at, tasks.id)
            ) AS next_at
            FROM tasks
            WHERE {which} AND run_id IS NOT NULL AND started_at IS NOT NULL
            ORDER BY id LIMIT :limit
        ) AS t
        LEFT JOIN charges AS c ON c.run_id = t.run_id AND c.at >= t.started_at
            AND (t.next_at IS NULL OR c.at < t.next_at)
        GROUP BY t.id, t.key, t.title, t.state, t.agent_id, t.run_id
        ORDER BY t.id
    """,
    )


TASK_COSTS = Listing(
    _build_task_costs("project_id = :project AND id > :after"),
    start={"after": ""},
    key=lambda cost: (cost.id,),
)
COST_OF_TASK = _build_task_costs("id = :id")

# A running attempt costs what its run reports, plus the cost of its earlier runs.
RACES = Query(
    RaceSummary,
    """
    SELECT r.id, r.project_id, r.name, r.state, r.created_at, r.created_by, r.ended_at,
        r.budget_micros,
        (SELECT CAST(sum(cost) AS BIGINT) FROM (
            SELECT CASE WHEN u.id IS NULL THEN a.cost_micros
                WHEN u.cost_micros IS NOT NULL OR a.previous_cost_micros IS NOT NULL
                THEN coalesce(u.cost_micros, 0) + coalesce(a.previous_cost_micros, 0) END AS cost
            FROM attempts AS a LEFT JOIN runs AS u ON u.id = a.run_id AND a.state = 'running'
            WHERE a.race_id = r.id
            UNION ALL SELECT v.cost_micros FROM verdicts AS v WHERE v.race_id = r.id
        ) AS costs) AS spent_micros,
        l.number AS rounds, l.state AS round_state, l.needs_driver,
        (SELECT count(*) FROM attempts AS a WHERE a.round_id = l.id) AS attempts,
        (SELECT count(*) FROM attempts AS a WHERE a.round_id = l.id AND a.ended_at IS NULL)
            AS under_way,
        (SELECT count(*) FROM attempts AS a WHERE a.round_id = l.id AND a.state = 'completed'
            AND coalesce(a.passed, 1) = 1) AS can_win,
        d.number AS winner_round, w.number AS winner_number, w.agent AS winner_agent
    FROM races AS r
    JOIN rounds AS l ON l.race_id = r.id
        AND l.number = (SELECT max(number) FROM rounds WHERE race_id = r.id)
    LEFT JOIN rounds AS d ON d.race_id = r.id AND d.number = (
        SELECT max(number) FROM rounds WHERE race_id = r.id AND winner_id IS NOT NULL
    )
    LEFT JOIN attempts AS w ON w.id = d.winner_id
    WHERE r.id {is_listed} ORDER BY r.id DESC
""",
)

# -- board history ---------------------------------------------------------------------------------


def _select_last_event(verbs: Iterable[str]) -> str:
    """Return the subquery for a task's last event with one of these verbs, up to a time."""
    listed = ", ".join(f"'{verb}'" for verb in verbs)
    return f"""(
        SELECT seq FROM {{events_of_subject}}
        WHERE subject = tasks.id AND at <= :at AND verb IN ({listed})
        ORDER BY {{feed_key_desc}} LIMIT 1
    )"""


_TASK_AT = f"""SELECT id, key, title, role, coalesce(archived_at, 0) AS left_at,
    {_select_last_event([*TRANSITIONS.initial_states, *TRANSITIONS.verbs])} AS moved,
    {_select_last_event(["claim"])} AS claimed
    FROM tasks WHERE project_id = :project AND created_at <= :at"""

# The tasks that are still on the board, and those that were archived after the time.
TASKS_AT = Statement(f"{_TASK_AT} AND archived_at IS NULL AND id > :id ORDER BY id LIMIT :limit")
ARCHIVED_SINCE = Statement(
    f"{_TASK_AT} AND archived_at IS NOT NULL AND (archived_at, id) > (:archived_at, :id)"
    " ORDER BY archived_at, id LIMIT :limit"
)

TASK_EVENTS = Query(
    TaskEvent,
    """
    SELECT seq, at, actor, verb, data FROM events WHERE seq {is_numbered}
""",
)

# Scans the grants backwards from the time, up to `looked_at`; most were released long before.
LOCKS_AT = Query(
    PastLock,
    """
    SELECT id, path, mode, owner, run_id, reason, held_at, ended_at FROM (
        SELECT 'lck_' || seq AS id, path, mode, owner, run_id, reason, held_at, ended_at,
            lease_until
        FROM locks
        WHERE project_id = :project AND held_at IS NOT NULL AND held_at <= :at
        ORDER BY held_at DESC LIMIT :looked_at
    ) AS granted
    WHERE lease_until > :at AND (ended_at IS NULL OR ended_at > :at)
    ORDER BY held_at DESC LIMIT :limit
""",
)
