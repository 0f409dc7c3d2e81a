"""SQL of questions."""

from corral.db.deadlines import Deadlines
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement
from corral.domain.questions.model import TRANSITIONS, Question

IDS = IdColumn("question", "qst", "questions")
QUESTIONS = StatefulTable(Question, TRANSITIONS, table="questions", project="project_id")

BY_KEY = Query(
    Question, f"SELECT {QUESTIONS.columns} FROM questions WHERE asker = :asker AND key = :key"
)

WAITING = Deadlines(QUESTIONS, state="open", owner="asker")

OPEN = QUESTIONS.newest_first("state = 'open'")
ALL = QUESTIONS.newest_first()
OPEN_OF_ASKER = QUESTIONS.newest_first("state = 'open' AND asker = :asker")
ALL_OF_ASKER = QUESTIONS.newest_first("asker = :asker")

# Only for imported questions: the text of other questions never changes.
SET_TEXT = Statement("""
    UPDATE questions SET text = :text, options = CAST(:options AS {json})
    WHERE id = :id AND imported_at IS NOT NULL
""")

RETENTION = Retention(
    "questions",
    setting="questions.retention_ms",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
    imported="imported_at",
)
