"""SQL of charges, totals, counters and budgets."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement, columns_of
from corral.domain.charges.counters import UsageFigures
from corral.domain.charges.model import (
    Budget,
    BudgetReservation,
    Charge,
    ExceededBudget,
    UsageTotal,
)
from corral.kernel.ids import parse_number
from corral.kernel.pagination import LAST_NUMBER
from corral.kernel.redaction_policy import Policy

_CHARGE = columns_of(Charge, id="'chg_' || seq")

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

KEY_EXISTS = Statement("""
    SELECT 1 FROM charges
    WHERE coalesce(run_id, session_id, '') = :owner AND key = :key AND key IS NOT NULL
""")

# Updates the totals of all scopes of a charge. The row `all` comes first, so that concurrent
# statements queue on it instead of deadlocking on the others.
ADD_TO_TOTALS = Statement(
    """
    INSERT INTO usage_totals (scope, day, charges, unpriced, input, output, cache_read, cache_write,
        reasoning, cost_micros, updated_at)
    SELECT column1, column2, :charges, :unpriced, :input, :output, :cache_read, :cache_write,
        :reasoning, :cost_micros, :now
    FROM (VALUES ('all', ''), ('all', :day), (:agent, ''), (:agent, :day), (:model, ''),
        (:model, :day), (:project, ''), (:project, :day), (:run, ''), (:session, '')) AS touched
    WHERE column1 IS NOT NULL
    ON CONFLICT (scope, day) DO UPDATE SET
        charges = usage_totals.charges + excluded.charges,
        unpriced = usage_totals.unpriced + excluded.unpriced,
        input = usage_totals.input + excluded.input,
        output = usage_totals.output + excluded.output,
        cache_read = usage_totals.cache_read + excluded.cache_read,
        cache_write = usage_totals.cache_write + excluded.cache_write,
        reasoning = usage_totals.reasoning + excluded.reasoning,
        cost_micros = usage_totals.cost_micros + excluded.cost_micros,
        updated_at = excluded.updated_at
""",
    # The scopes are written through a list of values. A model that looks like a secret is redacted
    # and not rejected as in other statements: its cost must be counted.
    policies=dict.fromkeys(("agent", "model", "project", "run", "session", "day"), Policy.REDACTED),
)

_SUMS = """charges, unpriced, input, output, cache_read, cache_write, reasoning, cost_micros,
    updated_at"""
INSERT_TOTAL = Statement(f"""
    INSERT INTO usage_totals (scope, day, {_SUMS})
    VALUES (:scope, :day, :charges, :unpriced, :input, :output, :cache_read, :cache_write,
        :reasoning, :cost_micros, :now)
""")
COPY_TOTALS_TO_ALL = Statement(f"""
    INSERT INTO usage_totals (scope, day, {_SUMS})
    SELECT 'all', day, {_SUMS} FROM usage_totals WHERE scope = :scope RETURNING day
""")

_FIGURES = columns_of(UsageFigures)

COUNTER = Query(UsageFigures, f"SELECT {_FIGURES} FROM usage_counters WHERE name = :name")

SET_COUNTER = Statement(f"""
    INSERT INTO usage_counters (name, {_FIGURES}, updated_at)
    VALUES (:name, :input, :output, :cache_read, :cache_write, :reasoning, :cost_micros, :now)
    ON CONFLICT (name) DO UPDATE SET input = excluded.input, output = excluded.output,
        cache_read = excluded.cache_read, cache_write = excluded.cache_write,
        reasoning = excluded.reasoning, cost_micros = excluded.cost_micros,
        updated_at = excluded.updated_at
""")

# A row with run_id '' is a placeholder that keeps `seq` from being reused after a restore.
_IS_CHARGE = "run_id IS DISTINCT FROM ''"

GET = Query(Charge, f"SELECT {_CHARGE} FROM charges WHERE seq = :seq AND {_IS_CHARGE}")


def _get_sort_key(charge: Charge) -> tuple[int]:
    return (parse_number("chg", charge.id),)


def _newest_first(condition: str) -> Listing[Charge]:
    query = Query(
        Charge,
        f"""
        SELECT {_CHARGE} FROM charges WHERE {condition} AND seq < :before
        ORDER BY seq DESC LIMIT :limit
    """,
    )
    return Listing(query, start={"before": LAST_NUMBER}, key=_get_sort_key)


ALL = _newest_first(_IS_CHARGE)
LISTS = {
    "run": _newest_first("run_id = :id"),
    "session": _newest_first("session_id = :id"),
    "project": _newest_first("project_id = :id"),
}
RUN_IDS = IdColumn("run", "run", "runs")
SESSION_IDS = IdColumn("session", "ses", "sessions")

# The cost is unknown (NULL) when no charge of the scope has one.
_TOTAL = columns_of(UsageTotal, cost_micros="CASE WHEN charges > unpriced THEN cost_micros END")

TOTAL = Query(UsageTotal, f"SELECT {_TOTAL} FROM usage_totals WHERE scope = :scope AND day = :day")

DAYS = Listing(
    Query(
        UsageTotal,
        f"""
        SELECT {_TOTAL} FROM usage_totals WHERE scope = :scope AND day > '' AND day < :before
        ORDER BY day DESC LIMIT :limit
    """,
    ),
    start={"before": "~"},  # after every date in ASCII
    key=lambda total: (total.day,),
)


def _list_unpriced(condition: str) -> Listing[Charge]:
    query = Query(
        Charge,
        f"""
        SELECT {_CHARGE} FROM charges
        WHERE cost_micros IS NULL AND model IS NOT NULL AND {condition} AND seq > :after
        ORDER BY seq LIMIT :limit
    """,
    )
    return Listing(query, start={"after": 0}, key=_get_sort_key)


UNPRICED = _list_unpriced("prices_version IS NULL")
# Charges whose model a price table of another version did not contain.
UNPRICED_BEFORE = _list_unpriced("prices_version <> :version")

SET_COST = Query(
    Charge,
    f"""
    UPDATE charges SET cost_micros = :cost_micros, source = 'prices', prices_version = :version
    WHERE seq = :seq AND cost_micros IS NULL RETURNING {_CHARGE}
""",
)

SET_PRICES_VERSION = Statement("""
    UPDATE charges SET prices_version = :version WHERE seq = :seq AND cost_micros IS NULL
""")

RETENTION = Retention(
    "charges",
    setting="charges.retention_ms",
    created="at",
    ended="at < :before",
    key="seq",
    project="project_id",
    imported="imported_at",
)

# The all-time totals of `all`, projects, agents and models are kept for ever.
TOTALS_RETENTION = Retention(
    "usage_totals",
    setting="usage_totals.retention_ms",
    created=None,
    ended="""updated_at < :before AND (day > ''
        OR scope > 'run:' AND scope < 'run;' OR scope > 'session:' AND scope < 'session;')""",
    key="scope",
)

# Kept as long as the totals: without its counter, a continued thread would be charged again from 0.
COUNTERS_RETENTION = Retention(
    "usage_counters",
    setting="usage_totals.retention_ms",
    created=None,
    ended="updated_at < :before",
    key="name",
)

# -- budgets ----------------------------------------------------------------------------------

_DAY = "CASE b.period WHEN 'day' THEN :today ELSE '' END"

# What a run has spent of its reservation is already part of the totals, so it is subtracted.
_RESERVED = f"""
    SELECT sum(CASE WHEN r.amount_micros > coalesce(own.cost_micros, 0)
                    THEN r.amount_micros - coalesce(own.cost_micros, 0) ELSE 0 END)
    FROM budget_reservations AS r
    LEFT JOIN usage_totals AS own ON own.scope = 'run:' || r.run_id AND own.day = ''
    WHERE r.scope = b.scope AND r.period = b.period AND r.day = {_DAY} AND r.run_id <> :run_id
"""

_BUDGET = f"""b.scope, b.period, b.limit_micros, b.updated_at, b.updated_by,
    coalesce((SELECT t.cost_micros FROM usage_totals AS t
              WHERE t.scope = b.scope AND t.day = {_DAY}), 0) AS spent_micros,
    CAST(coalesce(({_RESERVED}), 0) AS BIGINT) AS reserved_micros"""

COVERING_BUDGETS = Query(
    Budget,
    f"SELECT {_BUDGET} FROM budgets AS b WHERE b.scope IN ('all', :project, :agent)",
)

LIST_BUDGETS = Listing(
    Query(
        Budget,
        f"""
        SELECT {_BUDGET} FROM budgets AS b WHERE (b.scope, b.period) > (:scope, :period)
        ORDER BY b.scope, b.period LIMIT :limit
    """,
    ),
    start={"scope": "", "period": ""},
    key=lambda budget: (budget.scope, budget.period),
)

GET_BUDGET = Query(
    Budget,
    f"SELECT {_BUDGET} FROM budgets AS b WHERE b.scope = :scope AND b.period = :period",
)

EXCEEDED_BUDGETS = Query(
    ExceededBudget,
    f"""
    SELECT b.scope, b.period, b.limit_micros,
        coalesce(t.cost_micros, 0) + coalesce(CAST(:pending AS BIGINT), 0) AS spent_micros
    FROM budgets AS b LEFT JOIN usage_totals AS t ON t.scope = b.scope AND t.day = {_DAY}
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

_RESERVATION = columns_of(BudgetReservation)

RESERVE = Query(
    BudgetReservation,
    f"""
    INSERT INTO budget_reservations ({_RESERVATION})
    VALUES (:run_id, :scope, :period, :day, :amount_micros)
    ON CONFLICT (run_id, scope, period) DO UPDATE
    SET day = excluded.day, amount_micros = excluded.amount_micros
    RETURNING {_RESERVATION}
""",
)

RELEASE = Statement("DELETE FROM budget_reservations WHERE run_id = :run_id RETURNING scope")
