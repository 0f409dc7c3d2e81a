"""Notes: list, filter by scope and category, and full-text search."""

from contextlib import suppress
from typing import Any

from starlette.responses import Response

from corral.domain.notes.model import EVERYONE, Note
from corral.kernel.errors import CorralError, Invalid, NotFound
from corral.web.request import PageRequest

MAX_PROJECTS = 100
MAX_AGENTS = 200
MAX_HITS = 50


def show_all(request: PageRequest) -> Response:
    """List notes, newest first; with `q`, search them, best match first."""
    scope, text = request.query("scope"), request.query("q")
    every, category = request.query("all") is not None, request.query("category")
    notes: list[Note] = []
    next, problem = None, None
    try:
        if text is None:
            page = request.store.notes.list(
                category=category, all=every, after=request.query("after"), **parse_scope(scope)
            )
            notes, next = page.items, page.next
        else:
            notes, next = _search(request, text, scope)
    except CorralError as error:
        problem = error.message  # shown on the page, which keeps the query
    return _show(request, notes, next, problem, scope, text, category, every)


def show_one(request: PageRequest) -> Response:
    note = request.store.notes.get(request.path_param("id"))
    notes = [note]
    with suppress(NotFound):
        if note.supersedes:
            notes.append(request.store.notes.get(note.supersedes))
    return _show(request, notes, None, None, None, None, None, True, show_full=True)


def parse_scope(scope: str | None) -> dict[str, Any]:
    """Convert everyone, project:ID or agent:NAME to arguments of operations on notes."""
    kind, _, name = (scope or "").partition(":")
    if scope in (None, EVERYONE):
        return {"everyone": True} if scope else {}
    if kind not in ("project", "agent") or not name:
        raise Invalid(
            f"Invalid scope {scope!r}: expected everyone, project:ID or agent:NAME.",
            scope=scope,
            reason="unknown_scope",
        )
    return {kind: name}


def _search(request: PageRequest, text: str, scope: str | None) -> tuple[list[Note], str | None]:
    """Search one scope and everyone by relevance; without a scope, all notes by full text."""
    store = request.store
    if scope is not None:
        scope_arguments = {
            name: value for name, value in parse_scope(scope).items() if name != "everyone"
        }
        return [
            hit.note for hit in store.notes.search(text, limit=MAX_HITS, **scope_arguments)
        ], None
    page = store.search.find(text, kind="note", after=request.query("after"), limit=MAX_HITS)
    notes = []
    for hit in page.items:
        with suppress(NotFound):
            notes.append(store.notes.get(hit.subject))
    return notes, page.next


def _show(
    request: PageRequest,
    notes: list[Note],
    next: str | None,
    problem: str | None,
    scope: str | None,
    text: str | None,
    category: str | None,
    every: bool,
    *,
    show_full: bool = False,
) -> Response:
    store = request.store
    return request.render(
        "notes.html",
        notes=notes,
        next=next,
        problem=problem,
        scope=scope,
        text=text,
        category=category,
        every=every,
        show_full=show_full,
        projects=store.projects.list(limit=MAX_PROJECTS).items,
        agents=store.agents.list(limit=MAX_AGENTS).items,
        names=request.names(note.project_id for note in notes),
    )
