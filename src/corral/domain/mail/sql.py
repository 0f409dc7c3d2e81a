"""SQL of the message queue.

The columns that order a mailbox:

- `rank` is the negated priority, so that ascending order means highest priority first.
- `queue_at` is the queue position within a priority: (queue_at, seq).
- `due_at` is the earliest time of the next claim. While a letter is claimed, it is the end of the
  lease. While a failed letter backs off, it is the time of the retry.

Ordered mailboxes (all but `queue:…`) keep `queue_at` when a letter is claimed or fails. Work queues
move `queue_at` along with `due_at`, so that the index starts with what can be claimed now.
"""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement, columns_of
from corral.db.transitions import StatefulTable
from corral.domain.mail.model import (
    TRANSITIONS,
    Letter,
    OverlongLeases,
    StalledMailbox,
    letter_from_values,
)
from corral.kernel.pagination import LAST_NUMBER


def _is_ordered(column: str = "mailbox") -> str:
    """Return the SQL form of `model.is_ordered`. Partial indexes have this condition."""
    return f"(substr({column}, 1, 6) <> 'queue:')"


_COLUMNS = columns_of(Letter, id="'let_' || seq", priority="-rank")

# The queue position of a new letter. Writers on several machines have slightly different clocks, so
# a letter that is due immediately is placed behind the letters that were put before it.
_QUEUE_AT = """
    -- A letter that is due later keeps the position of its due time.
    CASE WHEN CAST(:queue_at AS {integer}) <> :created_at THEN :queue_at ELSE (
        SELECT greatest(max(ahead.queue_at), :queue_at) FROM letters AS ahead
        WHERE ahead.mailbox = :mailbox AND ahead.state = 'waiting' AND ahead.rank = :rank
          -- Only positions in the near future: the clock of their writer was ahead.
          AND ahead.queue_at > :queue_at AND ahead.queue_at <= :queue_at + {clocks_differ_ms}
          -- Excludes letters that were put for later: they must not delay this one.
          AND (ahead.due_at = ahead.created_at OR ahead.attempts > 0)
    ) END
"""

LETTERS = StatefulTable(
    Letter,
    TRANSITIONS,
    table="letters",
    columns=_COLUMNS,
    key="seq",
    id_prefix="let",
    project="project_id",
    make_record=letter_from_values,
    insert_expressions={"queue_at": _QUEUE_AT},
)

BY_NUMBERS = Query(Letter, f"SELECT {_COLUMNS} FROM letters WHERE seq {{is_numbered}} ORDER BY seq")

BY_KEY = Query(Letter, f"SELECT {_COLUMNS} FROM letters WHERE mailbox = :mailbox AND key = :key")

IDS_BY_KEY = Statement("""
    SELECT letters.mailbox, letters.key, 'let_' || letters.seq
    FROM {each_of_rows}
    JOIN letters ON letters.mailbox = each.value ->> 0 AND letters.key = each.value ->> 1
""")

UNCLAIMED_BY_KEY = Statement("""
    SELECT seq FROM letters
    WHERE mailbox = :mailbox AND key IS NOT NULL AND key {is_listed} AND state = 'waiting'
      -- Not claimed, or the lease has expired.
      AND (owner IS NULL OR due_at <= :now)
    -- A letter that is being claimed concurrently stays with its new owner.
    {skip_locked}
""")

# -- claim ----------------------------------------------------------------------------------------

# The ranks of a mailbox, ascending, up to the first one with a due letter; max(rank) of it is the
# rank to claim from. This is a loose index scan: one index seek for each rank in use, so a backlog
# of letters for later costs nothing, whatever their priority.
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

# Work queues (`queue:…`): several owners claim concurrently. A claim moves `queue_at` to the end of
# the lease, so that claimed letters do not stand at the head of the index.
CLAIM_ONE_UNORDERED = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL}
    UPDATE letters
    -- The incremented fence rejects late writes of the previous owner.
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1,
        due_at = :until, queue_at = :until
    WHERE seq = (
        SELECT seq FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting'
          -- One claim returns letters of one priority: the highest that is due.
          AND rank = (SELECT max(rank) FROM level)
          -- The position has been reached; limits the index scan.
          AND queue_at <= :now
          -- Not for later, not in back-off, and not under an unexpired lease.
          AND due_at <= :now
        -- Rows that a concurrent claim has locked are skipped instead of waited for.
        ORDER BY queue_at, seq LIMIT 1 {{skip_locked}}
    )
    RETURNING {_COLUMNS}
""",
)

# CLAIM_ONE_UNORDERED for up to `limit` letters. The predicates are the same.
CLAIM_UNORDERED = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL},
    -- MATERIALIZED: PostgreSQL must evaluate LIMIT and SKIP LOCKED once, not for each row.
    picked AS MATERIALIZED (
        SELECT seq FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting'
          -- One claim returns letters of one priority: the highest that is due.
          AND rank = (SELECT max(rank) FROM level)
          -- The position has been reached; limits the index scan.
          AND queue_at <= :now
          -- Not for later, not in back-off, and not under an unexpired lease.
          AND due_at <= :now
        ORDER BY queue_at, seq LIMIT :limit {{skip_locked}}
    )
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1,
        due_at = :until, queue_at = :until
    WHERE seq {{is_picked}}
    RETURNING {_COLUMNS}
""",
)

# Re-check in the WHERE clause of the UPDATE itself. PostgreSQL evaluates the subquery before it
# waits for the row lock, and re-evaluates only this clause once it has the lock. Without it, a
# letter that a late owner acknowledges or a person drops concurrently would be claimed as well.
_STILL_DUE = "state = 'waiting' AND due_at <= :now"

# The letters that can block a claim in an ordered mailbox: attempted before, and not due yet. They
# are under a lease, or in back-off and without an owner. An unconfirmed letter counts while its
# lease lasts: its owner may still be delivering.
_STARTED_NOT_DUE = f"""
    started.mailbox = :mailbox AND started.state IN ('waiting', 'unconfirmed')
    -- Repeats the condition of the partial index letters_started.
    AND started.attempts > 0 AND {_is_ordered("started.mailbox")}
    AND started.due_at > :now
"""

# Ordered mailboxes: one owner at a time, strictly in order, and a claim keeps the queue position.
# Only the first due letter is examined: if it cannot be claimed, none behind it can.
CLAIM_ONE_IN_ORDER = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL}
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1, due_at = :until
    WHERE seq = (
        SELECT seq FROM (
            SELECT seq, rank, queue_at FROM letters
            WHERE mailbox = :mailbox AND state = 'waiting'
              -- One claim returns letters of one priority: the highest that is due.
              AND rank = (SELECT max(rank) FROM level)
              -- The position has been reached; limits the index scan.
              AND queue_at <= :now
              -- Not for later, not in back-off, and not under an unexpired lease.
              AND due_at <= :now
            ORDER BY queue_at, seq LIMIT 1
        ) AS next
        WHERE NOT EXISTS (
            SELECT 1 FROM letters AS started
            WHERE {_STARTED_NOT_DUE}
              AND (
                   -- Another owner holds a lease in this mailbox. The same owner may claim on.
                   started.owner <> :owner
                   -- An earlier letter of the same or a higher priority backs off: do not overtake.
                   OR started.owner IS NULL AND started.rank <= next.rank
                      AND (started.queue_at, started.seq) < (next.queue_at, next.seq))
        )
    ) AND {_STILL_DUE}
    RETURNING {_COLUMNS}
""",
)

# Lock the letters whose lease has expired before CLAIM_IN_ORDER picks. Only for these can a late
# owner commit an acknowledgement or a failure concurrently, which changes what may be claimed
# behind them. After this lock the picked set is stable.
LOCK_EXPIRED_LEASES = Statement(f"""
    SELECT seq FROM letters
    -- The first two lines repeat the condition of the partial index letters_started.
    WHERE mailbox = :mailbox AND {_is_ordered()}
      AND state IN ('waiting', 'unconfirmed') AND attempts > 0
      -- The lease has expired, or the back-off is over.
      AND due_at <= :now
    -- One order for all callers, to avoid deadlocks.
    ORDER BY due_at {{locked}}
""")

# CLAIM_ONE_IN_ORDER for up to `limit` letters: pick what is due (`ahead`), find the first letter of
# each priority that backs off (`stuck`), and cut the pick off there (`barrier`).
_PICKED_IN_ORDER = f"""
    WITH RECURSIVE {_LEVEL},
    -- The letters to claim if none of the letters before them backed off.
    ahead AS MATERIALIZED (
        SELECT seq, queue_at FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting'
          -- One claim returns letters of one priority: the highest that is due.
          AND rank = (SELECT max(rank) FROM level)
          -- The position has been reached; limits the index scan.
          AND queue_at <= :now
          -- Not for later, not in back-off, and not under an unexpired lease.
          AND due_at <= :now
          -- No other owner holds a lease in this mailbox.
          AND NOT EXISTS (
            SELECT 1 FROM letters AS started
            WHERE {_STARTED_NOT_DUE} AND started.owner <> :owner
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
        -- No letter backs off,
        WHERE (SELECT queue_at FROM barrier) IS NULL
           -- or the candidate stands before the first that does,
           OR queue_at < (SELECT queue_at FROM barrier)
           -- by its number when both have the same position.
           OR queue_at = (SELECT queue_at FROM barrier) AND seq < (
                SELECT min(CASE WHEN queue_at = (SELECT queue_at FROM barrier) THEN seq END)
                FROM stuck)
    )
"""

CLAIM_IN_ORDER = Query(
    Letter,
    f"""
    {_PICKED_IN_ORDER}
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1, due_at = :until
    WHERE seq {{is_picked}} AND {_STILL_DUE}
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

RENEW = Query(
    Letter,
    f"""
    UPDATE letters SET due_at = :until,
        -- Work queues order by the end of the lease, ordered mailboxes keep the position.
        queue_at = CASE WHEN {_is_ordered()} THEN queue_at ELSE :until END
    WHERE seq = :seq
      -- A claim since then would have incremented the fence.
      AND fence = :fence AND owner IS NOT NULL AND state IN ('waiting', 'unconfirmed')
      -- In an ordered mailbox an expired lease is lost: later letters may have been claimed since.
      AND (due_at > :now OR NOT {_is_ordered()})
    RETURNING {_COLUMNS}
""",
)

# Claimed letters whose lease ends later than any lease may: a clock was ahead.
OVERLONG_LEASES = Query(
    OverlongLeases,
    """
    SELECT count(*) AS letters, min(seq) AS first_seq, max(due_at) AS until
    FROM letters WHERE state = 'waiting' AND owner IS NOT NULL AND due_at > :after
    """,
)

# The earliest `due_at` among the heads of all priorities of a mailbox (a loose index scan).
NEXT_DUE = Statement("""
    WITH RECURSIVE level (rank) AS (
        SELECT min(rank) FROM letters WHERE mailbox = :mailbox AND state = 'waiting'
        UNION ALL
        SELECT (
            SELECT min(later.rank) FROM letters AS later
            WHERE later.mailbox = :mailbox AND later.state = 'waiting' AND later.rank > level.rank
        )
        FROM level WHERE level.rank IS NOT NULL
    )
    SELECT min((
        SELECT due_at FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting' AND letters.rank = level.rank
        ORDER BY queue_at, seq LIMIT 1
    )) FROM level
""")

LAST_POSITION = Statement("""
    SELECT max(queue_at) FROM letters WHERE mailbox = :mailbox AND state = 'waiting' AND rank = 0
""")

# -- lists ----------------------------------------------------------------------------------------

# The mailboxes of a kind that hold waiting letters: a loose index scan, one seek for each mailbox,
# however many letters it holds.
MAILBOXES = Statement("""
    WITH RECURSIVE in_use (mailbox) AS (
        SELECT min(mailbox) FROM letters
        WHERE state = 'waiting' AND mailbox > :low AND mailbox < :high
        UNION ALL
        SELECT (
            SELECT min(later.mailbox) FROM letters AS later
            WHERE later.state = 'waiting' AND later.mailbox > in_use.mailbox
              AND later.mailbox < :high
        )
        FROM in_use WHERE in_use.mailbox IS NOT NULL
    )
    SELECT mailbox FROM in_use WHERE mailbox IS NOT NULL LIMIT :limit
""")

# The first letter of each priority of each mailbox, by a loose index scan of letters_queue: one
# seek for each, however many letters wait behind it.
STALLED = Query(
    StalledMailbox,
    f"""
    WITH RECURSIVE head (seq) AS (
        SELECT (
            SELECT seq FROM letters WHERE state = 'waiting' AND mailbox > ''
            ORDER BY mailbox, rank, queue_at, seq LIMIT 1
        )
        UNION ALL
        SELECT coalesce(
            -- The head of the next priority of the same mailbox,
            (
                SELECT later.seq FROM letters AS later
                WHERE later.state = 'waiting' AND later.mailbox = letters.mailbox
                  AND later.rank > letters.rank
                ORDER BY later.rank, later.queue_at, later.seq LIMIT 1
            ),
            -- else the head of the next mailbox.
            (
                SELECT later.seq FROM letters AS later
                WHERE later.state = 'waiting' AND later.mailbox > letters.mailbox
                ORDER BY later.mailbox, later.rank, later.queue_at, later.seq LIMIT 1
            )
        )
        FROM head JOIN letters ON letters.seq = head.seq
    )
    SELECT letters.mailbox, letters.due_at
    FROM head JOIN letters ON letters.seq = head.seq
    WHERE letters.due_at <= :before
      -- Not stalled while an owner holds a lease in the mailbox: it is being worked on.
      AND NOT EXISTS (
        SELECT 1 FROM letters AS started
        WHERE started.mailbox = letters.mailbox AND started.state IN ('waiting', 'unconfirmed')
          AND started.attempts > 0 AND {_is_ordered("started.mailbox")}
          AND started.due_at > :now AND started.owner IS NOT NULL
    )
    LIMIT :limit
""",
)

_FIRST_POSITION: dict[str, str | int] = {
    "mailbox": "",
    "rank": -LAST_NUMBER,
    "queue_at": 0,
    "seq": 0,
}


def queue_position(letter: Letter) -> tuple[str, int, int, int]:
    """Return the sort key of a waiting letter: the columns of the index letters_queue."""
    return letter.mailbox, -letter.priority, letter.queue_at, letter.number


WAITING = Listing(
    Query(
        Letter,
        f"""
        SELECT {_COLUMNS} FROM letters
        WHERE state = 'waiting'
          AND (mailbox, rank, queue_at, seq) > (:mailbox, :rank, :queue_at, :seq)
        ORDER BY mailbox, rank, queue_at, seq LIMIT :limit
    """,
    ),
    start=_FIRST_POSITION,
    key=queue_position,
)

WAITING_IN_MAILBOX = Listing(
    Query(
        Letter,
        f"""
        SELECT {_COLUMNS} FROM letters
        WHERE state = 'waiting' AND mailbox = :mailbox
          AND (rank, queue_at, seq) > (:rank, :queue_at, :seq)
        ORDER BY rank, queue_at, seq LIMIT :limit
    """,
    ),
    start=_FIRST_POSITION,
    key=queue_position,
    scope=["mailbox"],
)

WAITING_NUMBERS = Statement("""
    SELECT seq FROM letters WHERE state = 'waiting' AND mailbox = :mailbox
    ORDER BY rank, queue_at, seq LIMIT :limit
""")

ALL = LETTERS.newest_first()

ALL_OF_MAILBOX = Listing(
    Query(
        Letter,
        f"""
        SELECT {_COLUMNS} FROM (
            SELECT * FROM {{letters_of_mailbox}} WHERE mailbox = :mailbox AND seq < :before
            ORDER BY seq DESC LIMIT :limit
        ) AS newest ORDER BY seq DESC
    """,
    ),
    start=ALL.start,
    key=ALL.key,
)

# The list of states repeats the condition of the partial index letters_by_state.
BY_STATE = LETTERS.newest_first(
    "state = :state AND state IN ('unconfirmed', 'dead', 'refused', 'expired')"
)

# -- expiry and retention -------------------------------------------------------------------------

EXPIRED = Statement("""
    SELECT seq FROM letters
    WHERE state = 'waiting' AND expires_at IS NOT NULL AND expires_at <= :now
      -- A claimed letter may still be delivered; it expires when its lease does.
      AND (owner IS NULL OR due_at <= :now)
    ORDER BY expires_at LIMIT :limit {skip_locked}
""")

RETENTION = Retention(
    "letters",
    setting="mail.retention_ms",
    key="seq",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
    imported="imported_at",
)

# -- recipients ----------------------------------------------------------------------------------

SESSION_IDS = IdColumn("session", "ses", "sessions")

# Locks the row, so that no letter is put while the session is closed or replaced.
SESSION = Statement("SELECT state, replaced_by FROM sessions WHERE id = :id {locked}")
