"""SQL of imported files and of the origins of imported rows."""

from functools import cache

from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.imports.model import Import, Origin
from corral.kernel.redaction_policy import Policy

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

ADVANCE = Query(
    Import,
    f"""
    UPDATE imports
    SET read_bytes = :read_bytes, turns = turns + :turns, charges = charges + :charges,
        updated_at = :now
    -- The last condition detects a concurrent import of the same file.
    WHERE source = :source AND path = :path AND read_bytes = :from_bytes
    RETURNING {_COLUMNS}
""",
    # The column is redacted, so the comparison needs the redacted value.
    policies={"source": Policy.REDACTED},
)

LIST = Query(
    Import,
    f"""
    SELECT {_COLUMNS} FROM imports
    WHERE (path, source) > (:path, :source) ORDER BY path, source LIMIT :limit
""",
)

# Kept as long as the session: an unknown file would be imported a second time.
RETENTION = Retention(
    "imports",
    setting="imports.retention_ms",
    created=None,
    ended="""updated_at < :before
        AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = imports.session_id)""",
    key="path",
    imported="updated_at",
)

NEXT_SOURCE = Statement("""
    SELECT tool, source FROM origins WHERE (tool, source) > (:tool, :source)
    ORDER BY tool, source LIMIT 1
""")

LAST_CHANGE_AT = Statement("""
    SELECT max(coalesce(changed_at, imported_at)) FROM origins
    WHERE tool = :tool AND source = :source
""")

OF_SOURCE = Statement("""
    SELECT part, row_id, id, digest, became FROM origins
    WHERE tool = :tool AND source = :source AND (part, row_id) > (:part, :row_id)
    ORDER BY part, row_id LIMIT :limit
""")

COUNT_OF_SOURCE = Statement("SELECT count(*) FROM origins WHERE tool = :tool AND source = :source")

DELETE_SOURCE = Statement("""
    DELETE FROM origins WHERE (tool, source, part, row_id) IN (
        SELECT tool, source, part, row_id FROM origins
        WHERE tool = :tool AND source = :source ORDER BY part, row_id LIMIT :limit
    ) RETURNING row_id
""")

# -- rows of other programs' databases -------------------------------------------------------------

_ORIGIN = "tool, source, part, row_id, became, id, rest, trouble, imported_at, changed_at"
_OF_PART = "tool = :tool AND source = :source AND part = :part"

IMPORTED_ROWS = Statement(f"""
    SELECT row_id, id, digest, became FROM origins WHERE {_OF_PART} AND row_id {{is_listed}}
""")

DELETE_ORIGINS = Statement(f"DELETE FROM origins WHERE {_OF_PART} AND row_id {{is_listed}}")

# For a session that was deleted: its transcript is imported again from the start.
DELETE_FILE = Statement("DELETE FROM imports WHERE source = :source AND path = :path")


@cache
def existing(table: str, column: str, numbered: bool) -> Statement:
    """Build the statement that finds existing rows of a table by a key column."""
    listed = "is_numbered" if numbered else "is_listed"
    return Statement(f"SELECT {column} FROM {table} WHERE {column} {{{listed}}}")


UPDATE_ORIGIN = Statement(
    f"""
    UPDATE origins SET rest = :rest, digest = :digest, changed_at = :now
    WHERE {_OF_PART} AND row_id = :row_id
""",
    # These columns are redacted, so the comparison needs the redacted values.
    policies=dict.fromkeys(("tool", "source", "part"), Policy.REDACTED),
)

_ORIGINS = f"SELECT {_ORIGIN} FROM origins WHERE"
_NEXT = """(tool, source, part, row_id) > (:tool, :source, :part, :row_id)
    ORDER BY tool, source, part, row_id LIMIT :limit"""

ORIGINS = {
    False: Query(Origin, f"{_ORIGINS} {_NEXT}"),
    True: Query(Origin, f"{_ORIGINS} became IS NULL AND {_NEXT}"),
}
ORIGINS_OF = Query(Origin, f"{_ORIGINS} id = :id ORDER BY tool, source, part, row_id LIMIT 100")
