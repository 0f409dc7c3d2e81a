from functools import cache

from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.rooms.imports.model import Import, Origin

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
    "imports",
    setting="imports.keep_ms",
    born=None,
    over="updated_at < :before",
    key="path",
    imported="updated_at",
)

# Its rows know what they became, so one that was forgotten would come in a second time: they are
# kept as long as it is known which files were read.
ORIGINS_KEPT = Retention(
    "origins",
    setting="imports.keep_ms",
    born=None,
    over="coalesce(changed_at, imported_at) < :before",
    key="row_id",
    imported="imported_at",
)

# -- rows of other programs' databases -------------------------------------------------------------

_ORIGIN = "tool, source, part, row_id, became, id, rest, trouble, imported_at, changed_at"
_OF_PART = "tool = :tool AND source = :source AND part = :part"

KNOWN = Statement(f"""
    SELECT row_id, id, digest, became FROM origins WHERE {_OF_PART} AND row_id {{is_listed}}
""")

FORGET_ORIGINS = Statement(f"DELETE FROM origins WHERE {_OF_PART} AND row_id {{is_listed}}")

# Before the transcript of a session that retention or a user has deleted is read again.
FORGET_FILE = Statement("DELETE FROM imports WHERE source = :source AND path = :path")


@cache
def existing(table: str, column: str, numbered: bool) -> Statement:
    """Which of some rows exist, by the column that names them."""
    listed = "is_numbered" if numbered else "is_listed"
    return Statement(f"SELECT {column} FROM {table} WHERE {column} {{{listed}}}")


CHANGED = Statement(f"""
    UPDATE origins SET rest = :rest, digest = :digest, changed_at = :now
    WHERE {_OF_PART} AND row_id = :row_id
""")

_ORIGINS = f"SELECT {_ORIGIN} FROM origins WHERE"
_NEXT = """(tool, source, part, row_id) > (:tool, :source, :part, :row_id)
    ORDER BY tool, source, part, row_id LIMIT :limit"""

ORIGINS = {
    False: Query(Origin, f"{_ORIGINS} {_NEXT}"),
    True: Query(Origin, f"{_ORIGINS} became IS NULL AND {_NEXT}"),
}
ORIGINS_OF = Query(Origin, f"{_ORIGINS} id = :id ORDER BY tool, source, part, row_id LIMIT 100")
