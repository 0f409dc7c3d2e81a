"""Locks: owners and waiters, recent editors of a file, and the conflict forecast."""

from typing import Any

from starlette.responses import Response

from corral.kernel.errors import CorralError
from corral.web.request import PageRequest

MAX_PROJECTS = 100


def show_all(request: PageRequest) -> Response:
    store = request.store
    project, path, every = request.query("project"), request.query("path"), request.query("all")
    page = store.locks.list(project=project, all=every is not None, after=request.query("after"))
    return request.render(
        "locks.html",
        page=page,
        every=every is not None,
        project=project,
        path=path,
        projects=store.projects.list(limit=MAX_PROJECTS).items,
        names=request.names((lock.project_id for lock in page.items), [project]),
        **_optional_sections(request, project, path),
    )


def _optional_sections(
    request: PageRequest, project: str | None, path: str | None
) -> dict[str, Any]:
    """Return the editors of a file and the conflict forecast, if requested.

    The forecast merges worktrees in a temporary directory, so live updates skip both.
    """
    sections: dict[str, Any] = {"touches": None, "clashes": None, "problem": None}
    if project is None or request.fragment is not None:
        return sections
    try:
        if path is not None:
            sections["touches"] = request.store.locks.touches(project, path, limit=100)
        if request.query("forecast") is not None:
            folder = request.store.projects.get(project).dir
            sections["clashes"] = request.store.locks.forecast(folder)
    except CorralError as error:
        sections["problem"] = error.message
    return sections
