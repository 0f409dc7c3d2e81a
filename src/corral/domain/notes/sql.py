"""SQL of notes."""

from corral.db.lookup import IdColumn
from corral.db.retention import ScopedStatement
from corral.db.statement import Query, Statement
from corral.db.transitions import StatefulTable
from corral.domain.notes.model import MOVES, Note

_COLUMNS = """id, scope, project_id, category, key, text, source, confidence, uses, used_at,
    supersedes, state, expires_at, created_at, ended_at"""

IDS = IdColumn("note", "nte", "notes")
NOTES = StatefulTable(Note, MOVES, table="notes", columns=_COLUMNS, project="project_id")

BY_KEY = Query(
    Note,
    f"SELECT {_COLUMNS} FROM notes WHERE scope = :scope AND key = :key AND state = 'current'",
)

COUNT_CURRENT = Statement("""
    SELECT count(*) FROM notes WHERE scope = :scope AND state = 'current'
      AND (expires_at IS NULL OR expires_at > :now)
""")

# All valid notes of a scope; `notes.max` limits their number.
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

COUNT_USES = Statement("UPDATE notes SET uses = uses + 1, used_at = :now WHERE id {is_listed}")

DELETE_NOTE = Query(Note, f"DELETE FROM notes WHERE id = :id RETURNING {_COLUMNS}")

IDS_OF_SCOPE = Statement("SELECT id FROM notes WHERE scope = :scope LIMIT :limit")

_SUPERSEDED = "FROM notes WHERE ended_at IS NOT NULL AND ended_at < :before AND {in_scope}"
_EXPIRED = """FROM notes
    WHERE state = 'current' AND expires_at IS NOT NULL AND expires_at < :before AND {in_scope}"""
SUPERSEDED = ScopedStatement(
    f"SELECT id {_SUPERSEDED} ORDER BY ended_at LIMIT :limit {{skip_locked}}"
)
EXPIRED = ScopedStatement(f"SELECT id {_EXPIRED} ORDER BY expires_at LIMIT :limit {{skip_locked}}")
COUNT_SUPERSEDED = ScopedStatement(f"SELECT count(*) {_SUPERSEDED}")
COUNT_EXPIRED = ScopedStatement(f"SELECT count(*) {_EXPIRED}")
