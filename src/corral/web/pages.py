"""The routes of the dashboard."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from corral.web import (
    actions,
    agents,
    channels,
    chat,
    costs,
    events,
    groups,
    health,
    inbox,
    locks,
    mail,
    notes,
    overview,
    projects,
    race_diffs,
    race_screens,
    races,
    render,
    runs,
    schedules,
    search,
    sessions,
    settings,
    tasks,
    terminal,
)
from corral.web.request import THEMES, PageHandler, endpoint

PAGES: dict[str, PageHandler] = {
    "/": overview.show,
    "/runs": runs.show_all,
    "/runs/{id}": runs.show_one,
    "/runs/{id}/output": terminal.download,
    "/projects": projects.show_all,
    "/projects/{id}": projects.show_one,
    "/agents": agents.show_all,
    "/agents/{id}": agents.show_one,
    "/sessions": sessions.show_all,
    "/sessions/{id}": sessions.show_one,
    "/mail": mail.show_all,
    "/mail/{id}": mail.show_one,
    "/schedules": schedules.show_all,
    "/chat": chat.show_all,
    "/chat/{id}": chat.show_one,
    "/messaging": channels.show_all,
    "/messaging/messages/{id}": channels.show_one,
    "/messaging/messages/{id}/files/{number}": channels.download,
    "/messaging/approvals": channels.show_approvals,
    "/messaging/dead": channels.show_dead,
    "/messaging/wirings": channels.show_wirings,
    "/messaging/channels": channels.show_channels,
    "/messaging/channels/{id}": channels.show_channel,
    "/board": tasks.show,
    "/board/graph": tasks.show_graph,
    "/board/timeline": tasks.show_timeline,
    "/board/costs": tasks.show_costs,
    "/board/{id}": tasks.show_one,
    "/races": races.show_all,
    "/races/statistics": races.show_statistics,
    "/races/{id}": races.show_one,
    "/races/{id}/diff": race_diffs.show,
    "/inbox": inbox.show_all,
    "/inbox/{id}": inbox.show_one,
    "/groups": groups.show_all,
    "/groups/{id}": groups.show_one,
    "/locks": locks.show_all,
    "/notes": notes.show_all,
    "/notes/{id}": notes.show_one,
    "/events": events.show_all,
    "/costs": costs.show,
    "/costs/outcomes": costs.show_outcomes,
    "/search": search.show,
    "/show/{id}": search.redirect_to_page,
    "/settings": settings.show,
}


def routes(status: Callable[[], Any] | None = None) -> list[BaseRoute]:
    """Return all routes of the dashboard.

    Requests need `state.store` and `state.who`. `status` returns the state of the daemon, for the
    health page.
    """
    table = {**PAGES, "/health": health.page(status)}
    return [
        *(Route(path, endpoint(show), methods=["GET"]) for path, show in table.items()),
        Route("/runs/{id}/terminal", terminal.stream, methods=["GET"]),
        Route("/races/{id}/screens", race_screens.stream, methods=["GET"]),
        Route("/do/{noun}/{verb}", endpoint(actions.dispatch_action), methods=["POST"]),
        Mount("/static", _CachedStaticFiles(directory=render.STATIC)),
    ]


class _CachedStaticFiles(StaticFiles):
    """Static files that browsers cache for ever: their URLs contain a hash of the content."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "private, max-age=31536000, immutable"
        return response


def error_page(
    request: Request, status: int, message: str, *, code: str, reason: str | None
) -> Response:
    """Render an error as a page, or as a fragment for htmx.

    The element that shows the message has the code and the reason as data attributes.
    """
    theme = request.cookies.get("corral_theme")
    values = {
        "status": status,
        "message": message,
        "code": code,
        "reason": reason,
        "theme": theme if theme in THEMES else None,
    }
    template = "error_fragment.html" if "hx-request" in request.headers else "error.html"
    return HTMLResponse(render.render(template, None, values), status_code=status)
