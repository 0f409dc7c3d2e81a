"""SQL of nodes and of loop leadership."""

from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement
from corral.domain.nodes.model import TRANSITIONS, Leadership, Node

IDS = IdColumn("node", "nod", "nodes")
NODES = StatefulTable(Node, TRANSITIONS, table="nodes")
_COLUMNS = NODES.columns

ALL = NODES.newest_first()

BY_BOOT = Query(
    Node,
    f"""
    SELECT {_COLUMNS} FROM nodes WHERE name = :name AND boot_id = :boot_id
""",
)

SERVED_HOST = Query(
    Node,
    f"""
    SELECT {_COLUMNS} FROM nodes
    WHERE name = :name AND state = 'up' AND lease_until > :now ORDER BY boot_id DESC LIMIT 1
""",
)

LAST_SEEN = Statement("SELECT max(seen_at) FROM nodes WHERE name = :name")

HEARTBEAT = Query(
    Node,
    f"""
    UPDATE nodes SET lease_until = :until, seen_at = :now
    WHERE id = :id AND fence = :fence AND state = 'up'
    RETURNING {_COLUMNS}
""",
)

EXPIRED = Statement("""
    SELECT id FROM nodes WHERE state = 'up' AND lease_until <= :now
    ORDER BY lease_until LIMIT :limit {skip_locked}
""")

ACQUIRE_LEADERSHIP = Query(
    Leadership,
    """
    INSERT INTO leaders (name, owner, fence, lease_until)
    VALUES (:name, :owner, 1, :until)
    ON CONFLICT (name) DO UPDATE SET
        -- A renewal keeps the fence, a new leader increments it.
        fence = leaders.fence + CASE WHEN leaders.owner = :owner THEN 0 ELSE 1 END,
        owner = excluded.owner, lease_until = excluded.lease_until
    -- The leader may renew at any time; others only after the lease has expired.
    WHERE leaders.owner = :owner OR leaders.lease_until <= :now
    RETURNING name, owner, fence, lease_until
""",
)

LEADERS = Query(
    Leadership, "SELECT name, owner, fence, lease_until FROM leaders WHERE name > '' ORDER BY name"
)
LEADER = Query(Leadership, "SELECT name, owner, fence, lease_until FROM leaders WHERE name = :name")

RELEASE_LEADERSHIP = Statement("""
    UPDATE leaders SET lease_until = 0 WHERE name = :name AND owner = :owner RETURNING name
""")

# `leaders` has no retention: it has one row per loop, and a fence must never be reused.
RETENTION = Retention(
    "nodes",
    setting="nodes.retention_ms",
    created="joined_at",
    ended="state IN ('left', 'lost') AND seen_at < :before",
)
