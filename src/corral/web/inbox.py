"""The inbox: questions and decisions that wait for somebody, and how earlier ones ended."""

from collections.abc import Sequence

from starlette.responses import Response

from corral.domain.decisions.model import Decision
from corral.domain.questions.model import Question
from corral.kernel.errors import Invalid
from corral.web.request import Visit

VIEWS = ("waiting", "questions", "decisions")
SHOWN = 100


def show_all(visit: Visit) -> Response:
    view, after = visit.asked("view") or "waiting", visit.asked("after")
    if view not in VIEWS:
        raise Invalid(f"{view!r} is none of {', '.join(VIEWS)}.", view=view)
    store = visit.store
    questions: list[Question] = []
    decisions: list[Decision] = []
    if view == "waiting":
        asked = store.questions.list(limit=SHOWN)
        proposed = store.decisions.list(proposed=True, limit=SHOWN)
        questions, decisions = asked.items, proposed.items
        next = asked.next or proposed.next
    elif view == "questions":
        asked = store.questions.list(all=True, after=after)
        questions, next = asked.items, asked.next
    else:
        proposed = store.decisions.list(after=after)
        decisions, next = proposed.items, proposed.next
    return _show(visit, view, questions, decisions, next)


def show_one(visit: Visit) -> Response:
    id = visit.path("id")
    if id.startswith("dec_"):
        return _show(visit, "one", [], [visit.store.decisions.get(id)], None)
    return _show(visit, "one", [visit.store.questions.get(id)], [], None)


def _show(
    visit: Visit,
    view: str,
    questions: Sequence[Question],
    decisions: Sequence[Decision],
    next: str | None,
) -> Response:
    return visit.show("inbox.html", view=view, questions=questions, decisions=decisions, next=next)


def for_people(asked: Question | Decision) -> bool:
    """Whether a person may answer it; some are for agents alone."""
    return not asked.answerers or any(who.startswith("user:") for who in asked.answerers)
