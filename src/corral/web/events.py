"""Events: the record of all changes, newest first, live."""

from starlette.responses import Response

from corral.domain.events.model import Event
from corral.web.request import Visit

SHOWN = 100
# A kind is looked for among so many events; there is no index of kinds.
LOOKED_AT = 1_000


def show_all(visit: Visit) -> Response:
    subject, project, kind = visit.asked("subject"), visit.asked("project"), visit.asked("kind")
    before = visit.asked("before")
    many = LOOKED_AT if kind else SHOWN
    if before:
        page = visit.store.events.before(before, subject=subject, project=project, limit=many)
        events, older = page.items, page.next
    else:
        events = visit.store.events.newest(subject=subject, project=project, limit=many).items[::-1]
        older = events[-1].cursor if len(events) == many else None
    shown = [event for event in events if kind in (None, event.kind)]
    return visit.show(
        "events.html",
        events=shown[:SHOWN] if kind else shown,
        older=shown[SHOWN - 1].cursor if len(shown) > SHOWN else older,
        looked_at=len(events),
        subject=subject,
        project=project,
        kind=kind,
        before=before,
        kinds=KINDS,
        names=visit.names(_ids(events), [project]),
    )


# What events are of, for the filter; `tests/web` compares it with what the rooms declare.
KINDS = (
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
    "request",
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
