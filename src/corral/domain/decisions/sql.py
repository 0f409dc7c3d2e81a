"""SQL of decisions."""

from corral.db.deadlines import Deadlines
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query
from corral.domain.decisions.model import TRANSITIONS, Decision

IDS = IdColumn("decision", "dec", "decisions")
DECISIONS = StatefulTable(Decision, TRANSITIONS, table="decisions", project="project_id")

BY_KEY = Query(
    Decision, f"SELECT {DECISIONS.columns} FROM decisions WHERE author = :author AND key = :key"
)

WAITING = Deadlines(DECISIONS, state="proposed", owner="author")

ALL = DECISIONS.newest_first()
PROPOSED = DECISIONS.newest_first("state = 'proposed'")
OF_PROJECT = DECISIONS.newest_first("project_id = :project_id")

RETENTION = Retention(
    "decisions",
    setting="decisions.retention_ms",
    created="created_at",
    ended="(ended_at < :before OR state = 'recorded' AND created_at < :before)",
    project="project_id",
    imported="imported_at",
)
