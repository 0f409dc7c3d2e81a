"""What people do for a team of agents on the pages: tasks, questions, groups, locks, notes."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from corral.domain.chat.model import asker
from corral.domain.questions.model import Question, QuestionState
from corral.kernel.errors import Invalid
from corral.web.board import VERBS
from corral.web.notes import scope_of
from corral.web.request import Show, Visit


def add_task(visit: Visit) -> Response:
    task = visit.store.tasks.add(
        visit.must("project", "The project"),
        visit.must("key", "The key"),
        title=visit.must("title", "The title"),
        role=visit.given("role"),
        description=visit.given("description"),
        files=_listed(visit, "files"),
        depends_on=_listed(visit, "needs"),
    )
    return visit.done(f"{task.key} is {task.state}.")


def move_task(visit: Visit) -> Response:
    """One of the moves that a person may make; the table of moves says which are legal."""
    verb, task = visit.must("verb", "What to do"), visit.must("id", "The task")
    if verb not in VERBS:
        raise Invalid(f"{verb!r} is none of {', '.join(VERBS)}.", verb=verb)
    move = getattr(visit.store.tasks, verb)
    if verb == "reassign":
        moved = move(task, None)
    elif verb == "reject":
        moved = move(task, visit.must("reason", "The reason"))
    elif verb in ("resume", "retry"):
        moved = move(task)
    else:
        moved = move(task, **{"note" if verb == "accept" else "reason": visit.given("reason")})
    return visit.done(f"{moved.key} is {moved.state}.")


def answer_question(visit: Visit) -> Response:
    store, id = visit.store, visit.must("id", "The question")
    by = _answering(visit, store.questions.get(id).answerers)
    question = store.questions.answer(id, visit.must("answer", "The answer"), by=by)
    return visit.done(_told(question))


def _told(question: Question) -> str:
    if question.state is QuestionState.OPEN:
        return f"It counts; {question.needed} must give the same answer."
    if question.answer is None:
        return f"Those who were asked do not agree; {asker(question.asker)} is told."
    return f"{asker(question.asker)} is told: {question.answer}"


def judge_decision(visit: Visit) -> Response:
    """One decision, or all that were chosen: all of them, or none."""
    store, verdict = visit.store, visit.must("verdict", "The verdict")
    ids = [given] if (given := visit.given("id")) else visit.picked()
    if not ids:
        raise Invalid("Choose the decisions that are meant.")
    answering = {_answering(visit, store.decisions.get(id).answerers) for id in ids}
    if len(answering) > 1:
        raise Invalid("These are for different people to judge; choose those of one.")
    judged = store.decisions.judge(ids, verdict, reason=visit.given("reason"), by=answering.pop())
    if len(judged) > 1:
        return visit.done(f"{len(judged)} decisions are {judged[0].state}.")
    return visit.done(f"{judged[0].title} is {judged[0].state}.")


def _answering(visit: Visit, answerers: Sequence[str]) -> str | None:
    """In whose name: whoever has the token, unless certain people are asked for."""
    people = [who for who in answerers if who.startswith("user:")]
    return visit.person if visit.person in people else next(iter(people), None)


def create_group(visit: Visit) -> Response:
    group = visit.store.groups.create(
        visit.must("name", "The name"),
        members=_listed(visit, "members"),
        roles=_listed(visit, "roles"),
        by=visit.person,
    )
    return visit.done(f"{group.name} is made.", go=f"/groups/{group.id}")


def post_in_group(visit: Visit) -> Response:
    post = visit.store.groups.post(
        visit.must("id", "The group"), visit.must("text", "The text"), author=visit.person
    )
    return visit.done(f"It is post {post.number}.")


def send_message(visit: Visit) -> Response:
    post = visit.store.groups.send(
        visit.must("to", "To whom"), visit.must("text", "The text"), author=visit.person
    )
    return visit.done("It is sent.", go=f"/groups/{post.group_id}")


def broadcast(visit: Visit) -> Response:
    post = visit.store.groups.broadcast(visit.must("text", "The text"), author=visit.person)
    return visit.done("All agents are told.", go=f"/groups/{post.group_id}")


def join_group(visit: Visit) -> Response:
    joined = visit.store.groups.join(visit.must("id", "The group"), member=visit.person)
    return visit.done(f"{joined.member} is in it now.")


def leave_group(visit: Visit) -> Response:
    left = visit.store.groups.leave(visit.must("id", "The group"), member=visit.person)
    return visit.done(f"{left.member} is in it no more.")


def archive_group(visit: Visit) -> Response:
    group = visit.store.groups.archive(visit.must("id", "The group"))
    return visit.done(f"{group.name} is archived.")


def mark_group(visit: Visit) -> Response:
    marked = visit.store.groups.mark(
        visit.must("id", "The group"), _number(visit), member=visit.person
    )
    return visit.done(f"Read up to post {marked.read_number}.")


def react_to_post(visit: Visit) -> Response:
    sign = visit.must("sign", "The sign")
    post = visit.store.groups.react(
        visit.must("id", "The group"), _number(visit), sign, member=visit.person
    )
    return visit.done(f"Post {post.number} has your {sign}.")


def _number(visit: Visit) -> int:
    visit.must("number", "The number")
    return visit.number("number", "a post") or 0


def revoke_lock(visit: Visit) -> Response:
    lock = visit.store.locks.revoke(
        visit.must("id", "The lock"), reason=visit.must("reason", "The reason")
    )
    return visit.done(f"{lock.path} is no longer held by {lock.owner}.")


def add_note(visit: Visit) -> Response:
    text, kept = visit.must("text", "The text"), scope_of(visit.given("scope"))
    asked: dict[str, Any] = {name: value for name, value in kept.items() if name != "everyone"}
    if category := visit.given("category"):
        asked["category"] = category
    note = visit.store.notes.add(text, key=visit.given("key"), source=visit.person, **asked)
    return visit.done(f"It is remembered for {note.scope}.")


def supersede_note(visit: Visit) -> Response:
    visit.store.notes.supersede(
        visit.must("id", "The note"), visit.must("text", "The text"), source=visit.person
    )
    return visit.done("The new words count now.")


def forget_note(visit: Visit) -> Response:
    visit.store.notes.forget(visit.must("id", "The note"))
    return visit.done("It is forgotten.")


def _listed(visit: Visit, name: str) -> list[str]:
    """What was typed with commas."""
    return [part.strip() for part in (visit.given(name) or "").split(",") if part.strip()]


TEAM: dict[str, Show] = {
    "tasks/add": add_task,
    "tasks/move": move_task,
    "questions/answer": answer_question,
    "decisions/judge": judge_decision,
    "groups/create": create_group,
    "groups/post": post_in_group,
    "groups/send": send_message,
    "groups/broadcast": broadcast,
    "groups/join": join_group,
    "groups/leave": leave_group,
    "groups/archive": archive_group,
    "groups/mark": mark_group,
    "groups/react": react_to_post,
    "locks/revoke": revoke_lock,
    "notes/add": add_note,
    "notes/supersede": supersede_note,
    "notes/forget": forget_note,
}
