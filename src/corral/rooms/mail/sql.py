from corral.db.moves import StateTable
from corral.db.statement import Query, Statement
from corral.rooms.mail.model import MOVES, Letter

_COLUMNS = """'let_' || seq AS id, mailbox, sender, project_id, key, body, priority, state, due_at,
    line_at, expires_at, owner, fence, attempts, last_error, created_at, ended_at"""

LETTERS = StateTable(
    Letter,
    MOVES,
    table="letters",
    columns=_COLUMNS,
    key="seq",
    number_of="let",
    project="project_id",
)

BY_KEY = Query(Letter, f"SELECT {_COLUMNS} FROM letters WHERE mailbox = :mailbox AND key = :key")

# The highest priority at which a letter is due, found by one look-up for each priority in use:
# a backlog of letters for tomorrow, at whatever priority, costs nothing today.
_LEVEL = """
    level (priority) AS (
        SELECT max(priority) FROM letters WHERE mailbox = :mailbox AND state = 'waiting'
        UNION ALL
        SELECT (
            SELECT max(lower.priority) FROM letters AS lower
            WHERE lower.mailbox = :mailbox AND lower.state = 'waiting'
              AND lower.priority < level.priority
        )
        FROM level
        WHERE level.priority IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM letters AS due
            WHERE due.mailbox = :mailbox AND due.state = 'waiting'
              AND due.priority = level.priority AND due.line_at <= :now AND due.due_at <= :now
        )
    )
"""

# Where order does not matter, a letter that is taken moves back in the line with its lease, so that
# the line begins with what can be taken now.
CLAIM = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL},
    picked AS MATERIALIZED (
        SELECT seq FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting'
          AND priority = (SELECT min(priority) FROM level)
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

# Where it does, a letter keeps its place. Nothing is given out while another owner has a letter
# out, nor past a letter that waits for its next attempt.
CLAIM_IN_ORDER = Query(
    Letter,
    f"""
    WITH RECURSIVE {_LEVEL},
    picked AS MATERIALIZED (
        SELECT seq FROM letters AS next
        WHERE mailbox = :mailbox AND state = 'waiting'
          AND priority = (SELECT min(priority) FROM level)
          AND line_at <= :now AND due_at <= :now
          AND NOT EXISTS (
            SELECT 1 FROM letters AS started
            WHERE started.mailbox = :mailbox AND started.state IN ('waiting', 'unknown')
              AND started.fence > 0 AND started.due_at > :now
              AND (started.owner <> :owner
                   OR started.owner IS NULL AND started.priority >= next.priority
                      AND (started.line_at, started.seq) < (next.line_at, next.seq))
          )
        ORDER BY line_at, seq LIMIT :limit
    )
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1, due_at = :until
    WHERE seq {{is_picked}}
    RETURNING {_COLUMNS}
""",
)

RENEW = Query(
    Letter,
    f"""
    UPDATE letters SET due_at = :until,
        line_at = CASE WHEN substr(mailbox, 1, 6) = 'queue:' THEN :until ELSE line_at END
    WHERE seq = :seq AND fence = :fence AND owner IS NOT NULL AND state IN ('waiting', 'unknown')
    RETURNING {_COLUMNS}
""",
)

# When the next letter of a mailbox may become due, priority by priority.
NEXT_DUE = Statement("""
    WITH RECURSIVE level (priority) AS (
        SELECT max(priority) FROM letters WHERE mailbox = :mailbox AND state = 'waiting'
        UNION ALL
        SELECT (
            SELECT max(lower.priority) FROM letters AS lower
            WHERE lower.mailbox = :mailbox AND lower.state = 'waiting'
              AND lower.priority < level.priority
        )
        FROM level WHERE level.priority IS NOT NULL
    )
    SELECT min((
        SELECT due_at FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting' AND letters.priority = level.priority
        ORDER BY line_at, seq LIMIT 1
    )) FROM level
""")

OPEN = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters
    WHERE state IN ('waiting', 'unknown') AND (mailbox, seq) > (:mailbox, :seq)
    ORDER BY mailbox, seq LIMIT :limit
""",
)

OPEN_OF_MAILBOX = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters
    WHERE state IN ('waiting', 'unknown') AND mailbox = :mailbox AND seq > :seq
    ORDER BY seq LIMIT :limit
""",
)

ALL = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters WHERE seq < :before ORDER BY seq DESC LIMIT :limit
""",
)

ALL_OF_MAILBOX = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters WHERE mailbox = :mailbox AND seq < :before
    ORDER BY seq DESC LIMIT :limit
""",
)

FAILED = Query(
    Letter,
    f"""
    SELECT {_COLUMNS} FROM letters
    WHERE state = :state AND state IN ('dead', 'refused', 'expired') AND seq < :before
    ORDER BY seq DESC LIMIT :limit
""",
)

EXPIRED = Statement("""
    SELECT seq FROM letters
    WHERE state = 'waiting' AND expires_at IS NOT NULL AND expires_at <= :now
      AND (owner IS NULL OR due_at <= :now)
    ORDER BY expires_at LIMIT :limit {skip_locked}
""")

# Walked in windows of numbers, oldest first, so that no index has to be kept for it.
WINDOW = Statement("""
    SELECT max(seq), min(created_at) FROM (
        SELECT seq, created_at FROM letters WHERE seq > :after ORDER BY seq LIMIT :limit
    ) AS oldest
""")

PRUNE = Statement("""
    DELETE FROM letters WHERE seq > :after AND seq <= :last AND ended_at < :before RETURNING seq
""")

COUNT_PRUNABLE = Statement("""
    SELECT count(*) FROM letters WHERE seq > :after AND seq <= :last AND ended_at < :before
""")
