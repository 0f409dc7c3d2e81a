from corral.db.lookup import IdColumn
from corral.db.moves import StateTable
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.rooms.schedules.model import MOVES, Schedule

_COLUMNS = """id, name, project_id, mailbox, body, priority, kind, rule, time_zone, anchor_at,
    misfire, overlap, state, next_at, last_at, last_letter, last_error, created_at, ended_at"""

IDS = IdColumn("schedule", "sch", "schedules")
SCHEDULES = StateTable(Schedule, MOVES, table="schedules", columns=_COLUMNS, project="project_id")

DUE = Query(
    Schedule,
    f"""
    SELECT {_COLUMNS} FROM schedules
    WHERE state = 'active' AND next_at <= :now
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

KEPT = Retention(
    "schedules", setting="schedules.keep_ms", born="created_at", over="ended_at < :before"
)
