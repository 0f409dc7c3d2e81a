from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable
from corral.domain.mail.model import MOVES, Letter, Stalled, fresh_letter

_COLUMNS = """'let_' || seq AS id, mailbox, sender, project_id, key, body, -rank AS priority, state,
    due_at, line_at, expires_at, owner, fence, attempts, last_error, created_at, ended_at"""

# A letter that is due when it is put stands behind those that were put before it, also where each
# who writes has an own idea of the time. Those that are to wait are not waited for.
_LINE_AT = """
    CASE WHEN CAST(:line_at AS {integer}) <> :created_at THEN :line_at ELSE (
        SELECT greatest(max(ahead.line_at), :line_at) FROM letters AS ahead
        WHERE ahead.mailbox = :mailbox AND ahead.state = 'waiting' AND ahead.rank = :rank
          AND ahead.line_at > :line_at AND ahead.line_at <= :line_at + {clocks_differ_ms}
          AND (ahead.due_at = ahead.created_at OR ahead.attempts > 0)
    ) END
"""

LETTERS = StateTable(
    Letter,
    MOVES,
    table="letters",
    columns=_COLUMNS,
    key="seq",
    number_of="let",
    project="project_id",
    fresh=fresh_letter,
    placed={"line_at": _LINE_AT},
)

WITH_NUMBERS = Query(
    Letter, f"SELECT {_COLUMNS} FROM letters WHERE seq {{is_numbered}} ORDER BY seq"
)

BY_KEY = Query(Letter, f"SELECT {_COLUMNS} FROM letters WHERE mailbox = :mailbox AND key = :key")

KEYED = Statement("""
    SELECT letters.mailbox, letters.key, 'let_' || letters.seq
    FROM {each_of_rows}
    JOIN letters ON letters.mailbox = each.value ->> 0 AND letters.key = each.value ->> 1
""")

# Whoever takes one out this moment keeps it.
UNREAD = Statement("""
    SELECT seq FROM letters
    WHERE mailbox = :mailbox AND key IS NOT NULL AND key {is_listed} AND state = 'waiting'
      AND (owner IS NULL OR due_at <= :now)
    {skip_locked}
""")

# The highest priority (the lowest rank) at which a letter is due, found by one look-up for each
# one in use: a backlog of letters for tomorrow, at whatever priority, costs nothing today.
_LEVEL = """
    level (rank) AS (
        SELECT min(rank) FROM letters WHERE mailbox = :mailbox AND state = 'waiting'
        UNION ALL
        SELECT (
            SELECT min(later.rank) FROM letters AS later
            WHERE later.mailbox = :mailbox AND later.state = 'waiting' AND later.rank > level.rank
        )
        FROM level
        WHERE level.rank IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM letters AS due
            WHERE due.mailbox = :mailbox AND due.state = 'waiting'
              AND due.rank = level.rank AND due.line_at <= :now AND due.due_at <= :now
        )
    )
"""

# Where order does not matter, a letter that is taken moves back in the line with its lease, so that
# the line begins with what can be taken now.
CLAIM_ONE = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL}
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1,
        due_at = :until, line_at = :until
    WHERE seq = (
        SELECT seq FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting'
          AND rank = (SELECT max(rank) FROM level)
          AND line_at <= :now AND due_at <= :now
        ORDER BY line_at, seq LIMIT 1 {{skip_locked}}
    )
    RETURNING {_COLUMNS}
""",
)

CLAIM = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL},
    picked AS MATERIALIZED (
        SELECT seq FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting'
          AND rank = (SELECT max(rank) FROM level)
          AND line_at <= :now AND due_at <= :now
        ORDER BY line_at, seq LIMIT :limit {{skip_locked}}
    )
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1,
        due_at = :until, line_at = :until
    WHERE seq {{is_picked}}
    RETURNING {_COLUMNS}
""",
)

# Said of the letter itself, once it is ours to change: PostgreSQL picks it before it waits for
# whoever is changing it (a late owner acknowledges it, a person drops it), and then looks at this.
_STILL_DUE = "state = 'waiting' AND due_at <= :now"

# Where it does, a letter keeps its place. Nothing is given out while another owner has a letter
# out, nor past a letter that waits for its next attempt. If the first letter that is due cannot be
# taken, none behind it can, so this is asked of the first alone.
CLAIM_ONE_IN_ORDER = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL}
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1, due_at = :until
    WHERE seq = (
        SELECT seq FROM (
            SELECT seq, rank, line_at FROM letters
            WHERE mailbox = :mailbox AND state = 'waiting'
              AND rank = (SELECT max(rank) FROM level)
              AND line_at <= :now AND due_at <= :now
            ORDER BY line_at, seq LIMIT 1
        ) AS next
        WHERE NOT EXISTS (
            SELECT 1 FROM letters AS started
            WHERE started.mailbox = :mailbox AND started.state IN ('waiting', 'unknown')
              AND started.attempts > 0 AND substr(started.mailbox, 1, 6) <> 'queue:'
              AND started.due_at > :now
              AND (started.owner <> :owner
                   OR started.owner IS NULL AND started.rank <= next.rank
                      AND (started.line_at, started.seq) < (next.line_at, next.seq))
        )
    ) AND {_STILL_DUE}
    RETURNING {_COLUMNS}
""",
)

# The same for many: `ahead` are those that would be taken if none were stuck, `stuck` is the first
# of each priority that waits for its next attempt, and nothing is taken from the barrier on.
# Letters that somebody had out before and that are due again: the only ones of which a late owner
# can say something while they are given to another.
HOLD_LATE = Statement("""
    SELECT seq FROM letters
    WHERE mailbox = :mailbox AND substr(mailbox, 1, 6) <> 'queue:'
      AND state IN ('waiting', 'unknown') AND attempts > 0 AND due_at <= :now
    ORDER BY due_at {locked}
""")

_PICKED_IN_ORDER = f"""
    WITH RECURSIVE {_LEVEL},
    ahead AS MATERIALIZED (
        SELECT seq, line_at FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting'
          AND rank = (SELECT max(rank) FROM level)
          AND line_at <= :now AND due_at <= :now
          AND NOT EXISTS (
            SELECT 1 FROM letters AS started
            WHERE started.mailbox = :mailbox AND started.state IN ('waiting', 'unknown')
              AND started.attempts > 0 AND substr(started.mailbox, 1, 6) <> 'queue:'
              AND started.due_at > :now AND started.owner <> :owner
          )
        ORDER BY line_at, seq LIMIT :limit
    ),
    stuck AS MATERIALIZED (
        SELECT line_at, seq FROM letters WHERE seq IN (
            SELECT (
                SELECT waits.seq FROM letters AS waits
                WHERE waits.mailbox = :mailbox AND waits.state = 'waiting'
                  AND waits.rank = level.rank
                  AND waits.line_at <= (SELECT max(ahead.line_at) FROM ahead)
                  AND waits.due_at > :now AND waits.owner IS NULL AND waits.attempts > 0
                ORDER BY waits.line_at, waits.seq LIMIT 1
            )
            FROM level
        )
    ),
    barrier (line_at) AS MATERIALIZED (SELECT min(line_at) FROM stuck),
    picked AS MATERIALIZED (
        SELECT seq FROM ahead
        WHERE (SELECT line_at FROM barrier) IS NULL
           OR line_at < (SELECT line_at FROM barrier)
           OR line_at = (SELECT line_at FROM barrier) AND seq < (
                SELECT min(CASE WHEN line_at = (SELECT line_at FROM barrier) THEN seq END)
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

# The letters that CLAIM_IN_ORDER would take, without taking them.
CLAIMABLE_IN_ORDER = Query(
    Letter,
    f"""
    {_PICKED_IN_ORDER}
    SELECT {_COLUMNS} FROM letters WHERE seq {{is_picked}}
""",
)

# Where order matters, a lease that has run out is not renewed: others may have gone on since.
RENEW = Query(
    Letter,
    f"""
    UPDATE letters SET due_at = :until,
        line_at = CASE WHEN substr(mailbox, 1, 6) = 'queue:' THEN :until ELSE line_at END
    WHERE seq = :seq AND fence = :fence AND owner IS NOT NULL AND state IN ('waiting', 'unknown')
      AND (due_at > :now OR substr(mailbox, 1, 6) = 'queue:')
    RETURNING {_COLUMNS}
""",
)

# When the next letter of a mailbox may become due, priority by priority.
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
        ORDER BY line_at, seq LIMIT 1
    )) FROM level
""")

LAST_IN_LINE = Statement("""
    SELECT max(line_at) FROM letters WHERE mailbox = :mailbox AND state = 'waiting' AND rank = 0
""")

# The mailboxes in which letters wait, found by one look-up for each, however full they are.
LINES = Statement("""
    WITH RECURSIVE line (mailbox) AS (
        SELECT min(mailbox) FROM letters
        WHERE state = 'waiting' AND mailbox > :low AND mailbox < :high
        UNION ALL
        SELECT (
            SELECT min(later.mailbox) FROM letters AS later
            WHERE later.state = 'waiting' AND later.mailbox > line.mailbox
              AND later.mailbox < :high
        )
        FROM line WHERE line.mailbox IS NOT NULL
    )
    SELECT mailbox FROM line WHERE mailbox IS NOT NULL LIMIT :limit
""")

# The first letter of each priority of each mailbox, found by one index seek for each (a loose index
# scan of letters_line), however many letters wait behind it. A mailbox in which an owner has a
# letter out is being worked on, so the letters behind it are not stalled.
STALLED = Query(
    Stalled,
    """
    WITH RECURSIVE head (seq) AS (
        SELECT (
            SELECT seq FROM letters WHERE state = 'waiting' AND mailbox > ''
            ORDER BY mailbox, rank, line_at, seq LIMIT 1
        )
        UNION ALL
        SELECT coalesce(
            (
                SELECT later.seq FROM letters AS later
                WHERE later.state = 'waiting' AND later.mailbox = letters.mailbox
                  AND later.rank > letters.rank
                ORDER BY later.rank, later.line_at, later.seq LIMIT 1
            ),
            (
                SELECT later.seq FROM letters AS later
                WHERE later.state = 'waiting' AND later.mailbox > letters.mailbox
                ORDER BY later.mailbox, later.rank, later.line_at, later.seq LIMIT 1
            )
        )
        FROM head JOIN letters ON letters.seq = head.seq
    )
    SELECT letters.mailbox, letters.due_at
    FROM head JOIN letters ON letters.seq = head.seq
    WHERE letters.due_at <= :before AND NOT EXISTS (
        SELECT 1 FROM letters AS started
        WHERE started.mailbox = letters.mailbox AND started.state IN ('waiting', 'unknown')
          AND started.attempts > 0 AND substr(started.mailbox, 1, 6) <> 'queue:'
          AND started.due_at > :now AND started.owner IS NOT NULL
    )
    LIMIT :limit
""",
)

WAITING = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters
    WHERE state = 'waiting' AND (mailbox, rank, line_at, seq) > (:mailbox, :rank, :line_at, :seq)
    ORDER BY mailbox, rank, line_at, seq LIMIT :limit
""",
)

WAITING_IN_MAILBOX = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters
    WHERE state = 'waiting' AND mailbox = :mailbox
      AND (rank, line_at, seq) > (:rank, :line_at, :seq)
    ORDER BY rank, line_at, seq LIMIT :limit
""",
)

WAITING_NUMBERS = Statement("""
    SELECT seq FROM letters WHERE state = 'waiting' AND mailbox = :mailbox
    ORDER BY rank, line_at, seq LIMIT :limit
""")

ALL = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters WHERE seq < :before ORDER BY seq DESC LIMIT :limit
""",
)

ALL_OF_MAILBOX = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM (
        SELECT * FROM {{letters_of_mailbox}} WHERE mailbox = :mailbox AND seq < :before
        ORDER BY seq DESC LIMIT :limit
    ) AS found ORDER BY seq DESC
""",
)

BY_STATE = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters
    WHERE state = :state AND state IN ('unknown', 'dead', 'refused', 'expired') AND seq < :before
    ORDER BY seq DESC LIMIT :limit
""",
)

EXPIRED = Statement("""
    SELECT seq FROM letters
    WHERE state = 'waiting' AND expires_at IS NOT NULL AND expires_at <= :now
      AND (owner IS NULL OR due_at <= :now)
    ORDER BY expires_at LIMIT :limit {skip_locked}
""")

SESSION_IDS = IdColumn("session", "ses", "sessions")

# Locked, so that no letter is put while the session is closed or replaced.
SESSION = Statement("SELECT state, replaced_by FROM sessions WHERE id = :id {locked}")

KEPT = Retention(
    "letters",
    setting="mail.keep_ms",
    key="seq",
    born="created_at",
    over="ended_at < :before",
    project="project_id",
    imported="imported_at",
)
