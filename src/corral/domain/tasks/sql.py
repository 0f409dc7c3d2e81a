"""SQL of tasks and of the edges between them."""

from corral.db.lookup import IdColumn
from corral.db.retention import ScopedStatement
from corral.db.statement import Query, Statement
from corral.db.transitions import StatefulTable
from corral.domain.tasks.model import MOVES, Dependency, RunningTask, Task, TaskStatus

_COLUMNS = """id, project_id, key, state, role, title, description, files, priority,
    check_command, lead, assignee_id, agent_id, run_id, dir, fence, lease_until, attempts,
    open_needs, broken_needs, held_by, cause_id, evidence, reason, check_until, created_at,
    created_by, ready_at, started_at, submitted_at, ended_at, archived_at"""
_STATUS = "id, key, state, open_needs, broken_needs, cause_id, reason"

IDS = IdColumn("task", "tsk", "tasks")
TASKS = StatefulTable(Task, MOVES, table="tasks", columns=_COLUMNS, project="project_id")

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
    "open_needs": "integer",
    "broken_needs": "integer",
}

ADD_EDGES = Statement("""
    INSERT INTO edges (task_id, needs_id)
    SELECT each.value ->> 0, each.value ->> 1 FROM {each_of_rows} WHERE TRUE
    ON CONFLICT (task_id, needs_id) DO NOTHING
    RETURNING task_id
""")

REMOVE_EDGES = Statement("""
    DELETE FROM edges WHERE task_id = :id AND needs_id {is_listed} RETURNING needs_id
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
    SELECT edges.task_id, tasks.key
    FROM edges JOIN tasks ON tasks.id = edges.needs_id
    WHERE edges.task_id {is_listed} ORDER BY edges.task_id, edges.needs_id
""",
)

_TASKS = f"SELECT {_COLUMNS} FROM tasks WHERE"
_NEXT = "AND id > :after ORDER BY id LIMIT :limit"

# The supported combinations of filters. Each statement has an index.
LISTS = {
    (): Query(Task, f"{_TASKS} archived_at IS NULL {_NEXT}"),
    ("agent",): Query(Task, f"{_TASKS} agent_id = :agent {_NEXT}"),
    ("agent", "state"): Query(Task, f"{_TASKS} agent_id = :agent AND state = :state {_NEXT}"),
    ("project",): Query(Task, f"{_TASKS} project_id = :project AND archived_at IS NULL {_NEXT}"),
    ("project", "archived"): Query(
        Task, f"{_TASKS} project_id = :project AND archived_at IS NOT NULL {_NEXT}"
    ),
    ("project", "state"): Query(
        Task,
        f"{_TASKS} project_id = :project AND state = :state AND archived_at IS NULL {_NEXT}",
    ),
}

COUNTS = Statement("""
    SELECT state, count(*) FROM tasks
    WHERE project_id = :project AND archived_at IS NULL GROUP BY state
""")

EDGES_OF_PROJECT = Statement("""
    SELECT edges.task_id, edges.needs_id
    FROM tasks JOIN edges ON edges.task_id = tasks.id
    WHERE tasks.project_id = :project AND tasks.archived_at IS NULL
    ORDER BY edges.task_id, edges.needs_id
""")

# -- dependencies ------------------------------------------------------------------------------

# A dependent appears once for each of its edges to a listed task.
DEPENDENTS = Query(
    TaskStatus,
    f"""
    SELECT {_STATUS} FROM edges JOIN tasks ON tasks.id = edges.task_id
    WHERE edges.needs_id {{is_listed}}
""",
)

SET_NEED_COUNTS = Statement("""
    UPDATE tasks
    SET open_needs = CAST(each.value ->> 1 AS {integer}),
        broken_needs = CAST(each.value ->> 2 AS {integer})
    FROM {each_of_rows} WHERE tasks.id = each.value ->> 0
""")

# The same rule as `Task.is_broken`: dependents of this task cannot proceed.
_IS_BROKEN = """(state IN ('failed', 'cancelled')
    OR (state IN ('pending', 'ready', 'blocked', 'paused') AND broken_needs > 0))"""

COUNT_NEEDS = Statement(f"""
    SELECT coalesce(sum(CASE WHEN state IN ('done', 'skipped') THEN 0 ELSE 1 END), 0),
           coalesce(sum(CASE WHEN {_IS_BROKEN} THEN 1 ELSE 0 END), 0)
    FROM edges JOIN tasks ON tasks.id = edges.needs_id WHERE edges.task_id = :id
""")

SET_NEED_COUNTS_OF = Query(
    Task,
    f"""
    UPDATE tasks SET open_needs = :open, broken_needs = :broken WHERE id = :id
    RETURNING {_COLUMNS}
""",
)

BROKEN_NEEDS = Query(
    TaskStatus,
    f"""
    SELECT {_STATUS} FROM edges JOIN tasks ON tasks.id = edges.needs_id
    WHERE edges.task_id = :id AND {_IS_BROKEN} ORDER BY id LIMIT :limit
""",
)

# A paused task keeps the reason for which it was paused.
SET_CAUSE = Statement("""
    UPDATE tasks
    SET cause_id = :cause_id,
        reason = CASE WHEN state IN ('blocked') THEN :reason ELSE reason END
    WHERE id {is_listed}
""")

# The tasks that have :cause as their cause, each with its broken dependencies.
BLOCKED_BY_CAUSE = Statement(f"""
    SELECT waiting.id, broken.id, broken.state, broken.cause_id
    FROM tasks AS waiting
    JOIN edges ON edges.task_id = waiting.id
    JOIN (SELECT id, state, cause_id FROM tasks WHERE {_IS_BROKEN}) AS broken
        ON broken.id = edges.needs_id
    WHERE waiting.cause_id = :cause
    ORDER BY waiting.id, broken.id
""")

# Whether :start depends on :target, directly or indirectly. UNION removes duplicates, so the
# recursion visits each task once.
DEPENDS_ON = Statement("""
    WITH RECURSIVE needed (id) AS (
        SELECT needs_id FROM edges WHERE task_id = :start
        UNION
        SELECT edges.needs_id FROM needed JOIN edges ON edges.task_id = needed.id
    )
    SELECT id FROM needed WHERE id = :target LIMIT 1
""")

OPEN_DEPENDENTS = Statement("""
    SELECT tasks.key FROM edges JOIN tasks ON tasks.id = edges.task_id
    WHERE edges.needs_id = :id AND tasks.ended_at IS NULL ORDER BY tasks.id LIMIT 3
""")

# -- claims and leases -------------------------------------------------------------------------

# held_by: a ready task that shares files with a running task is held back until that task ends.
_CLAIMABLE = f"{_TASKS} project_id = :project AND state = 'ready' AND held_by IS NULL"
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
    WHERE state = 'ready' AND held_by IS NULL AND project_id > :after
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
    UPDATE tasks SET held_by = :held_by WHERE id {is_listed} AND state = 'ready' RETURNING id
""")
RELEASE_HELD_BACK = Statement(
    "UPDATE tasks SET held_by = NULL WHERE held_by = :held_by RETURNING id"
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

# check_until is the lease of a process that runs the check. An expired one means that the process
# crashed, so the check may run again. "submitted_at > 0" makes planners scan the index in order.
NEXT_TO_CHECK = Query(
    Task,
    f"""{_TASKS} state = 'submitted' AND check_command IS NOT NULL
      AND submitted_at > 0 AND (check_until IS NULL OR check_until <= :now)
    ORDER BY submitted_at LIMIT 1""",
)
# Compares fence and state again: the task may have been reviewed or claimed since it was read.
CLAIM_CHECK = Query(
    Task,
    f"""
    UPDATE tasks SET check_until = :until
    WHERE id = :id AND fence = :fence AND state = 'submitted'
      AND (check_until IS NULL OR check_until <= :now)
    RETURNING {_COLUMNS}
""",
)

# -- updates that change no state --------------------------------------------------------------

SET_ASSIGNEE = Query(
    Task, f"UPDATE tasks SET assignee_id = :assignee_id WHERE id = :id RETURNING {_COLUMNS}"
)
# held_by = NULL: the files may have changed, so the next claim compares them again.
EDIT = Query(
    Task,
    f"""
    UPDATE tasks SET title = :title, description = :description, role = :role,
        priority = :priority, files = :files, held_by = NULL
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
        SELECT 1 FROM edges JOIN tasks AS later ON later.id = edges.task_id
        WHERE edges.needs_id = tasks.id AND later.ended_at IS NULL
      )
    ORDER BY id LIMIT :limit
""")

# -- retention ---------------------------------------------------------------------------------

# Ended tasks that no open task depends on.
_PRUNABLE = """
    ended_at IS NOT NULL AND ended_at < :before AND {in_scope} AND NOT EXISTS (
        SELECT 1 FROM edges JOIN tasks AS later ON later.id = edges.task_id
        WHERE edges.needs_id = tasks.id AND later.ended_at IS NULL
    )
"""
PRUNABLE = ScopedStatement(f"""
    SELECT id FROM tasks WHERE {_PRUNABLE} ORDER BY ended_at, id LIMIT :limit {{skip_locked}}
""")
COUNT_PRUNABLE = ScopedStatement(f"SELECT count(*) FROM tasks WHERE {_PRUNABLE}")
# UNION ALL: archived and other tasks have separate partial indexes.
IDS_OF_PROJECT = Statement("""
    SELECT id FROM tasks WHERE project_id = :project AND archived_at IS NULL
    UNION ALL
    SELECT id FROM tasks WHERE project_id = :project AND archived_at IS NOT NULL
    LIMIT :limit
""")
DELETE_OUTGOING_EDGES = Statement("DELETE FROM edges WHERE task_id {is_listed} RETURNING task_id")
DELETE_INCOMING_EDGES = Statement("DELETE FROM edges WHERE needs_id {is_listed} RETURNING task_id")
DELETE = Statement("DELETE FROM tasks WHERE id {is_listed} RETURNING id")
