"""SQL of projects."""

from corral.db.listing import Listing
from corral.db.lookup import CANDIDATES, IdColumn
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement
from corral.domain.projects.model import TRANSITIONS, Project
from corral.kernel.pagination import LAST_ID, LAST_NUMBER

IDS = IdColumn("project", "prj", "projects")
PROJECTS = StatefulTable(Project, TRANSITIONS, table="projects", project="id")

_COLUMNS = PROJECTS.columns

BY_NAME = Query(Project, f"SELECT {_COLUMNS} FROM projects WHERE name = :name LIMIT {CANDIDATES}")

BY_DIR = Query(Project, f"SELECT {_COLUMNS} FROM projects WHERE dir = :dir")

# The longest matching directory is the innermost project.
CONTAINING = Query(
    Project,
    f"""
    SELECT {_COLUMNS} FROM projects WHERE dir {{is_one_of_prefixes}} ORDER BY dir DESC LIMIT 1
""",
)

# The projects that contain a path, and those below it.
OVERLAPPING = Query(
    Project,
    f"""
    SELECT {_COLUMNS} FROM projects WHERE dir {{is_one_of_prefixes}}
    UNION ALL
    SELECT {_COLUMNS} FROM projects WHERE dir > :low AND dir < :high
""",
)

# Last run first; a project without runs sorts last.
LIST = Listing(
    Query(
        Project,
        f"""
        SELECT {_COLUMNS} FROM projects
        -- The first condition lets SQLite start at the index entry of the cursor.
        WHERE coalesce(last_run_at, 0) <= :run_at
          AND (coalesce(last_run_at, 0), id) < (:run_at, :id)
          AND state IN ('active', :other_state)
        ORDER BY coalesce(last_run_at, 0) DESC, id DESC LIMIT :limit
    """,
    ),
    start={"run_at": LAST_NUMBER, "id": LAST_ID},
    key=lambda project: (project.last_run_at or 0, project.id),
)

TOUCH = Query(
    Project,
    f"""
    UPDATE projects
    SET last_run_at = CASE WHEN last_run_at > :now THEN last_run_at ELSE :now END
    WHERE id = :id RETURNING {_COLUMNS}
""",
)

DELETE = Statement("DELETE FROM projects WHERE id = :id RETURNING id")
