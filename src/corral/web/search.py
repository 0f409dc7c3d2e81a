"""Search over everything: names and ids, and the words in what was said and printed."""

from contextlib import suppress
from typing import Any

from starlette.responses import RedirectResponse, Response

from corral.kernel.errors import CorralError, Invalid, NotFound
from corral.web.request import Visit

# The beginning of an id tells which page shows it.
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
    "msg": "/gateway/messages/",
    "chn": "/gateway/channels/",
    "plc": "/gateway?place=",
    "wir": "/gateway/wirings#",
    "snd": "/gateway/held#",
}
KINDS = ("turn", "output", "note")


def show(visit: Visit) -> Response:
    text, kind = visit.asked("q"), visit.asked("kind")
    if kind is not None and kind not in KINDS:
        raise Invalid(f"{kind!r} is none of {', '.join(KINDS)}.", kind=kind)
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
        if (found := _page_of(text)) is not None and _exists(visit, text):
            return RedirectResponse(found, status_code=303)
        try:
            page = visit.store.search.find(text, kind=kind, after=visit.asked("after"))
            named = visit.store.insights.named(text) if visit.asked("after") is None else []
            names = visit.names(
                (hit.subject for hit in page.items), (hit.project_id for hit in page.items)
            )
            values |= {"page": page, "named": named}
        except CorralError as error:
            values["problem"] = error.message  # of what was typed: it stays in its field
    return visit.show(
        "search.html", behind=visit.store.search.behind(), pages=PAGES, names=names, **values
    )


def go(visit: Visit) -> Response:
    """The page of anything by its id: /show/run_…"""
    id = visit.path("id")
    page = _page_of(id)
    if page is None:
        raise NotFound(f"{id!r} is no id of anything that has a page.", id=id)
    return RedirectResponse(page, status_code=303)


def _page_of(text: str) -> str | None:
    prefix, underscore, rest = text.partition("_")
    if not underscore or prefix not in PAGES or not rest.isalnum():
        return None
    return PAGES[prefix] + text


def _exists(visit: Visit, id: str) -> bool:
    """Whether an id, which may be shortened, leads to a page of its own."""
    store = visit.store
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
