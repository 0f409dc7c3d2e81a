"""Mail: waiting letters, and letters that need attention."""

from typing import Any

from starlette.responses import Response

from corral.web.request import PageRequest

# The filters of the list, with their descriptions.
VIEWS = {
    "waiting": "waiting for delivery",
    "dead": "failed after all attempts",
    "unconfirmed": "delivery unconfirmed",
    "refused": "refused",
    "expired": "not claimed in time",
    "all": "all letters",
}


def show_all(request: PageRequest) -> Response:
    view = request.query("state") or "waiting"
    mailbox = request.query("mailbox")
    filters: dict[str, Any] = {"after": request.query("after")}
    if view in ("waiting", "all") or mailbox:
        # The library filters by mailbox or by state, not both.
        filters |= {"mailbox": mailbox, "all": view != "waiting"}
    else:
        filters |= {"state": view}
    return request.render(
        "mail.html",
        page=request.store.mail.list(**filters),
        view=view,
        views=VIEWS,
        mailbox=mailbox,
    )


def show_one(request: PageRequest) -> Response:
    letter = request.store.mail.get(request.path_param("id"))
    return request.render(
        "mail_message.html",
        letter=letter,
        history=request.store.events.newest(subject=letter.id).items[::-1],
        names=request.names([letter.project_id]),
    )
