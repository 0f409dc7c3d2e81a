"""SQL of plans and progress reports."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement, columns_of
from corral.domain.plans.model import Plan, ProgressReport

_PLAN = columns_of(Plan)
_PROGRESS = columns_of(ProgressReport)

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
PLANS = Listing(
    Query(Plan, f"SELECT {_PLAN} FROM plans WHERE subject > :after ORDER BY subject LIMIT :limit"),
    start={"after": ""},
    key=lambda plan: (plan.subject,),
)

REPORT = Query(
    ProgressReport,
    f"""
    INSERT INTO progress ({_PROGRESS})
    VALUES (:id, :agent_id, :task_id, :run_id, :project_id, :summary, :percent, :now)
    ON CONFLICT (id) DO UPDATE SET run_id = excluded.run_id, project_id = excluded.project_id,
        summary = excluded.summary, percent = excluded.percent, updated_at = excluded.updated_at
    RETURNING {_PROGRESS}
""",
)


def _list_reports(condition: str) -> Listing[ProgressReport]:
    query = Query(
        ProgressReport,
        f"SELECT {_PROGRESS} FROM progress WHERE {condition} id > :start ORDER BY id LIMIT :limit",
    )
    return Listing(query, start={"start": ""}, key=lambda report: (report.id,))


# The supported filters. Each statement has an index. An id is AGENT/TASK, so the reports of an
# agent are the range from :start, which is the agent's id on the first page, to :agent_end. The
# comparison of agent_id is for a cursor that was forged.
REPORTS = _list_reports("")
REPORTS_OF_AGENT = _list_reports("agent_id = :agent_id AND id < :agent_end AND")
REPORTS_OF_TASK = _list_reports("task_id = :task AND task_id IS NOT NULL AND")

DELETE_PLANS = Statement(
    "DELETE FROM plans WHERE project_id = :project AND project_id IS NOT NULL RETURNING subject"
)
DELETE_PROGRESS = Statement(
    "DELETE FROM progress WHERE project_id = :project AND project_id IS NOT NULL RETURNING id"
)

TASK_IDS = IdColumn("task", "tsk", "tasks")

PLANS_RETENTION = Retention(
    "plans",
    setting="plans.retention_ms",
    created=None,
    ended="updated_at < :before",
    key="subject",
    project="project_id",
    imported="imported_at",
)
PROGRESS_RETENTION = Retention(
    "progress",
    setting="plans.retention_ms",
    created=None,
    ended="updated_at < :before",
    project="project_id",
)
