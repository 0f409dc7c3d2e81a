from corral.db.lookup import IdColumn
from corral.db.moves import StateTable
from corral.db.statement import Query, Statement
from corral.rooms.memory.model import MOVES, Note

_COLUMNS = """id, scope, project_id, category, key, text, source, confidence, uses, used_at,
    supersedes, state, expires_at, created_at, ended_at"""

IDS = IdColumn("note", "nte", "notes")
NOTES = StateTable(Note, MOVES, table="notes", columns=_COLUMNS, project="project_id")

BY_KEY = Query(
    Note,
    f"SELECT {_COLUMNS} FROM notes WHERE scope = :scope AND key = :key AND state = 'current'",
)

COUNT = Statement("""
    SELECT count(*) FROM notes WHERE scope = :scope AND state = 'current'
      AND (expires_at IS NULL OR expires_at > :now)
""")

# All that counts for somebody; the limits of each scope say how many that can be.
VISIBLE = Query(
    Note,
    f"""
    SELECT {_COLUMNS} FROM notes WHERE scope = :scope AND state = 'current'
      AND (expires_at IS NULL OR expires_at > :now)
    ORDER BY id DESC LIMIT :limit
""",
)


def _list(condition: str) -> Query[Note]:
    return Query(
        Note,
        f"""
        SELECT {_COLUMNS} FROM notes WHERE id < :before {condition}
          AND (CAST(:category AS TEXT) IS NULL OR category = :category)
        ORDER BY id DESC LIMIT :limit
    """,
    )


_CURRENT = "AND state = 'current' AND (expires_at IS NULL OR expires_at > :now)"
LIST = _list(_CURRENT)
LIST_OF_SCOPE = _list(f"AND scope = :scope {_CURRENT}")
LIST_ALL = _list("")
LIST_ALL_OF_SCOPE = _list("AND scope = :scope")

USE = Statement("""
    UPDATE notes SET uses = uses + 1, used_at = :now
    WHERE id IN (SELECT passed.value FROM {each_passed})
""")

FORGET = Query(Note, f"DELETE FROM notes WHERE id = :id RETURNING {_COLUMNS}")

OF_SCOPE = Statement("SELECT id FROM notes WHERE scope = :scope LIMIT :limit")

PRUNABLE = Statement("""
    SELECT id FROM notes WHERE ended_at IS NOT NULL AND ended_at < :before
    UNION
    SELECT id FROM notes WHERE expires_at IS NOT NULL AND expires_at < :before
    LIMIT :limit
""")

COUNT_PRUNABLE = Statement("""
    SELECT count(*) FROM (
        SELECT id FROM notes WHERE ended_at IS NOT NULL AND ended_at < :before
        UNION
        SELECT id FROM notes WHERE expires_at IS NOT NULL AND expires_at < :before
    ) AS prunable
""")
