from corral.db.lookup import IdColumn
from corral.db.moves import StateTable
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.rooms.questions.model import MOVES, Question

_COLUMNS = """id, project_id, asker, run_id, key, text, options, free, answerers, fallback, state,
    answer, answered_by, deadline_at, created_at, ended_at"""

IDS = IdColumn("question", "qst", "questions")
QUESTIONS = StateTable(Question, MOVES, table="questions", columns=_COLUMNS, project="project_id")

BY_KEY = Query(Question, f"SELECT {_COLUMNS} FROM questions WHERE asker = :asker AND key = :key")

COUNT_OPEN = Statement("SELECT count(*) FROM questions WHERE state = 'open' AND asker = :asker")

DUE = Query(
    Question,
    f"""
    SELECT {_COLUMNS} FROM questions WHERE state = 'open' AND deadline_at <= :now
    ORDER BY deadline_at, id LIMIT :limit {{skip_locked}}
""",
)

NEXT_DUE = Statement("SELECT min(deadline_at) FROM questions WHERE state = 'open'")


def _list(condition: str) -> Query[Question]:
    return Query(
        Question,
        f"SELECT {_COLUMNS} FROM questions WHERE id < :before {condition}"
        " ORDER BY id DESC LIMIT :limit",
    )


LIST_OPEN = _list("AND state = 'open'")
LIST_ALL = _list("")
LIST_OPEN_OF_ASKER = _list("AND state = 'open' AND asker = :asker")
LIST_ALL_OF_ASKER = _list("AND asker = :asker")

OPEN_OF_PROJECT = Statement(
    "SELECT id FROM questions WHERE project_id = :project_id AND state = 'open'"
)

KEPT = Retention(
    "questions", setting="questions.keep_ms", born="created_at", over="ended_at < :before"
)
