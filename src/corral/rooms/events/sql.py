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

HELD_BACK = Statement("SELECT 1 FROM events WHERE {feed_held_back} LIMIT 1")

# Walked in windows of numbers, oldest first, so that no index has to be kept for it.
WINDOW = Statement("""
    SELECT max(seq), min(at) FROM (
        SELECT seq, at FROM events WHERE seq > :after ORDER BY seq LIMIT :limit
    ) AS oldest
""")

# The newest event stays, so that a store that slept through its retention keeps its place.
PRUNE = Statement("""
    DELETE FROM events
    WHERE seq > :after AND seq <= :last AND at < :before AND seq < (SELECT max(seq) FROM events)
    RETURNING seq
""")

COUNT_PRUNABLE = Statement("""
    SELECT count(*) FROM events
    WHERE seq > :after AND seq <= :last AND at < :before AND seq < (SELECT max(seq) FROM events)
""")
