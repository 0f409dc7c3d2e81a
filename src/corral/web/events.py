"""The event log, newest first, live."""

from starlette.responses import Response

from corral.domain.events.model import Event
from corral.web.request import PageRequest

MAX_SHOWN = 100
# There is no index of kinds: the filter searches this many events.
MAX_SEARCHED = 1_000


def show_all(request: PageRequest) -> Response:
    subject, project, kind = (
        request.query("subject"),
        request.query("project"),
        request.query("kind"),
    )
    before = request.query("before")
    limit = MAX_SEARCHED if kind else MAX_SHOWN
    if before:
        page = request.store.events.before(before, subject=subject, project=project, limit=limit)
        events, older = page.items, page.next
    else:
        events = request.store.events.newest(subject=subject, project=project, limit=limit).items[
            ::-1
        ]
        older = events[-1].cursor if len(events) == limit else None
    shown = [event for event in events if kind in (None, event.kind)]
    return request.render(
        "events.html",
        events=shown[:MAX_SHOWN] if kind else shown,
        older=shown[MAX_SHOWN - 1].cursor if len(shown) > MAX_SHOWN else older,
        searched=len(events),
        subject=subject,
        project=project,
        kind=kind,
        before=before,
        kinds=EVENT_KINDS,
        names=request.names(_ids(events), [project]),
    )


# Kinds of the filter. A test compares them with what the domain declares.
EVENT_KINDS = (
    "activity",
    "agent",
    "alert",
    "attempt",
    "budget",
    "channel",
    "charge",
    "checkpoint",
    "decision",
    "delegation",
    "destination",
    "group",
    "host_request",
    "import",
    "letter",
    "lock",
    "message",
    "node",
    "note",
    "occurrence",
    "output",
    "place",
    "plan",
    "post",
    "progress",
    "project",
    "question",
    "race",
    "round",
    "run",
    "schedule",
    "secret",
    "sender",
    "session",
    "setting",
    "task",
    "token",
    "verdict",
    "wiring",
)


def _ids(events: list[Event]) -> list[str | None]:
    return [
        id
        for event in events
        for id in (event.subject, event.project_id)
        if id and id.partition("_")[0] in ("prj", "agt", "ses", "run")
    ]
