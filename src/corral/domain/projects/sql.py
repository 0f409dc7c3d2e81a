"""SQL of projects."""

from corral.db.lookup import CANDIDATES, IdColumn
from corral.db.statement import Query, Statement
from corral.db.transitions import StatefulTable
from corral.domain.projects.model import MOVES, Project

_COLUMNS = "id, dir, name, command, prompt, state, created_at, updated_at, last_run_at"

IDS = IdColumn("project", "prj", "projects")
PROJECTS = StatefulTable(Project, MOVES, table="projects", columns=_COLUMNS, project="id")

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
LIST = Query(
    Project,
    f"""
    SELECT {_COLUMNS} FROM projects
    WHERE coalesce(last_run_at, 0) <= :run_at AND (coalesce(last_run_at, 0), id) < (:run_at, :id)
      AND state IN ('active', :also)
    ORDER BY coalesce(last_run_at, 0) DESC, id DESC LIMIT :limit
""",
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
