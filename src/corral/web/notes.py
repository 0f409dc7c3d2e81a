"""Memory: the notes that are remembered, by whom they are for, and by their words."""

from contextlib import suppress
from typing import Any

from starlette.responses import Response

from corral.domain.notes.model import EVERYONE, Note
from corral.kernel.errors import CorralError, Invalid, NotFound
from corral.web.request import Visit

PROJECTS = 100
AGENTS = 200
FOUND = 50


def show_all(visit: Visit) -> Response:
    """Newest first; or, with words, those that fit best."""
    scope, text = visit.asked("scope"), visit.asked("q")
    every, category = visit.asked("all") is not None, visit.asked("category")
    notes: list[Note] = []
    next, problem = None, None
    try:
        if text is None:
            page = visit.store.notes.list(
                category=category, all=every, after=visit.asked("after"), **scope_of(scope)
            )
            notes, next = page.items, page.next
        else:
            notes, next = _found(visit, text, scope)
    except CorralError as error:
        problem = error.message  # of what was typed: it stays in its field
    return _show(visit, notes, next, problem, scope, text, category, every)


def show_one(visit: Visit) -> Response:
    note = visit.store.notes.get(visit.path("id"))
    notes = [note]
    with suppress(NotFound):
        if note.supersedes:
            notes.append(visit.store.notes.get(note.supersedes))
    return _show(visit, notes, None, None, None, None, None, True, whole=True)


def scope_of(scope: str | None) -> dict[str, Any]:
    """everyone, project:ID or agent:NAME, as operations on notes take it."""
    kind, _, name = (scope or "").partition(":")
    if scope in (None, EVERYONE):
        return {"everyone": True} if scope else {}
    if kind not in ("project", "agent") or not name:
        raise Invalid(
            f"{scope!r} is none of everyone, project:ID and agent:NAME.",
            scope=scope,
            reason="unknown_scope",
        )
    return {kind: name}


def _found(visit: Visit, text: str, scope: str | None) -> tuple[list[Note], str | None]:
    """Of one scope by how well they fit, with those for everyone; else all that hold the words."""
    store = visit.store
    if scope is not None:
        whose = {name: value for name, value in scope_of(scope).items() if name != "everyone"}
        return [found.note for found in store.notes.search(text, limit=FOUND, **whose)], None
    page = store.search.find(text, kind="note", after=visit.asked("after"), limit=FOUND)
    notes = []
    for hit in page.items:
        with suppress(NotFound):
            notes.append(store.notes.get(hit.subject))
    return notes, page.next


def _show(
    visit: Visit,
    notes: list[Note],
    next: str | None,
    problem: str | None,
    scope: str | None,
    text: str | None,
    category: str | None,
    every: bool,
    *,
    whole: bool = False,
) -> Response:
    store = visit.store
    return visit.show(
        "notes.html",
        notes=notes,
        next=next,
        problem=problem,
        scope=scope,
        text=text,
        category=category,
        every=every,
        whole=whole,
        projects=store.projects.list(limit=PROJECTS).items,
        agents=store.agents.list(limit=AGENTS).items,
        names=visit.names(note.project_id for note in notes),
    )
