from corral.db.lookup import IdColumn
from corral.db.moves import StateTable
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.rooms.decisions.model import MOVES, Decision

_COLUMNS = """id, project_id, author, run_id, key, category, title, rationale, alternatives,
    answerers, at_deadline, state, decided_by, reason, deadline_at, created_at, ended_at"""

IDS = IdColumn("decision", "dec", "decisions")
DECISIONS = StateTable(Decision, MOVES, table="decisions", columns=_COLUMNS, project="project_id")

BY_KEY = Query(Decision, f"SELECT {_COLUMNS} FROM decisions WHERE author = :author AND key = :key")

COUNT_PROPOSED = Statement(
    "SELECT count(*) FROM decisions WHERE state = 'proposed' AND author = :author"
)

DUE = Query(
    Decision,
    f"""
    SELECT {_COLUMNS} FROM decisions WHERE state = 'proposed' AND deadline_at <= :now
    ORDER BY deadline_at, id LIMIT :limit {{skip_locked}}
""",
)

NEXT_DUE = Statement("SELECT min(deadline_at) FROM decisions WHERE state = 'proposed'")


def _list(condition: str) -> Query[Decision]:
    return Query(
        Decision,
        f"SELECT {_COLUMNS} FROM decisions WHERE id < :before {condition}"
        " ORDER BY id DESC LIMIT :limit",
    )


LIST = _list("")
LIST_PROPOSED = _list("AND state = 'proposed'")
LIST_OF_PROJECT = _list("AND project_id = :project_id")

PROPOSED_OF_PROJECT = Statement(
    "SELECT id FROM decisions WHERE project_id = :project_id AND state = 'proposed'"
)

KEPT = Retention(
    "decisions",
    setting="decisions.keep_ms",
    born="created_at",
    over="(ended_at < :before OR state = 'recorded' AND created_at < :before)",
)
