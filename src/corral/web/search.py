"""Search: names and ids, and the full text of turns, output and notes."""

from contextlib import suppress
from typing import Any

from starlette.responses import RedirectResponse, Response

from corral.kernel.errors import CorralError, Invalid, NotFound
from corral.web.request import PageRequest

# The page of an object, by the prefix of its id.
PAGES = {
    "run": "/runs/",
    "ses": "/sessions/",
    "agt": "/agents/",
    "prj": "/projects/",
    "let": "/mail/",
    "evt": "/events#",
    "nod": "/health#",
    "sch": "/schedules#",
    "alr": "/settings#",
    "chg": "/costs#",
    "tok": "/settings#",
    "tsk": "/board/",
    "grp": "/groups/",
    "qst": "/inbox/",
    "dec": "/inbox/",
    "nte": "/notes/",
    "lck": "/locks#",
    "rac": "/races/",
    "msg": "/messaging/messages/",
    "chn": "/messaging/channels/",
    "plc": "/messaging?place=",
    "wir": "/messaging/wirings#",
    "snd": "/messaging/approvals#",
}
KINDS = ("turn", "output", "note")


def show(request: PageRequest) -> Response:
    text, kind = request.query("q"), request.query("kind")
    if kind is not None and kind not in KINDS:
        raise Invalid(f"Invalid kind {kind!r}: expected one of {', '.join(KINDS)}.", kind=kind)
    values: dict[str, Any] = {
        "text": text,
        "kind": kind,
        "kinds": KINDS,
        "named": [],
        "page": None,
        "problem": None,
    }
    names: dict[str, str] = {}
    if text is not None:
        if (page_url := _page_of(text)) is not None and _exists(request, text):
            return RedirectResponse(page_url, status_code=303)
        try:
            page = request.store.search.find(text, kind=kind, after=request.query("after"))
            named = (
                request.store.insights.find_by_name(text) if request.query("after") is None else []
            )
            names = request.names(
                (hit.subject for hit in page.items), (hit.project_id for hit in page.items)
            )
            values |= {"page": page, "named": named}
        except CorralError as error:
            values["problem"] = error.message  # shown on the page, which keeps the query
    return request.render(
        "search.html",
        behind=request.store.search.count_unindexed(),
        pages=PAGES,
        names=names,
        **values,
    )


def redirect_to_page(request: PageRequest) -> Response:
    """Redirect /show/ID to the page of the object."""
    id = request.path_param("id")
    page = _page_of(id)
    if page is None:
        raise NotFound(
            f"No record has the id {id!r}. Type more characters, or search for a name.", id=id
        )
    return RedirectResponse(page, status_code=303)


def _page_of(text: str) -> str | None:
    prefix, underscore, rest = text.partition("_")
    if not underscore or prefix not in PAGES or not rest.isalnum():
        return None
    return PAGES[prefix] + text


def _exists(request: PageRequest, id: str) -> bool:
    """Whether an id or its prefix names an object with a page."""
    store = request.store
    find = {
        "run": store.runs.get,
        "ses": store.sessions.get,
        "agt": store.agents.get,
        "prj": store.projects.get,
        "let": store.mail.get,
        "tsk": store.tasks.get,
        "grp": store.groups.get,
        "nte": store.notes.get,
        "rac": store.races.get,
        "msg": store.messages.get,
        "chn": store.channels.get,
        "plc": store.places.get,
    }.get(id.partition("_")[0])
    with suppress(CorralError):
        return find is not None and find(id) is not None
    return False
