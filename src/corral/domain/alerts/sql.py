"""SQL of alerts."""

from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.db.transitions import StatefulTable
from corral.domain.alerts.model import MOVES, Alert

_COLUMNS = """id, state, kinds, project_id, agent_id, target_kind, target, secret, created_at,
    created_by, ended_at"""

IDS = IdColumn("alert", "alr", "alerts")
ALERTS = StatefulTable(Alert, MOVES, table="alerts", columns=_COLUMNS, project="project_id")

ACTIVE = Query(
    Alert,
    f"""
    SELECT {_COLUMNS} FROM alerts WHERE state = 'active' AND id > :after ORDER BY id LIMIT :limit
""",
)

ALL = Query(
    Alert,
    f"SELECT {_COLUMNS} FROM alerts WHERE id > :after ORDER BY id LIMIT :limit",
)

COUNT_ACTIVE = Statement("SELECT count(*) FROM alerts WHERE state = 'active'")

RETENTION = Retention(
    "alerts",
    setting="alerts.retention_ms",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
)
