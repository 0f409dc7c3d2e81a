from corral.db.lookup import IdColumn
from corral.db.retention import Scoped
from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable
from corral.domain.notes.model import MOVES, Note

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

USE = Statement("UPDATE notes SET uses = uses + 1, used_at = :now WHERE id {is_listed}")

FORGET = Query(Note, f"DELETE FROM notes WHERE id = :id RETURNING {_COLUMNS}")

OF_SCOPE = Statement("SELECT id FROM notes WHERE scope = :scope LIMIT :limit")

_SUPERSEDED = "FROM notes WHERE ended_at IS NOT NULL AND ended_at < :before AND {whose}"
_EXPIRED = """FROM notes
    WHERE state = 'current' AND expires_at IS NOT NULL AND expires_at < :before AND {whose}"""
SUPERSEDED = Scoped(f"SELECT id {_SUPERSEDED} ORDER BY ended_at LIMIT :limit {{skip_locked}}")
EXPIRED = Scoped(f"SELECT id {_EXPIRED} ORDER BY expires_at LIMIT :limit {{skip_locked}}")
COUNT_SUPERSEDED = Scoped(f"SELECT count(*) {_SUPERSEDED}")
COUNT_EXPIRED = Scoped(f"SELECT count(*) {_EXPIRED}")
