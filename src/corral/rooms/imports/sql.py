from corral.db.retention import Retention
from corral.db.statement import Query
from corral.rooms.imports.model import Import

_COLUMNS = "source, path, session_id, read_bytes, turns, charges, updated_at"

BY_PATH = Query(Import, f"SELECT {_COLUMNS} FROM imports WHERE source = :source AND path = :path")

ADD = Query(
    Import,
    f"""
    INSERT INTO imports ({_COLUMNS})
    VALUES (:source, :path, :session_id, 0, 0, 0, :now)
    ON CONFLICT (path, source) DO NOTHING RETURNING {_COLUMNS}
""",
)

# Only who read from where the last one stopped may say that it was read further.
ADVANCE = Query(
    Import,
    f"""
    UPDATE imports
    SET read_bytes = :read_bytes, turns = turns + :turns, charges = charges + :charges,
        updated_at = :now
    WHERE source = :source AND path = :path AND read_bytes = :from_bytes
    RETURNING {_COLUMNS}
""",
)

LIST = Query(
    Import,
    f"""
    SELECT {_COLUMNS} FROM imports
    WHERE (path, source) > (:path, :source) ORDER BY path, source LIMIT :limit
""",
)

KEPT = Retention(
    "imports", setting="imports.keep_ms", born=None, over="updated_at < :before", key="path"
)
