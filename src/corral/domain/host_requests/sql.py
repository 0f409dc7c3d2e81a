"""SQL of requests to the host."""

from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement
from corral.domain.host_requests.model import TRANSITIONS, HostRequest

IDS = IdColumn("request", "req", "host_requests")
REQUESTS = StatefulTable(HostRequest, TRANSITIONS, table="host_requests")

_OWN_KEY = "WHERE agent_id = :agent_id AND key = :key"
BY_KEY = Query(HostRequest, f"SELECT {REQUESTS.columns} FROM host_requests {_OWN_KEY}")

ALL = REQUESTS.newest_first()
OF_AGENT = REQUESTS.newest_first("agent_id = :agent_id")

WAITING = Query(
    HostRequest,
    f"""
    SELECT {REQUESTS.columns} FROM host_requests
    WHERE state = 'waiting' AND action = :action AND id > :after ORDER BY id LIMIT :limit
""",
)

_WAITS = "agent_id = :agent_id AND state = 'waiting'"
COUNT_WAITING = Statement(f"SELECT count(*) FROM host_requests WHERE {_WAITS}")

SET_QUESTION = Query(
    HostRequest,
    f"""
    UPDATE host_requests SET question_id = :question_id WHERE id = :id
    RETURNING {REQUESTS.columns}
""",
)

RETENTION = Retention(
    "host_requests",
    setting="messages.retention_ms",
    created="created_at",
    ended="ended_at < :before",
)
