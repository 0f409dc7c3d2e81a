from functools import cache

from corral.db.statement import Query, Statement
from corral.domain.mail.model import Exchange

_EXCHANGE = "letter_id, correlation_id, hops, answers, agent_id, reply_to, read_by, created_at"
_AGENT = "SELECT id, name FROM agents WHERE"
_MOST_RUNS = 50
_MOST_PARENTS = 50

_PARENTS = f"""
        UNION ALL
        SELECT runs.parent_id, line.distance + 1 FROM runs JOIN line ON runs.id = line.id
        WHERE runs.parent_id IS NOT NULL AND line.distance < {_MOST_PARENTS}
    )"""

# A run with its parents. A run that was deleted still has what it read. Aggregates instead of
# ORDER BY: a run may have read many letters.
_OF_RUN = f"""
    WITH RECURSIVE line (id, distance) AS (
        SELECT parent_id, 1 FROM runs WHERE id = :run_id AND parent_id IS NOT NULL {_PARENTS},
    given AS (
        SELECT correlation_id, hops FROM exchanges WHERE read_by = :run_id
        UNION ALL
        SELECT correlation_id, hops FROM exchanges WHERE read_by IN (SELECT id FROM line)
    )
"""

# The live runs of an agent with their parents.
_OF_AGENT = f"""
    WITH RECURSIVE line (id, distance) AS (
        SELECT id, 0 FROM (
            SELECT id FROM runs
            WHERE agent_id = :agent_id AND ended_at IS NULL AND state <> 'queued' LIMIT {_MOST_RUNS}
        ) AS live {_PARENTS},
    given AS (
        SELECT correlation_id, hops FROM exchanges WHERE read_by IN (SELECT id FROM line)
    )
"""
_MOST_HOPS = "SELECT max(hops) FROM given"
_WITH_HOPS = "SELECT min(correlation_id) FROM given WHERE hops = :hops"

HOPS_OF_RUN = Statement(f"{_OF_RUN} {_MOST_HOPS}")
CORRELATION_OF_RUN = Statement(f"{_OF_RUN} {_WITH_HOPS}")
HOPS_OF_AGENT = Statement(f"{_OF_AGENT} {_MOST_HOPS}")
CORRELATION_OF_AGENT = Statement(f"{_OF_AGENT} {_WITH_HOPS}")

AGENT_OF_RUN = Statement(f"{_AGENT} id = (SELECT agent_id FROM runs WHERE runs.id = :run_id)")
AGENT_BY_NAME = Statement(f"{_AGENT} name = :name")

EXCHANGE = Query(Exchange, f"SELECT {_EXCHANGE} FROM exchanges WHERE letter_id = :letter_id")

ADD = Statement("""
    INSERT INTO exchanges
        (letter_id, correlation_id, hops, answers, agent_id, reply_to, created_at)
    VALUES (:letter_id, :correlation_id, :hops, :answers, :agent_id, :reply_to, :now)
    ON CONFLICT (letter_id) DO NOTHING
""")

ADD_ALL = Statement("""
    INSERT INTO exchanges (letter_id, correlation_id, hops, agent_id, reply_to, created_at)
    SELECT 'let_' || seq, CAST(:correlation_id AS TEXT), CAST(:hops AS {integer}),
        CAST(:agent_id AS TEXT), '', CAST(:now AS {integer})
    FROM letters WHERE key = :key AND mailbox {is_listed}
    ON CONFLICT (letter_id) DO NOTHING
""")

READ = Query(
    Exchange,
    f"UPDATE exchanges SET read_by = :run_id WHERE letter_id = :letter_id RETURNING {_EXCHANGE}",
)

READ_ALL = Statement("UPDATE exchanges SET read_by = :run_id WHERE letter_id {is_listed}")


@cache
def chain_of(table: str) -> Statement:
    """The chain that a row of another room continues."""
    return Statement(f"SELECT correlation_id, hops FROM {table} WHERE id = :id")


@cache
def set_chain(table: str) -> Statement:
    return Statement(
        f"UPDATE {table} SET correlation_id = :correlation_id, hops = :hops WHERE id = :id"
    )
