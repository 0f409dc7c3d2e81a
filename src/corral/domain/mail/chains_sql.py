"""SQL of chains: the letters that a run read, and the chains stored in other concepts' tables."""

from functools import cache

from corral.db.retention import Retention
from corral.db.statement import Query, Statement, columns_of
from corral.domain.mail.model import LetterChain

_LETTER_CHAIN = columns_of(LetterChain)
_AGENT = "SELECT id, name FROM agents WHERE"
_MAX_RUNS = 50
_MAX_PARENTS = 50


def _ancestry(start: str) -> str:
    """Return the recursive table `ancestry`: the runs that `start` selects, and their parents."""
    return f"""
    ancestry (id, distance) AS (
        {start}
        UNION ALL
        SELECT runs.parent_id, ancestry.distance + 1
        FROM runs JOIN ancestry ON runs.id = ancestry.id
        -- Bounded: rows that form a cycle must not loop.
        WHERE runs.parent_id IS NOT NULL AND ancestry.distance < {_MAX_PARENTS}
    )"""


_PARENT = "SELECT parent_id, 1 FROM runs WHERE id = :run_id AND parent_id IS NOT NULL"
# The letters that a run and its parents read. The run itself is matched separately, because
# `letter_chains` outlives a deleted run.
_OF_RUN = f"""
    WITH RECURSIVE {_ancestry(_PARENT)},
    letters_read AS (
        SELECT correlation_id, hops FROM letter_chains WHERE read_by = :run_id
        UNION ALL
        SELECT correlation_id, hops FROM letter_chains WHERE read_by IN (SELECT id FROM ancestry)
    )
"""

# The letters that the live runs of an agent and their parents read.
_LIVE_RUNS = f"""
        SELECT id, 0 FROM (
            SELECT id FROM runs
            WHERE agent_id = :agent_id AND ended_at IS NULL AND state <> 'queued' LIMIT {_MAX_RUNS}
        ) AS live"""
_OF_AGENT = f"""
    WITH RECURSIVE {_ancestry(_LIVE_RUNS)},
    letters_read AS (
        SELECT correlation_id, hops FROM letter_chains WHERE read_by IN (SELECT id FROM ancestry)
    )
"""
# Aggregates instead of ORDER BY: a run may have read many letters, and sorting them costs more.
_MAX_HOPS = "SELECT max(hops) FROM letters_read"
_WITH_HOPS = "SELECT min(correlation_id) FROM letters_read WHERE hops = :hops"

HOPS_OF_RUN = Statement(f"{_OF_RUN} {_MAX_HOPS}")
CORRELATION_OF_RUN = Statement(f"{_OF_RUN} {_WITH_HOPS}")
HOPS_OF_AGENT = Statement(f"{_OF_AGENT} {_MAX_HOPS}")
CORRELATION_OF_AGENT = Statement(f"{_OF_AGENT} {_WITH_HOPS}")

AGENT_OF_RUN = Statement(f"{_AGENT} id = (SELECT agent_id FROM runs WHERE runs.id = :run_id)")
AGENT_BY_NAME = Statement(f"{_AGENT} name = :name")

LETTER_CHAIN = Query(
    LetterChain, f"SELECT {_LETTER_CHAIN} FROM letter_chains WHERE letter_id = :letter_id"
)

ADD_LETTER_CHAIN = Statement("""
    INSERT INTO letter_chains
        (letter_id, correlation_id, hops, in_reply_to, agent_id, reply_to, created_at)
    VALUES (:letter_id, :correlation_id, :hops, :in_reply_to, :agent_id, :reply_to, :now)
    ON CONFLICT (letter_id) DO NOTHING
""")

ADD_LETTER_CHAINS = Statement("""
    INSERT INTO letter_chains (letter_id, correlation_id, hops, agent_id, reply_to, created_at)
    SELECT 'let_' || seq, CAST(:correlation_id AS TEXT), CAST(:hops AS {integer}),
        CAST(:agent_id AS TEXT), '', CAST(:now AS {integer})
    FROM letters WHERE key = :key AND mailbox {is_listed}
    ON CONFLICT (letter_id) DO NOTHING
""")

SET_READ_BY = Query(
    LetterChain,
    f"""
    UPDATE letter_chains SET read_by = :run_id WHERE letter_id = :letter_id
    RETURNING {_LETTER_CHAIN}
""",
)

SET_ALL_READ_BY = Statement(
    "UPDATE letter_chains SET read_by = :run_id WHERE letter_id {is_listed}"
)


@cache
def build_select_chain(table: str) -> Statement:
    """Build the statement that reads the chain of a row in another concept's table."""
    return Statement(f"SELECT correlation_id, hops FROM {table} WHERE id = :id")


@cache
def build_update_chain(table: str) -> Statement:
    """Build the statement that stores the chain of a row in another concept's table."""
    return Statement(
        f"UPDATE {table} SET correlation_id = :correlation_id, hops = :hops WHERE id = :id"
    )


LETTER_CHAINS_RETENTION = Retention(
    "letter_chains",
    setting="mail.retention_ms",
    key="letter_id",
    created=None,
    # Kept as long as the letter, which may wait longer than the retention period.
    ended="""created_at < :before AND NOT EXISTS (
        SELECT 1 FROM letters WHERE seq = CAST(substr(letter_id, 5) AS {integer})
        AND (ended_at IS NULL OR ended_at >= :before))""",
)
