"""SQL of schedules and their occurrences."""

from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.db.transitions import StatefulTable
from corral.domain.schedules.model import (
    MOVES,
    OCCURRENCE_MOVES,
    Occurrence,
    OccurrenceWithLetter,
    Schedule,
)

_COLUMNS = """id, name, project_id, mailbox, body, priority, kind, rule, time_zone, anchor_at,
    misfire, overlap, state, next_at, last_at, last_letter, last_error, script, script_ms,
    failures, sender, created_at, ended_at"""

IDS = IdColumn("schedule", "sch", "schedules")
SCHEDULES = StatefulTable(
    Schedule, MOVES, table="schedules", columns=_COLUMNS, project="project_id"
)

DUE = Query(
    Schedule,
    f"""
    SELECT {_COLUMNS} FROM schedules
    WHERE state = 'active' AND next_at <= :now
    -- Skips schedules that another process is firing.
    ORDER BY next_at, id LIMIT :limit {{skip_locked}}
""",
)

NEXT_AT = Statement("SELECT min(next_at) FROM schedules WHERE state = 'active'")

OPEN = Query(
    Schedule,
    f"""
    SELECT {_COLUMNS} FROM schedules
    WHERE state IN ('active', 'paused') AND id < :id AND kind IN (:kind_1, :kind_2)
    ORDER BY id DESC LIMIT :limit
""",
)

ALL = Query(
    Schedule,
    f"""
    SELECT {_COLUMNS} FROM schedules
    WHERE id < :id AND kind IN (:kind_1, :kind_2)
    ORDER BY id DESC LIMIT :limit
""",
)

PENDING_TIMERS = Statement("""
    SELECT count(*) FROM schedules
    WHERE mailbox = :mailbox AND kind = 'once' AND state IN ('active', 'paused')
""")

OF_PROJECT = Statement("""
    SELECT id FROM schedules WHERE project_id = :project_id AND state IN ('active', 'paused')
""")

RETENTION = Retention(
    "schedules",
    setting="schedules.retention_ms",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
    imported="imported_at",
)

EDIT = Query(
    Schedule,
    f"""
    UPDATE schedules SET name = :name, body = :body, kind = :kind, rule = :rule,
        time_zone = :time_zone, anchor_at = :anchor_at, misfire = :misfire, overlap = :overlap,
        script = :script, script_ms = :script_ms, next_at = :next_at
    WHERE id = :id AND state IN ('active', 'paused') RETURNING {_COLUMNS}
""",
)

# -- occurrences ----------------------------------------------------------------------------------

_OCCURRENCE = """id, schedule_id, project_id, moment, state, tries, exit_code, output, reason,
    'let_' || letter AS letter_id, run_id, created_at, ended_at"""

OCCURRENCES = StatefulTable(
    Occurrence,
    OCCURRENCE_MOVES,
    table="occurrences",
    columns=_OCCURRENCE,
    project="project_id",
    unread_columns=("letter",),
)

HISTORY = Query(
    OccurrenceWithLetter,
    f"""
    SELECT {_OCCURRENCE},
        (SELECT letters.state FROM letters WHERE letters.seq = occurrences.letter) AS letter_state
    FROM occurrences WHERE schedule_id = :schedule_id AND id < :before
    ORDER BY id DESC LIMIT :limit
""",
)

COUNT_FAILURE = Statement("""
    UPDATE schedules SET failures = failures + 1, last_error = :reason WHERE id = :id
""")

CLEAR_FAILURES = Statement("""
    UPDATE schedules SET failures = 0, last_error = NULL WHERE id = :id AND failures > 0
""")

# Replaces the letter in the script queue by the letter that the script let through, unless the
# schedule has fired again since.
SET_LAST_LETTER = Statement("""
    UPDATE schedules SET last_letter = :letter WHERE id = :id AND last_letter = :before
""")

SET_RUN = Statement("UPDATE occurrences SET run_id = :run_id WHERE letter = :letter")

OCCURRENCES_RETENTION = Retention(
    "occurrences",
    setting="schedules.retention_ms",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
)
