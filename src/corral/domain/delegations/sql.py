"""SQL of delegations."""

from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement
from corral.domain.delegations.model import TRANSITIONS, Delegation

IDS = IdColumn("delegation", "dlg", "delegations")
DELEGATIONS = StatefulTable(Delegation, TRANSITIONS, table="delegations", project="project_id")

_DELEGATIONS = f"SELECT {DELEGATIONS.columns} FROM delegations WHERE"

# The supported filters. Each statement has an index.
LISTS = {
    (): DELEGATIONS.newest_first("state = 'active'"),
    ("all",): DELEGATIONS.newest_first(),
    ("to",): DELEGATIONS.newest_first("to_agent_id = :to"),
    ("sender",): DELEGATIONS.newest_first("from_mailbox = :sender"),
    ("parent",): DELEGATIONS.newest_first("parent_id = :parent AND parent_id IS NOT NULL"),
}

SET_LETTER = Query(
    Delegation,
    f"UPDATE delegations SET letter_id = :letter_id WHERE id = :id RETURNING {DELEGATIONS.columns}",
)

# "IS NOT NULL" lets the planner use the partial index on task_id.
ACTIVE_OF_TASK = Query(
    Delegation, f"{_DELEGATIONS} task_id = :task_id AND task_id IS NOT NULL AND state = 'active'"
)

# {locked} re-checks the state after the row lock, so parts that end concurrently are excluded.
ACTIVE_PARTS = Statement("""
    SELECT id FROM delegations
    WHERE parent_id = :id AND parent_id IS NOT NULL AND state = 'active' ORDER BY id {locked}
""")

# skip_locked: a locked row is being ended by another transaction.
EXPIRED = Query(
    Delegation,
    f"""{_DELEGATIONS} state = 'active' AND deadline_at IS NOT NULL AND deadline_at <= :now
    ORDER BY deadline_at LIMIT :limit {{skip_locked}}""",
)
NEXT_DEADLINE = Statement("""
    SELECT min(deadline_at) FROM delegations WHERE state = 'active' AND deadline_at IS NOT NULL
""")

ACTIVE_OF_PROJECT = Query(
    Delegation, f"{_DELEGATIONS} project_id = :project AND state = 'active' ORDER BY id {{locked}}"
)
DELETE_OF_PROJECT = Statement("""
    DELETE FROM delegations WHERE project_id = :project AND project_id IS NOT NULL RETURNING id
""")

RETENTION = Retention(
    "delegations",
    setting="delegations.retention_ms",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
    imported="imported_at",
)
