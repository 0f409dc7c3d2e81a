"""SQL of plans and progress reports."""

from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.plans.model import Plan, Progress

_PLAN = "subject, run_id, project_id, entries, updated_at"
_PROGRESS = "id, agent_id, task_id, run_id, project_id, summary, percent, updated_at"

SET_PLAN = Query(
    Plan,
    f"""
    INSERT INTO plans ({_PLAN}) VALUES (:subject, :run_id, :project_id, :entries, :now)
    ON CONFLICT (subject) DO UPDATE SET run_id = excluded.run_id,
        project_id = excluded.project_id, entries = excluded.entries,
        updated_at = excluded.updated_at
    RETURNING {_PLAN}
""",
)
PLAN = Query(Plan, f"SELECT {_PLAN} FROM plans WHERE subject = :subject")
PLANS = Query(
    Plan, f"SELECT {_PLAN} FROM plans WHERE subject > :after ORDER BY subject LIMIT :limit"
)

REPORT = Query(
    Progress,
    f"""
    INSERT INTO progress ({_PROGRESS})
    VALUES (:id, :agent_id, :task_id, :run_id, :project_id, :summary, :percent, :now)
    ON CONFLICT (id) DO UPDATE SET run_id = excluded.run_id, project_id = excluded.project_id,
        summary = excluded.summary, percent = excluded.percent, updated_at = excluded.updated_at
    RETURNING {_PROGRESS}
""",
)
_REPORTS = f"SELECT {_PROGRESS} FROM progress WHERE"
_NEXT = "ORDER BY id LIMIT :limit"

# The supported filters. Each statement has an index. An id is AGENT/TASK, so the reports of an
# agent are the range between its own id and :agent_end.
LISTS = {
    (): Query(Progress, f"{_REPORTS} id > :after {_NEXT}"),
    ("agent",): Query(Progress, f"{_REPORTS} id > :after AND id < :agent_end {_NEXT}"),
    ("task",): Query(
        Progress, f"{_REPORTS} task_id = :task AND task_id IS NOT NULL AND id > :after {_NEXT}"
    ),
}

DELETE_PLANS = Statement(
    "DELETE FROM plans WHERE project_id = :project AND project_id IS NOT NULL RETURNING subject"
)
DELETE_PROGRESS = Statement(
    "DELETE FROM progress WHERE project_id = :project AND project_id IS NOT NULL RETURNING id"
)

TASK_IDS = IdColumn("task", "tsk", "tasks")

PLANS_KEPT = Retention(
    "plans",
    setting="plans.retention_ms",
    created=None,
    ended="updated_at < :before",
    key="subject",
    project="project_id",
    imported="imported_at",
)
PROGRESS_KEPT = Retention(
    "progress",
    setting="plans.retention_ms",
    created=None,
    ended="updated_at < :before",
    project="project_id",
)
