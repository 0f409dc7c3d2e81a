"""SQL of imported files and of the origins of imported rows."""

from functools import cache

from corral.db.listing import Listing
from corral.db.retention import Retention
from corral.db.statement import Query, Statement, columns_of
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

LIST = Listing(
    Query(
        Import,
        f"""
    SELECT {_COLUMNS} FROM imports
    WHERE (path, source) > (:path, :source) ORDER BY path, source LIMIT :limit
""",
    ),
    start={"source": "", "path": ""},
    key=lambda row: (row.source, row.path),
)

# For a session that was deleted: its transcript is imported again from the start.
DELETE_FILE = Statement("DELETE FROM imports WHERE source = :source AND path = :path")

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

# -- origins: rows of other tools' databases ------------------------------------------------------

_ORIGIN = columns_of(Origin)
_OF_TABLE = "tool = :tool AND source = :source AND source_table = :source_table"

IMPORTED_ROWS = Statement(f"""
    SELECT row_id, id, digest, record_table FROM import_origins
    WHERE {_OF_TABLE} AND row_id {{is_listed}}
""")

DELETE_ORIGINS = Statement(f"DELETE FROM import_origins WHERE {_OF_TABLE} AND row_id {{is_listed}}")


@cache
def build_existing(table: str, column: str, numbered: bool) -> Statement:
    """Build the statement that finds existing rows of a table by a key column."""
    listed = "is_numbered" if numbered else "is_listed"
    return Statement(f"SELECT {column} FROM {table} WHERE {column} {{{listed}}}")


UPDATE_ORIGIN = Statement(
    f"""
    UPDATE import_origins SET unmapped = :unmapped, digest = :digest, changed_at = :now
    WHERE {_OF_TABLE} AND row_id = :row_id
""",
    # These columns are redacted, so the comparison needs the redacted values.
    policies=dict.fromkeys(("tool", "source", "source_table"), Policy.REDACTED),
)

_ORIGINS = f"SELECT {_ORIGIN} FROM import_origins WHERE"
_ORIGIN_ORDER = "ORDER BY tool, source, source_table, row_id"


def _list_origins(condition: str = "") -> Listing[Origin]:
    position = "(tool, source, source_table, row_id) > (:tool, :source, :source_table, :row_id)"
    return Listing(
        Query(Origin, f"{_ORIGINS} {condition} {position} {_ORIGIN_ORDER} LIMIT :limit"),
        start=dict.fromkeys(("tool", "source", "source_table", "row_id"), ""),
        key=lambda row: (row.tool, row.source, row.source_table, row.row_id),
    )


ORIGINS = _list_origins()
ORIGINS_WITHOUT_RECORD = _list_origins("record_table IS NULL AND")
ORIGINS_OF = Query(Origin, f"{_ORIGINS} id = :id {_ORIGIN_ORDER} LIMIT 100")

# All origins of one database, for retention.

NEXT_SOURCE = Statement("""
    SELECT tool, source FROM import_origins WHERE (tool, source) > (:tool, :source)
    ORDER BY tool, source LIMIT 1
""")

LAST_CHANGE_AT = Statement("""
    SELECT max(coalesce(changed_at, imported_at)) FROM import_origins
    WHERE tool = :tool AND source = :source
""")

OF_SOURCE = Statement("""
    SELECT source_table, row_id, id, digest, record_table FROM import_origins
    WHERE tool = :tool AND source = :source AND (source_table, row_id) > (:source_table, :row_id)
    ORDER BY source_table, row_id LIMIT :limit
""")

COUNT_OF_SOURCE = Statement(
    "SELECT count(*) FROM import_origins WHERE tool = :tool AND source = :source"
)

DELETE_SOURCE = Statement("""
    DELETE FROM import_origins WHERE (tool, source, source_table, row_id) IN (
        SELECT tool, source, source_table, row_id FROM import_origins
        WHERE tool = :tool AND source = :source ORDER BY source_table, row_id LIMIT :limit
    ) RETURNING row_id
""")
