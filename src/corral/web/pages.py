"""The table of pages: which address shows what."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from corral.web import (
    actions,
    agents,
    board,
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
    terminal,
)
from corral.web.request import THEMES, Show, endpoint

PAGES: dict[str, Show] = {
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
    "/gateway": channels.show_all,
    "/gateway/messages/{id}": channels.show_one,
    "/gateway/messages/{id}/files/{number}": channels.download,
    "/gateway/held": channels.show_held,
    "/gateway/dead": channels.show_dead,
    "/gateway/wirings": channels.show_wirings,
    "/gateway/channels": channels.show_channels,
    "/gateway/channels/{id}": channels.show_channel,
    "/board": board.show,
    "/board/graph": board.show_graph,
    "/board/timeline": board.show_timeline,
    "/board/costs": board.show_costs,
    "/board/{id}": board.show_one,
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
    "/show/{id}": search.go,
    "/settings": settings.show,
}


def routes(status: Callable[[], Any] | None = None) -> list[BaseRoute]:
    """Everything that the dashboard answers. Each request needs `state.store` and `state.who`;
    `status` tells how the daemon is, for the page on its health."""
    table = {**PAGES, "/health": health.page(status)}
    return [
        *(Route(path, endpoint(show), methods=["GET"]) for path, show in table.items()),
        Route("/runs/{id}/terminal", terminal.stream, methods=["GET"]),
        Route("/races/{id}/screens", race_screens.stream, methods=["GET"]),
        Route("/do/{noun}/{verb}", endpoint(actions.act), methods=["POST"]),
        Mount("/static", _Kept(directory=render.STATIC)),
    ]


class _Kept(StaticFiles):
    """Files whose addresses change when they do: a browser need not ask for them again."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers["cache-control"] = "private, max-age=31536000, immutable"
        return answer


def error_page(request: Request, status: int, message: str) -> Response:
    """Why a page cannot be shown, or an action was not done: a sentence, in the page's own look."""
    chosen = request.cookies.get("corral_theme")
    values = {
        "status": status,
        "message": message,
        "theme": chosen if chosen in THEMES else None,
    }
    template = "problem.html" if "hx-request" in request.headers else "error.html"
    return HTMLResponse(render.render(template, None, values), status_code=status)
