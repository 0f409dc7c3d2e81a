"""SQL of tasks and of their dependencies."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import PrunableRows
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.tasks.model import (
    TRANSITIONS,
    Dependency,
    LocatedTask,
    RunningTask,
    Task,
    TaskStatus,
)

_COLUMNS = columns_of(Task, omit=("depends_on",))
_STATUS = columns_of(TaskStatus)

IDS = IdColumn("task", "tsk", "tasks")
TASKS = StatefulTable(Task, TRANSITIONS, table="tasks", columns=_COLUMNS, project="project_id")

# Columns whose values differ between the tasks of one bulk INSERT.
COLUMN_TYPES = {
    "id": "text",
    "key": "text",
    "role": "text",
    "title": "text",
    "description": "text",
    "files": "json",
    "priority": "integer",
    "check_command": "text",
    "assignee_id": "text",
    "open_dependencies": "integer",
    "failed_dependencies": "integer",
}

ADD_DEPENDENCIES = Statement("""
    INSERT INTO task_dependencies (task_id, depends_on_id)
    SELECT each.value ->> 0, each.value ->> 1 FROM {each_of_rows} WHERE TRUE
    ON CONFLICT (task_id, depends_on_id) DO NOTHING
    RETURNING task_id
""")

REMOVE_DEPENDENCIES = Statement("""
    DELETE FROM task_dependencies WHERE task_id = :id AND depends_on_id {is_listed}
    RETURNING depends_on_id
""")

# -- queries -----------------------------------------------------------------------------------

# LIMIT 6: enough candidates for the message about an ambiguous key.
BY_KEY = Query(
    Task,
    f"""
    SELECT {_COLUMNS} FROM tasks
    WHERE key = :key AND archived_at IS NULL ORDER BY project_id LIMIT 6
""",
)

BY_KEY_IN_PROJECT = Query(
    Task,
    f"""
    SELECT {_COLUMNS} FROM tasks
    WHERE key = :key AND project_id = :project AND archived_at IS NULL
""",
)

STATUS_BY_KEYS = Query(
    TaskStatus,
    f"""
    SELECT {_STATUS} FROM tasks
    WHERE key {{is_listed}} AND project_id = :project AND archived_at IS NULL
""",
)

BY_IDS = Query(Task, f"SELECT {_COLUMNS} FROM tasks WHERE id {{is_listed}} ORDER BY id")

DEPENDENCIES = Query(
    Dependency,
    """
    SELECT task_id, tasks.key
    FROM task_dependencies JOIN tasks ON tasks.id = depends_on_id
    WHERE task_id {is_listed} ORDER BY task_id, depends_on_id
""",
)

_TASKS = f"SELECT {_COLUMNS} FROM tasks WHERE"


def _oldest_first(condition: str) -> Listing[Task]:
    text = f"{_TASKS} {condition} AND id > :last ORDER BY id LIMIT :limit"
    return Listing(Query(Task, text), start={"last": ""}, key=_get_id_key)


def _get_id_key(task: Task) -> tuple[str]:
    return (task.id,)


# The supported combinations of filters. Each statement has an index.
LISTS = {
    (): _oldest_first("archived_at IS NULL"),
    ("agent",): _oldest_first("agent_id = :agent"),
    ("agent", "state"): _oldest_first("agent_id = :agent AND state = :state"),
    ("project",): _oldest_first("project_id = :project AND archived_at IS NULL"),
    ("project", "archived"): _oldest_first("project_id = :project AND archived_at IS NOT NULL"),
    ("project", "state"): _oldest_first(
        "project_id = :project AND state = :state AND archived_at IS NULL"
    ),
}

OF_PROJECT = Query(
    Task, f"{_TASKS} project_id = :project AND archived_at IS NULL ORDER BY id LIMIT :limit"
)

COUNTS = Statement("""
    SELECT state, count(*) FROM tasks
    WHERE project_id = :project AND archived_at IS NULL GROUP BY state
""")

EDGES_OF_PROJECT = Statement("""
    SELECT task_id, depends_on_id
    FROM tasks JOIN task_dependencies ON task_id = tasks.id
    WHERE tasks.project_id = :project AND tasks.archived_at IS NULL
    ORDER BY task_id, depends_on_id
""")

# -- dependencies ------------------------------------------------------------------------------

# A dependent appears once for each of its edges to a listed task.
DEPENDENTS = Query(
    TaskStatus,
    f"""
    SELECT {_STATUS} FROM task_dependencies JOIN tasks ON tasks.id = task_id
    WHERE depends_on_id {{is_listed}}
""",
)

SET_DEPENDENCY_COUNTS = Statement("""
    UPDATE tasks
    SET open_dependencies = CAST(each.value ->> 1 AS {integer}),
        failed_dependencies = CAST(each.value ->> 2 AS {integer})
    FROM {each_of_rows} WHERE tasks.id = each.value ->> 0
""")

# The same rule as `Task.is_blocking`: dependents of this task cannot proceed.
_IS_BLOCKING = """(state IN ('failed', 'cancelled')
    OR (state IN ('pending', 'ready', 'blocked', 'paused') AND failed_dependencies > 0))"""

COUNT_DEPENDENCIES = Statement(f"""
    SELECT coalesce(sum(CASE WHEN state IN ('done', 'skipped') THEN 0 ELSE 1 END), 0),
           coalesce(sum(CASE WHEN {_IS_BLOCKING} THEN 1 ELSE 0 END), 0)
    FROM task_dependencies JOIN tasks ON tasks.id = depends_on_id WHERE task_id = :id
""")

SET_DEPENDENCY_COUNTS_OF = Query(
    Task,
    f"""
    UPDATE tasks SET open_dependencies = :open, failed_dependencies = :failed WHERE id = :id
    RETURNING {_COLUMNS}
""",
)

FAILED_DEPENDENCIES = Query(
    TaskStatus,
    f"""
    SELECT {_STATUS} FROM task_dependencies JOIN tasks ON tasks.id = depends_on_id
    WHERE task_id = :id AND {_IS_BLOCKING} ORDER BY id LIMIT :limit
""",
)

# A paused task keeps the reason for which it was paused.
SET_BLOCKER = Statement("""
    UPDATE tasks
    SET blocked_by_id = :blocked_by_id,
        reason = CASE WHEN state = 'blocked' THEN :reason ELSE reason END
    WHERE id {is_listed}
""")

# The tasks that have :blocker as their blocker, each with its failed dependencies.
BLOCKED_BY = Statement(f"""
    SELECT waiting.id, failed.id, failed.state, failed.blocked_by_id
    FROM tasks AS waiting
    JOIN task_dependencies ON task_id = waiting.id
    JOIN (SELECT id, state, blocked_by_id FROM tasks WHERE {_IS_BLOCKING}) AS failed
        ON failed.id = depends_on_id
    WHERE waiting.blocked_by_id = :blocker
    ORDER BY waiting.id, failed.id
""")

# Whether :start depends on :target, directly or indirectly. UNION removes duplicates, so the
# recursion visits each task once.
DEPENDS_ON = Statement("""
    WITH RECURSIVE dependency (id) AS (
        SELECT depends_on_id FROM task_dependencies WHERE task_id = :start
        UNION
        SELECT depends_on_id FROM dependency JOIN task_dependencies ON task_id = dependency.id
    )
    SELECT id FROM dependency WHERE id = :target LIMIT 1
""")

OPEN_DEPENDENTS = Statement("""
    SELECT tasks.key FROM task_dependencies JOIN tasks ON tasks.id = task_id
    WHERE depends_on_id = :id AND tasks.ended_at IS NULL ORDER BY tasks.id LIMIT 3
""")

# -- claims and leases -------------------------------------------------------------------------

# conflicts_with_id: a ready task that shares files with a running task is held back until the
# running task ends.
_CLAIMABLE = f"{_TASKS} project_id = :project AND state = 'ready' AND conflicts_with_id IS NULL"
_ORDER = "ORDER BY priority DESC, ready_at, id LIMIT :limit"

CLAIMABLE = Query(Task, f"{_CLAIMABLE} AND assignee_id IS NULL {_ORDER}")
CLAIMABLE_FOR_ROLE = Query(Task, f"{_CLAIMABLE} AND assignee_id IS NULL AND role = :role {_ORDER}")
CLAIMABLE_WITHOUT_ROLE = Query(
    Task, f"{_CLAIMABLE} AND assignee_id IS NULL AND role IS NULL {_ORDER}"
)
CLAIMABLE_BY_ASSIGNEE = Query(Task, f"{_CLAIMABLE} AND assignee_id = :agent {_ORDER}")

# For `tasks.auto_start`: the assigned tasks of a project, for all assignees.
CLAIMABLE_ASSIGNED = Query(
    Task, f"{_CLAIMABLE} AND assignee_id IS NOT NULL ORDER BY id LIMIT :limit"
)
# One index seek for each project with a claimable task, however many tasks it has.
NEXT_READY_PROJECT = Statement("""
    SELECT project_id FROM tasks
    WHERE state = 'ready' AND conflicts_with_id IS NULL AND project_id > :after
    ORDER BY project_id LIMIT 1
""")
COUNT_IN_RUNS = Statement("""
    SELECT count(*) FROM tasks
    WHERE project_id = :project AND state = 'running' AND run_id IS NOT NULL
""")

RUNNING_TASKS = Query(
    RunningTask,
    "SELECT id, files FROM tasks WHERE project_id = :project AND state = 'running' ORDER BY id",
)

HOLD_BACK = Statement("""
    UPDATE tasks SET conflicts_with_id = :running WHERE id {is_listed} AND state = 'ready'
    RETURNING id
""")
RELEASE_HELD_BACK = Statement(
    "UPDATE tasks SET conflicts_with_id = NULL WHERE conflicts_with_id = :running RETURNING id"
)

# Renewing a lease emits no event. The fence rejects a claimant that has lost the task.
RENEW = Query(
    Task,
    f"""
    UPDATE tasks SET lease_until = :until
    WHERE id = :id AND fence = :fence AND state = 'running' RETURNING {_COLUMNS}
""",
)
# "run_id IS NOT NULL" lets the planner use the partial index on run_id.
RENEW_FOR_RUN = Statement("""
    UPDATE tasks SET lease_until = :until
    WHERE run_id = :run_id AND run_id IS NOT NULL AND state = 'running'
""")

EXPIRED_PROJECT = Statement("""
    SELECT project_id FROM tasks
    WHERE state = 'running' AND lease_until <= :now ORDER BY lease_until LIMIT 1
""")
# skip_locked: a locked row is being renewed by its run at this moment, so it has not expired.
EXPIRED = Query(
    Task,
    f"""{_TASKS} project_id = :project AND state = 'running' AND lease_until <= :now
    ORDER BY id LIMIT :limit {{skip_locked}}""",
)
RUNNING_IN_RUN = Query(
    Task,
    f"{_TASKS} run_id = :run_id AND run_id IS NOT NULL AND state = 'running' ORDER BY id",
)
HAS_TASKS = Statement("""
    SELECT id FROM tasks
    WHERE run_id = :run_id AND run_id IS NOT NULL AND state = 'running' LIMIT 1
""")
NEXT_LEASE_END = Statement("SELECT min(lease_until) FROM tasks WHERE state = 'running'")

# check_lease_until is the lease of a process that runs the check. An expired one means that the
# process crashed, so the check may run again. "submitted_at > 0" makes planners scan the index in
# order.
_LOCATED = """
    SELECT tasks.id, tasks.fence, COALESCE(tasks.dir, projects.dir) AS dir
    FROM tasks JOIN projects ON projects.id = tasks.project_id
"""
LOCATED = Query(LocatedTask, f"{_LOCATED} WHERE tasks.id = :id")
PENDING_CHECKS = Query(
    LocatedTask,
    f"""{_LOCATED} WHERE tasks.state = 'submitted' AND check_command IS NOT NULL
      AND submitted_at > 0 AND (check_lease_until IS NULL OR check_lease_until <= :now)
    ORDER BY submitted_at""",
)
# Compares fence and state again: the task may have been reviewed or claimed since it was read.
CLAIM_CHECK = Query(
    Task,
    f"""
    UPDATE tasks SET check_lease_until = :until
    WHERE id = :id AND fence = :fence AND state = 'submitted'
      AND (check_lease_until IS NULL OR check_lease_until <= :now)
    RETURNING {_COLUMNS}
""",
)

# -- updates that change no state --------------------------------------------------------------

SET_ASSIGNEE = Query(
    Task, f"UPDATE tasks SET assignee_id = :assignee_id WHERE id = :id RETURNING {_COLUMNS}"
)
# conflicts_with_id = NULL: the files may have changed, so the next claim compares them again.
EDIT = Query(
    Task,
    f"""
    UPDATE tasks SET title = :title, description = :description, role = :role,
        priority = :priority, files = :files, conflicts_with_id = NULL
    WHERE id = :id RETURNING {_COLUMNS}
""",
)
SET_ARCHIVED = Query(
    Task, f"UPDATE tasks SET archived_at = :at WHERE id = :id RETURNING {_COLUMNS}"
)
# A task that an open task depends on stays in the lists.
ARCHIVABLE = Statement("""
    SELECT id FROM tasks
    WHERE project_id = :project AND archived_at IS NULL AND ended_at IS NOT NULL
      AND NOT EXISTS (
        SELECT 1 FROM task_dependencies JOIN tasks AS later ON later.id = task_id
        WHERE depends_on_id = tasks.id AND later.ended_at IS NULL
      )
    ORDER BY id LIMIT :limit
""")

# -- retention ---------------------------------------------------------------------------------

PRUNABLE = PrunableRows(
    "tasks",
    setting="tasks.retention_ms",
    ended={
        "ended_at": """
            ended_at IS NOT NULL AND ended_at < :before
            -- No open task depends on it.
            AND NOT EXISTS (
                SELECT 1 FROM task_dependencies JOIN tasks AS later ON later.id = task_id
                WHERE depends_on_id = tasks.id AND later.ended_at IS NULL
            )"""
    },
    batch=500,
)
# UNION ALL: archived and other tasks have separate partial indexes.
IDS_OF_PROJECT = Statement("""
    SELECT id FROM tasks WHERE project_id = :project AND archived_at IS NULL
    UNION ALL
    SELECT id FROM tasks WHERE project_id = :project AND archived_at IS NOT NULL
    LIMIT :limit
""")
DELETE_DEPENDENCIES = Statement(
    "DELETE FROM task_dependencies WHERE task_id {is_listed} RETURNING task_id"
)
DELETE_DEPENDENTS = Statement(
    "DELETE FROM task_dependencies WHERE depends_on_id {is_listed} RETURNING task_id"
)
DELETE = Statement("DELETE FROM tasks WHERE id {is_listed} RETURNING id")
