from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.rooms.events.model import Event

_COLUMNS = (
    "'evt_' || seq AS id, {feed_cursor} AS cursor, at, actor, kind, verb, subject, project_id, data"
)

AFTER = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE {{feed_after}}
    ORDER BY {{feed_key}} LIMIT :limit
""",
)

AFTER_BY_SUBJECT = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE subject = :subject AND {{feed_after}}
    ORDER BY {{feed_key}} LIMIT :limit
""",
)

AFTER_BY_PROJECT = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE project_id = :project_id AND {{feed_after}}
    ORDER BY {{feed_key}} LIMIT :limit
""",
)

NEWEST = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE {{feed_settled}}
    ORDER BY {{feed_key_desc}} LIMIT :limit
""",
)

NEWEST_BY_SUBJECT = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE subject = :subject AND {{feed_settled}}
    ORDER BY {{feed_key_desc}} LIMIT :limit
""",
)

NEWEST_BY_PROJECT = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE project_id = :project_id AND {{feed_settled}}
    ORDER BY {{feed_key_desc}} LIMIT :limit
""",
)

BEFORE = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE {{feed_before}}
    ORDER BY {{feed_key_desc}} LIMIT :limit
""",
)

BEFORE_BY_SUBJECT = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE subject = :subject AND {{feed_before}}
    ORDER BY {{feed_key_desc}} LIMIT :limit
""",
)

BEFORE_BY_PROJECT = Query(
    Event,
    f"""
    SELECT {_COLUMNS} FROM events
    WHERE project_id = :project_id AND {{feed_before}}
    ORDER BY {{feed_key_desc}} LIMIT :limit
""",
)

HELD_BACK = Statement("SELECT 1 FROM events WHERE {feed_held_back} LIMIT 1")

KEPT = Retention("events", setting="events.keep_ms", key="seq", born="at", over="at < :before")
