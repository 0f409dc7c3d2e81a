"""SQL of notes."""

from corral.db.lookup import IdColumn
from corral.db.retention import PrunableRows
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement
from corral.domain.notes.model import TRANSITIONS, Note

IDS = IdColumn("note", "nte", "notes")
NOTES = StatefulTable(Note, TRANSITIONS, table="notes", project="project_id")

_COLUMNS = NOTES.columns
_IS_CURRENT = "state = 'current' AND (expires_at IS NULL OR expires_at > :now)"

BY_KEY = Query(
    Note,
    f"SELECT {_COLUMNS} FROM notes WHERE scope = :scope AND key = :key AND state = 'current'",
)

COUNT_CURRENT = Statement(f"SELECT count(*) FROM notes WHERE scope = :scope AND {_IS_CURRENT}")

# All valid notes of a scope; `notes.max_notes` limits their number.
VISIBLE = Query(
    Note,
    f"""
    SELECT {_COLUMNS} FROM notes WHERE scope = :scope AND {_IS_CURRENT}
    ORDER BY id DESC LIMIT :limit
""",
)

# CAST: PostgreSQL cannot infer the type of a parameter that is only compared with NULL.
_OF_CATEGORY = "(CAST(:category AS TEXT) IS NULL OR category = :category)"
LIST = NOTES.newest_first(f"{_IS_CURRENT} AND {_OF_CATEGORY}")
LIST_OF_SCOPE = NOTES.newest_first(f"scope = :scope AND {_IS_CURRENT} AND {_OF_CATEGORY}")
LIST_ALL = NOTES.newest_first(_OF_CATEGORY)
LIST_ALL_OF_SCOPE = NOTES.newest_first(f"scope = :scope AND {_OF_CATEGORY}")

RECORD_USE = Statement("UPDATE notes SET uses = uses + 1, used_at = :now WHERE id {is_listed}")

DELETE_NOTE = Query(Note, f"DELETE FROM notes WHERE id = :id RETURNING {_COLUMNS}")

IDS_OF_SCOPE = Statement("SELECT id FROM notes WHERE scope = :scope LIMIT :limit")

# A note ends when it is superseded; a note that is valid only until a time, at that time.
PRUNABLE = PrunableRows(
    "notes",
    setting="notes.retention_ms",
    ended={
        "ended_at": "ended_at IS NOT NULL AND ended_at < :before",
        "expires_at": "state = 'current' AND expires_at IS NOT NULL AND expires_at < :before",
    },
    batch=100,
)
