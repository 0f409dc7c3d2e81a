"""The inbox: open questions and proposed decisions, and the history of both."""

from collections.abc import Sequence

from starlette.responses import Response

from corral.domain.decisions.model import Decision
from corral.domain.questions.model import Question
from corral.kernel.errors import Invalid
from corral.web.request import PageRequest

VIEWS = ("waiting", "questions", "decisions")
MAX_SHOWN = 100


def show_all(request: PageRequest) -> Response:
    view, after = request.query("view") or "waiting", request.query("after")
    if view not in VIEWS:
        raise Invalid(f"Invalid view {view!r}: expected one of {', '.join(VIEWS)}.", view=view)
    store = request.store
    questions: list[Question] = []
    decisions: list[Decision] = []
    if view == "waiting":
        question_page = store.questions.list(limit=MAX_SHOWN)
        decision_page = store.decisions.list(proposed=True, limit=MAX_SHOWN)
        questions, decisions = question_page.items, decision_page.items
        next = question_page.next or decision_page.next
    elif view == "questions":
        question_page = store.questions.list(all=True, after=after)
        questions, next = question_page.items, question_page.next
    else:
        decision_page = store.decisions.list(after=after)
        decisions, next = decision_page.items, decision_page.next
    return _show(request, view, questions, decisions, next)


def show_one(request: PageRequest) -> Response:
    id = request.path_param("id")
    if id.startswith("dec_"):
        return _show(request, "one", [], [request.store.decisions.get(id)], None)
    return _show(request, "one", [request.store.questions.get(id)], [], None)


def _show(
    request: PageRequest,
    view: str,
    questions: Sequence[Question],
    decisions: Sequence[Decision],
    next: str | None,
) -> Response:
    return request.render(
        "inbox.html", view=view, questions=questions, decisions=decisions, next=next
    )


def is_for_people(item: Question | Decision) -> bool:
    """Whether a person may answer; some questions are for agents only."""
    return not item.answerers or any(name.startswith("user:") for name in item.answerers)
