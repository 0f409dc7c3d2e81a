"""SQL of the message queue.

The columns that order a mailbox:

- `rank` is the negated priority, so that ascending order means highest priority first.
- `queue_at` is the queue position within a priority: (queue_at, seq).
- `due_at` is the earliest time of the next claim. While a letter is claimed, it is the end of the
  lease. While a failed letter backs off, it is the time of the retry.

Ordered mailboxes (all but `queue:…`) keep `queue_at` when a letter is claimed or fails. Work queues
move `queue_at` along with `due_at`, so that the index starts with what can be claimed now.

The claim queries are in `claims_sql.py`.
"""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.mail.model import (
    TRANSITIONS,
    Letter,
    OverlongLeases,
    StalledMailbox,
    build_letter,
)
from corral.kernel.pagination import LAST_NUMBER

# The SQL form of `model.is_ordered`.
IS_ORDERED = "(substr(mailbox, 1, 6) <> 'queue:')"
# An open letter of an ordered mailbox that was claimed before: the condition of the partial index
# letters_started, repeated so that the index is used.
IS_STARTED = f"state IN ('waiting', 'unconfirmed') AND attempts > 0 AND {IS_ORDERED}"

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
    make_record=build_letter,
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

# -- state of the queue ---------------------------------------------------------------------------

# Claimed letters whose lease ends later than any lease may: a clock was ahead.
OVERLONG_LEASES = Query(
    OverlongLeases,
    """
    SELECT count(*) AS "count", min(seq) AS first_seq, max(due_at) AS until
    FROM letters WHERE state = 'waiting' AND owner IS NOT NULL AND due_at > :after
    """,
)

# The earliest `due_at` among the heads of all priorities of a mailbox (a loose index scan).
NEXT_DUE_AFTER = Statement("""
    SELECT min(due_at) FROM letters
    WHERE mailbox = :mailbox AND state = 'waiting' AND due_at > :now
""")

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

# Without DISTINCT, which would sort: a mailbox occurs once for each of its unconfirmed letters.
UNCONFIRMED_MAILBOXES = Statement("""
    SELECT mailbox FROM letters
    -- The second condition is that of the index letters_by_state.
    WHERE state = 'unconfirmed' AND state IN ('unconfirmed', 'dead', 'refused', 'expired')
      AND mailbox > :low AND mailbox < :high
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
        WHERE started.mailbox = letters.mailbox AND {IS_STARTED}
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
