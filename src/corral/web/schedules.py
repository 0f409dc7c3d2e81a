"""Schedules and timers: messages that will be sent to mailboxes."""

from starlette.responses import Response

from corral.web.request import PageRequest


def show_all(request: PageRequest) -> Response:
    every = request.query("all") is not None
    schedules = request.store.schedules.list(all=every, after=request.query("after"))
    timers = request.store.timers.list(all=every)
    return request.render(
        "schedules.html",
        page=schedules,
        timers=timers,
        every=every,
        names=request.names(schedule.project_id for schedule in [*schedules.items, *timers.items]),
    )
