"""SQL of claims: the claim query of each kind of mailbox, and the renewal of a lease.

`sql.py` describes the columns. A claim is one UPDATE, whose subquery picks the letters:

                 one letter (frequent, cheaper)   up to `limit` letters
    work queue   CLAIM_ONE_UNORDERED              CLAIM_UNORDERED
    all others   CLAIM_ONE_IN_ORDER               CLAIM_IN_ORDER

In a work queue (`queue:…`) several owners claim concurrently. An ordered mailbox has one owner at a
time and is claimed strictly in order.

The claim order is (rank, queue_at, seq), ascending. `rank` is the negated priority: the lowest rank
is the highest priority. A claim takes letters of one rank: the lowest one with a due letter. For
example, at now = 100, with no letter attempted yet:

    seq   priority   rank   queue_at   due_at
      1       0         0      80        80     claimed second
      2       5        -5      90        90     claimed first: highest priority
      3       0         0      90        90     claimed third: behind letter 1
      4       9        -9     200       200     not due: does not delay lower priorities

A claim with limit 10 returns letter 2 alone, and the next one letters 1 and 3. If letter 1 has
failed instead and its retry is due at 150, an ordered mailbox keeps its `queue_at` of 80, so
letter 3 waits behind it. A work queue moves it to `queue_at` 150, and letter 3 is claimed now.
"""

from corral.db.statement import Query, Statement
from corral.domain.mail.model import Letter
from corral.domain.mail.sql import IS_ORDERED, IS_STARTED, LETTERS

_COLUMNS = LETTERS.columns

# -- the parts of a claim -------------------------------------------------------------------------

# The ranks of a mailbox, ascending, up to the first rank with a due letter. The claim takes letters
# of max(rank). This is a loose index scan with one index seek for each rank in use, so letters that
# are not due yet cost nothing at any priority.
_LEVEL = """
    level (rank) AS (
        SELECT min(rank) FROM letters WHERE mailbox = :mailbox AND state = 'waiting'
        UNION ALL
        SELECT (
            SELECT min(later.rank) FROM letters AS later
            WHERE later.mailbox = :mailbox AND later.state = 'waiting' AND later.rank > level.rank
        )
        FROM level
        -- Stop at the first rank that has a due letter.
        WHERE level.rank IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM letters AS due
            WHERE due.mailbox = :mailbox AND due.state = 'waiting'
              AND due.rank = level.rank AND due.queue_at <= :now AND due.due_at <= :now
        )
    )
"""

# The letters that a claim may pick.
_IS_CLAIMABLE = """
    mailbox = :mailbox AND state = 'waiting'
    -- One claim returns letters of one priority: the highest that is due.
    AND rank = (SELECT max(rank) FROM level)
    -- The position has been reached; limits the index scan.
    AND queue_at <= :now
    -- Not delayed, not in back-off, and without an unexpired lease.
    AND due_at <= :now
"""

# The letters that can block a claim in an ordered mailbox: attempted before, and not due yet. They
# are under a lease, or in back-off and without an owner. An unconfirmed letter counts while its
# lease lasts: its owner may still be delivering.
_IS_BLOCKING = f"mailbox = :mailbox AND {IS_STARTED} AND due_at > :now"

# Re-check in the WHERE clause of the UPDATE itself. PostgreSQL evaluates the subquery before it
# waits for the row lock, and re-evaluates only this clause once it has the lock. Without it, a
# letter that a late owner acknowledges or a person drops concurrently would be claimed as well.
_IS_STILL_DUE = "state = 'waiting' AND due_at <= :now"

# The values of a claimed letter. The incremented fence rejects late writes of the previous owner.
_TAKE = "owner = :owner, fence = fence + 1, attempts = attempts + 1, due_at = :until"
# Work queues also move the position to the end of the lease, so that claimed letters do not stand
# at the head of the index. Ordered mailboxes keep it.
_TAKE_AND_MOVE = f"{_TAKE}, queue_at = :until"

# -- work queues ----------------------------------------------------------------------------------

# {skip_locked}: letters that a concurrent claim has locked are skipped instead of waited for.
CLAIM_ONE_UNORDERED = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL}
    UPDATE letters SET {_TAKE_AND_MOVE}
    WHERE seq = (
        SELECT seq FROM letters WHERE {_IS_CLAIMABLE}
        ORDER BY queue_at, seq LIMIT 1 {{skip_locked}}
    )
    RETURNING {_COLUMNS}
""",
)

CLAIM_UNORDERED = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL},
    -- MATERIALIZED: PostgreSQL must evaluate LIMIT and SKIP LOCKED once, not for each row.
    picked AS MATERIALIZED (
        SELECT seq FROM letters WHERE {_IS_CLAIMABLE}
        ORDER BY queue_at, seq LIMIT :limit {{skip_locked}}
    )
    UPDATE letters SET {_TAKE_AND_MOVE} WHERE seq {{is_picked}}
    RETURNING {_COLUMNS}
""",
)

# -- ordered mailboxes ----------------------------------------------------------------------------

# Only the first due letter is examined: if it cannot be claimed, none behind it can.
CLAIM_ONE_IN_ORDER = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL}
    UPDATE letters SET {_TAKE}
    WHERE seq = (
        SELECT seq FROM (
            SELECT seq, rank, queue_at FROM letters WHERE {_IS_CLAIMABLE}
            ORDER BY queue_at, seq LIMIT 1
        ) AS next
        WHERE NOT EXISTS (
            SELECT 1 FROM letters AS started
            WHERE {_IS_BLOCKING}
              AND (
                   -- Another owner holds a lease in this mailbox. The same owner may claim more
                   -- letters.
                   started.owner <> :owner
                   -- An earlier letter of the same or a higher priority backs off: do not overtake.
                   OR started.owner IS NULL AND started.rank <= next.rank
                      AND (started.queue_at, started.seq) < (next.queue_at, next.seq))
        )
    ) AND {_IS_STILL_DUE}
    RETURNING {_COLUMNS}
""",
)

# Lock the letters whose lease has expired or whose back-off is over before CLAIM_IN_ORDER picks.
# Only for these can a late owner commit an acknowledgement or a failure concurrently, which changes
# what may be claimed behind them. After this lock the picked set is stable.
LOCK_EXPIRED_LEASES = Statement(f"""
    SELECT seq FROM letters
    WHERE mailbox = :mailbox AND {IS_STARTED} AND due_at <= :now
    -- One total order for all callers, to avoid deadlocks; the letters of a batch share due_at.
    ORDER BY due_at, seq {{locked}}
""")

# Pick what is due (`ahead`), find the first letter of each priority that backs off (`stuck`), and
# cut the pick off there (`barrier`).
_PICKED_IN_ORDER = f"""
    WITH RECURSIVE {_LEVEL},
    -- The letters to claim if none of the letters before them backed off.
    ahead AS MATERIALIZED (
        SELECT seq, queue_at FROM letters
        WHERE {_IS_CLAIMABLE}
          -- No other owner holds a lease in this mailbox.
          AND NOT EXISTS (
            SELECT 1 FROM letters AS started WHERE {_IS_BLOCKING} AND started.owner <> :owner
          )
        ORDER BY queue_at, seq LIMIT :limit
    ),
    -- For each rank up to the claimed one, the first letter that waits for its retry.
    stuck AS MATERIALIZED (
        SELECT queue_at, seq FROM letters WHERE seq IN (
            SELECT (
                SELECT waits.seq FROM letters AS waits
                WHERE waits.mailbox = :mailbox AND waits.state = 'waiting'
                  AND waits.rank = level.rank
                  -- Behind the last candidate it blocks nothing; limits the index scan.
                  AND waits.queue_at <= (SELECT max(ahead.queue_at) FROM ahead)
                  -- In back-off: attempted before, released by its owner, retry not yet due.
                  AND waits.due_at > :now AND waits.owner IS NULL AND waits.attempts > 0
                ORDER BY waits.queue_at, waits.seq LIMIT 1
            )
            FROM level
        )
    ),
    barrier (queue_at) AS MATERIALIZED (SELECT min(queue_at) FROM stuck),
    picked AS MATERIALIZED (
        SELECT seq FROM ahead
        -- No letter is in back-off.
        WHERE (SELECT queue_at FROM barrier) IS NULL
           -- The candidate is before the first letter in back-off.
           OR queue_at < (SELECT queue_at FROM barrier)
           -- Both have the same position: the lower number comes first.
           OR queue_at = (SELECT queue_at FROM barrier) AND seq < (
                SELECT min(CASE WHEN queue_at = (SELECT queue_at FROM barrier) THEN seq END)
                FROM stuck)
    )
"""

CLAIM_IN_ORDER = Query(
    Letter,
    f"""
    {_PICKED_IN_ORDER}
    UPDATE letters SET {_TAKE} WHERE seq {{is_picked}} AND {_IS_STILL_DUE}
    RETURNING {_COLUMNS}
""",
)

# The letters that CLAIM_IN_ORDER would claim, without claiming them.
CLAIMABLE_IN_ORDER = Query(
    Letter,
    f"""
    {_PICKED_IN_ORDER}
    SELECT {_COLUMNS} FROM letters WHERE seq {{is_picked}}
""",
)

# -- lease ----------------------------------------------------------------------------------------

RENEW = Query(
    Letter,
    f"""
    UPDATE letters SET due_at = :until,
        -- Work queues order by the end of the lease, ordered mailboxes keep the position.
        queue_at = CASE WHEN {IS_ORDERED} THEN queue_at ELSE :until END
    WHERE seq = :seq
      -- A claim since then would have incremented the fence.
      AND fence = :fence AND owner IS NOT NULL AND state IN ('waiting', 'unconfirmed')
      -- In an ordered mailbox an expired lease is lost: later letters may have been claimed since.
      AND (due_at > :now OR NOT {IS_ORDERED})
    RETURNING {_COLUMNS}
""",
)
