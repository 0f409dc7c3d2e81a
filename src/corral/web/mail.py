"""Mail: letters on their way, and those that somebody has to look at."""

from typing import Any

from starlette.responses import Response

from corral.web.request import Visit

# What the list can be narrowed to, and what that means.
VIEWS = {
    "waiting": "on their way",
    "dead": "failed too often",
    "unknown": "may or may not have arrived",
    "refused": "turned away",
    "expired": "nobody took them in time",
    "all": "everything that is kept",
}


def show_all(visit: Visit) -> Response:
    view = visit.asked("state") or "waiting"
    mailbox = visit.asked("mailbox")
    asked: dict[str, Any] = {"after": visit.asked("after")}
    if view in ("waiting", "all") or mailbox:
        # A mailbox is listed as a whole: letters of a state are not kept apart by mailbox.
        asked |= {"mailbox": mailbox, "all": view != "waiting"}
    else:
        asked |= {"state": view}
    return visit.show(
        "mail.html", page=visit.store.mail.list(**asked), view=view, views=VIEWS, mailbox=mailbox
    )


def show_one(visit: Visit) -> Response:
    letter = visit.store.mail.get(visit.path("id"))
    return visit.show(
        "letter.html",
        letter=letter,
        history=visit.store.events.newest(subject=letter.id).items[::-1],
        names=visit.names([letter.project_id]),
    )
