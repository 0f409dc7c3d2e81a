"""Locks: who holds what, who waits, who knows a file, and what would conflict."""

from typing import Any

from starlette.responses import Response

from corral.kernel.errors import CorralError
from corral.web.request import Visit

PROJECTS = 100


def show_all(visit: Visit) -> Response:
    store = visit.store
    project, path, every = visit.asked("project"), visit.asked("path"), visit.asked("all")
    page = store.locks.list(project=project, all=every is not None, after=visit.asked("after"))
    return visit.show(
        "locks.html",
        page=page,
        every=every is not None,
        project=project,
        path=path,
        projects=store.projects.list(limit=PROJECTS).items,
        names=visit.names((lock.project_id for lock in page.items), [project]),
        **_asked_for(visit, project, path),
    )


def _asked_for(visit: Visit, project: str | None, path: str | None) -> dict[str, Any]:
    """What is looked up only when somebody asks: who knows a file, and the forecast, for which
    worktrees are merged in a temporary place. Neither is done for a part that is fetched anew."""
    found: dict[str, Any] = {"touches": None, "clashes": None, "problem": None}
    if project is None or visit.part is not None:
        return found
    try:
        if path is not None:
            found["touches"] = visit.store.locks.touches(project, path, limit=100)
        if visit.asked("forecast") is not None:
            folder = visit.store.projects.get(project).dir
            found["clashes"] = visit.store.locks.forecast(folder)
    except CorralError as error:
        found["problem"] = error.message
    return found
