"""Schedules and timers: what will be put into mailboxes, and when."""

from starlette.responses import Response

from corral.web.request import Visit


def show_all(visit: Visit) -> Response:
    every = visit.asked("all") is not None
    schedules = visit.store.schedules.list(all=every, after=visit.asked("after"))
    timers = visit.store.timers.list(all=every)
    return visit.show(
        "schedules.html",
        page=schedules,
        timers=timers,
        every=every,
        names=visit.names(schedule.project_id for schedule in [*schedules.items, *timers.items]),
    )
