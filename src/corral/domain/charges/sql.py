from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.charges.counters import Figures
from corral.domain.charges.model import Budget, Charge, Over, Reservation, Total
from corral.kernel.redaction_policy import Policy

_CHARGE = """'chg_' || seq AS id, run_id, session_id, project_id, agent_id, provider, model,
    input, output, cache_read, cache_write, reasoning, cost_micros, source, prices_version, key,
    at"""

ADD = Query(
    Charge,
    f"""
    INSERT INTO charges (run_id, session_id, project_id, agent_id, provider, model,
        input, output, cache_read, cache_write, reasoning, cost_micros, source, key, at)
    VALUES (:run_id, :session_id, :project_id, :agent_id, :provider, :model,
        :input, :output, :cache_read, :cache_write, :reasoning, :cost_micros, :source, :key, :at)
    ON CONFLICT (coalesce(run_id, session_id, ''), key) WHERE key IS NOT NULL DO NOTHING
    RETURNING {_CHARGE}
""",
)

MARK_IMPORTED = Statement("""
    UPDATE charges SET imported_at = :now WHERE seq {is_numbered}
""")

SEEN = Statement("""
    SELECT 1 FROM charges
    WHERE coalesce(run_id, session_id, '') = :owner AND key = :key AND key IS NOT NULL
""")

# One statement for all rows. `all` comes first: whoever has that row may take the others, so two
# who add at the same time cannot wait for each other.
ADD_UP = Statement(
    """
    INSERT INTO totals (scope, day, charges, unknown, input, output, cache_read, cache_write,
        reasoning, cost_micros, updated_at)
    SELECT column1, column2, :charges, :unknown, :input, :output, :cache_read, :cache_write,
        :reasoning, :cost_micros, :now
    FROM (VALUES ('all', ''), ('all', :day), (:agent, ''), (:agent, :day), (:model, ''),
        (:model, :day), (:project, ''), (:project, :day), (:run, ''), (:session, '')) AS touched
    WHERE column1 IS NOT NULL
    ON CONFLICT (scope, day) DO UPDATE SET
        charges = totals.charges + excluded.charges,
        unknown = totals.unknown + excluded.unknown,
        input = totals.input + excluded.input,
        output = totals.output + excluded.output,
        cache_read = totals.cache_read + excluded.cache_read,
        cache_write = totals.cache_write + excluded.cache_write,
        reasoning = totals.reasoning + excluded.reasoning,
        cost_micros = totals.cost_micros + excluded.cost_micros,
        updated_at = excluded.updated_at
""",
    # The scopes are written through a list of values. A model that looks like a secret is redacted
    # and not rejected as in other statements: its cost must be counted.
    policies=dict.fromkeys(("agent", "model", "project", "run", "session", "day"), Policy.REDACTED),
)

_SUMS = """charges, unknown, input, output, cache_read, cache_write, reasoning, cost_micros,
    updated_at"""
TAKE_TOTAL = Statement(f"""
    INSERT INTO totals (scope, day, {_SUMS})
    VALUES (:scope, :day, :charges, :unknown, :input, :output, :cache_read, :cache_write,
        :reasoning, :cost_micros, :now)
""")
TOTALS_AS_ALL = Statement(f"""
    INSERT INTO totals (scope, day, {_SUMS})
    SELECT 'all', day, {_SUMS} FROM totals WHERE scope = :scope RETURNING day
""")

_FIGURES = "input, output, cache_read, cache_write, reasoning, cost_micros"

COUNTER = Query(Figures, f"SELECT {_FIGURES} FROM counters WHERE name = :name")

SET_COUNTER = Statement(f"""
    INSERT INTO counters (name, {_FIGURES}, updated_at)
    VALUES (:name, :input, :output, :cache_read, :cache_write, :reasoning, :cost_micros, :now)
    ON CONFLICT (name) DO UPDATE SET input = excluded.input, output = excluded.output,
        cache_read = excluded.cache_read, cache_write = excluded.cache_write,
        reasoning = excluded.reasoning, cost_micros = excluded.cost_micros,
        updated_at = excluded.updated_at
""")

# A row of the run '' is no charge: it holds a number that was given out before a restore.
_IS_CHARGE = "run_id IS DISTINCT FROM ''"

GET = Query(Charge, f"SELECT {_CHARGE} FROM charges WHERE seq = :seq AND {_IS_CHARGE}")

ALL = Query(
    Charge,
    f"""
    SELECT {_CHARGE} FROM charges WHERE seq < :before AND {_IS_CHARGE}
    ORDER BY seq DESC LIMIT :limit
""",
)


def _of(column: str) -> Query[Charge]:
    return Query(
        Charge,
        f"""
        SELECT {_CHARGE} FROM charges WHERE {column} = :id AND seq < :before
        ORDER BY seq DESC LIMIT :limit
    """,
    )


OF = {"run": _of("run_id"), "session": _of("session_id"), "project": _of("project_id")}
RUN_IDS = IdColumn("run", "run", "runs")
SESSION_IDS = IdColumn("session", "ses", "sessions")

# A scope with only unknown costs has an unknown cost.
_TOTAL = """scope, day, charges, unknown, input, output, cache_read, cache_write, reasoning,
    CASE WHEN charges > unknown THEN cost_micros END AS cost_micros"""

TOTAL = Query(Total, f"SELECT {_TOTAL} FROM totals WHERE scope = :scope AND day = :day")

DAYS = Query(
    Total,
    f"""
    SELECT {_TOTAL} FROM totals WHERE scope = :scope AND day > '' AND day < :before
    ORDER BY day DESC LIMIT :limit
""",
)

UNPRICED = Query(
    Charge,
    f"""
    SELECT {_CHARGE} FROM charges
    WHERE cost_micros IS NULL AND model IS NOT NULL AND prices_version IS NULL AND seq > :after
    ORDER BY seq LIMIT :limit
""",
)

# What an older table of prices did not know.
UNPRICED_BEFORE = Query(
    Charge,
    f"""
    SELECT {_CHARGE} FROM charges
    WHERE cost_micros IS NULL AND model IS NOT NULL AND prices_version <> :version AND seq > :after
    ORDER BY seq LIMIT :limit
""",
)

PRICE = Query(
    Charge,
    f"""
    UPDATE charges SET cost_micros = :cost_micros, source = 'prices', prices_version = :version
    WHERE seq = :seq AND cost_micros IS NULL RETURNING {_CHARGE}
""",
)

TRIED = Statement("""
    UPDATE charges SET prices_version = :version WHERE seq = :seq AND cost_micros IS NULL
""")

KEPT = Retention(
    "charges",
    setting="charges.keep_ms",
    born="at",
    over="at < :before",
    key="seq",
    project="project_id",
    imported="imported_at",
)

# What everything, a project, an agent or a model has cost since ever is never forgotten.
TOTALS_KEPT = Retention(
    "totals",
    setting="totals.keep_ms",
    born=None,
    over="""updated_at < :before AND (day > ''
        OR scope > 'run:' AND scope < 'run;' OR scope > 'session:' AND scope < 'session;')""",
    key="scope",
)

# For as long as the totals: of a thread that goes on after that, all would be charged again.
COUNTERS_KEPT = Retention(
    "counters",
    setting="totals.keep_ms",
    born=None,
    over="updated_at < :before",
    key="name",
)

# -- budgets ----------------------------------------------------------------------------------

_DAY = "CASE b.period WHEN 'day' THEN :today ELSE '' END"

# Of what a run was promised, that which it has spent stands in the totals already.
_RESERVED = f"""
    SELECT sum(CASE WHEN r.micros > coalesce(own.cost_micros, 0)
                    THEN r.micros - coalesce(own.cost_micros, 0) ELSE 0 END)
    FROM reservations AS r
    LEFT JOIN totals AS own ON own.scope = 'run:' || r.run_id AND own.day = ''
    WHERE r.scope = b.scope AND r.period = b.period AND r.day = {_DAY} AND r.run_id <> :run_id
"""

_BUDGET = f"""b.scope, b.period, b.limit_micros, b.updated_at, b.updated_by,
    coalesce((SELECT t.cost_micros FROM totals AS t
              WHERE t.scope = b.scope AND t.day = {_DAY}), 0) AS spent_micros,
    CAST(coalesce(({_RESERVED}), 0) AS BIGINT) AS reserved_micros"""

COVERING = Query(
    Budget,
    f"SELECT {_BUDGET} FROM budgets AS b WHERE b.scope IN ('all', :project, :agent)",
)

LIST_BUDGETS = Query(
    Budget,
    f"""
    SELECT {_BUDGET} FROM budgets AS b WHERE (b.scope, b.period) > (:scope, :period)
    ORDER BY b.scope, b.period LIMIT :limit
""",
)

GET_BUDGET = Query(
    Budget,
    f"SELECT {_BUDGET} FROM budgets AS b WHERE b.scope = :scope AND b.period = :period",
)

OVER = Query(
    Over,
    f"""
    SELECT b.scope, b.period, b.limit_micros,
        coalesce(t.cost_micros, 0) + coalesce(CAST(:pending AS BIGINT), 0) AS spent_micros
    FROM budgets AS b LEFT JOIN totals AS t ON t.scope = b.scope AND t.day = {_DAY}
    WHERE b.scope IN ('all', :run, :project, :agent)
      AND (CAST(:pending AS BIGINT) IS NULL
           OR coalesce(t.cost_micros, 0) + CAST(:pending AS BIGINT) >= b.limit_micros)
""",
)

SET_BUDGET = Statement("""
    INSERT INTO budgets (scope, period, limit_micros, updated_at, updated_by)
    VALUES (:scope, :period, :limit_micros, :now, :actor)
    ON CONFLICT (scope, period) DO UPDATE SET limit_micros = excluded.limit_micros,
        updated_at = excluded.updated_at, updated_by = excluded.updated_by
""")

REMOVE_BUDGET = Statement(
    "DELETE FROM budgets WHERE scope = :scope AND period = :period RETURNING scope"
)

REMOVE_SCOPE = Statement("DELETE FROM budgets WHERE scope = :scope RETURNING period")

_RESERVATION = "run_id, scope, period, day, micros"

RESERVE = Query(
    Reservation,
    f"""
    INSERT INTO reservations ({_RESERVATION}) VALUES (:run_id, :scope, :period, :day, :micros)
    ON CONFLICT (run_id, scope, period) DO UPDATE SET day = excluded.day, micros = excluded.micros
    RETURNING {_RESERVATION}
""",
)

RELEASE = Statement("DELETE FROM reservations WHERE run_id = :run_id RETURNING scope")
