"""SQL of schedules and their occurrences."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.schedules.model import (
    OCCURRENCE_TRANSITIONS,
    TRANSITIONS,
    Occurrence,
    OccurrenceWithLetter,
    Schedule,
)
from corral.kernel.pagination import LAST_ID

_COLUMNS = columns_of(Schedule, last_letter_id="'let_' || last_letter_id")

IDS = IdColumn("schedule", "sch", "schedules")
SCHEDULES = StatefulTable(
    Schedule, TRANSITIONS, table="schedules", columns=_COLUMNS, project="project_id"
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

_OPEN = "state IN ('active', 'paused')"
_REPEATING = "kind IN ('every', 'cron')"
_TIMER = "kind = 'once'"

OPEN_SCHEDULES = SCHEDULES.newest_first(f"{_OPEN} AND {_REPEATING}")
ALL_SCHEDULES = SCHEDULES.newest_first(_REPEATING)
OPEN_TIMERS = SCHEDULES.newest_first(f"{_OPEN} AND {_TIMER}")
ALL_TIMERS = SCHEDULES.newest_first(_TIMER)

COUNT_PENDING_TIMERS = Statement("""
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
        script = :script, script_timeout_ms = :script_timeout_ms, next_at = :next_at
    WHERE id = :id AND state IN ('active', 'paused') RETURNING {_COLUMNS}
""",
)

# -- occurrences ----------------------------------------------------------------------------------

_OCCURRENCE = columns_of(Occurrence, letter_id="'let_' || letter_id")

OCCURRENCES = StatefulTable(
    Occurrence,
    OCCURRENCE_TRANSITIONS,
    table="occurrences",
    columns=_OCCURRENCE,
    project="project_id",
)

_LETTER_STATE = "(SELECT letters.state FROM letters WHERE letters.seq = occurrences.letter_id)"
_WITH_LETTER = columns_of(
    OccurrenceWithLetter, letter_id="'let_' || letter_id", letter_state=_LETTER_STATE
)

BY_SCHEDULE = Listing(
    Query(
        OccurrenceWithLetter,
        f"""
        SELECT {_WITH_LETTER} FROM occurrences WHERE schedule_id = :schedule_id AND id < :before
        ORDER BY id DESC LIMIT :limit
    """,
    ),
    start={"before": LAST_ID},
    key=lambda occurrence: (occurrence.id,),
)

COUNT_FAILURE = Statement("""
    UPDATE schedules SET failures = failures + 1, last_error = :reason WHERE id = :id
""")

CLEAR_FAILURES = Statement("""
    UPDATE schedules SET failures = 0, last_error = NULL WHERE id = :id AND failures > 0
""")

# Replaces the letter in the script queue by the letter that was put after the script.
SET_LAST_LETTER = Statement("""
    UPDATE schedules SET last_letter_id = :letter_id
    -- Not if the schedule has fired again since.
    WHERE id = :id AND last_letter_id = :script_letter_id
""")

SET_RUN = Statement("UPDATE occurrences SET run_id = :run_id WHERE letter_id = :letter_id")

OCCURRENCES_RETENTION = Retention(
    "occurrences",
    setting="schedules.retention_ms",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
)
