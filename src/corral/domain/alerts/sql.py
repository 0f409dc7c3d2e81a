"""SQL of alerts."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement
from corral.domain.alerts.model import TRANSITIONS, Alert

IDS = IdColumn("alert", "alr", "alerts")
ALERTS = StatefulTable(Alert, TRANSITIONS, table="alerts", project="project_id")


def _oldest_first(condition: str) -> Listing[Alert]:
    query = Query(
        Alert,
        f"SELECT {ALERTS.columns} FROM alerts WHERE {condition} ORDER BY id LIMIT :limit",
    )
    return Listing(query, start={"after": ""}, key=lambda alert: (alert.id,))


ACTIVE = _oldest_first("state = 'active' AND id > :after")
ALL = _oldest_first("id > :after")

COUNT_ACTIVE = Statement("SELECT count(*) FROM alerts WHERE state = 'active'")

RETENTION = Retention(
    "alerts",
    setting="alerts.retention_ms",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
)
