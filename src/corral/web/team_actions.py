"""Actions on tasks, questions, decisions, groups, locks and notes."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from corral.domain.chat.model import format_asker
from corral.domain.questions.model import Question, QuestionState
from corral.kernel.errors import Invalid
from corral.web.notes import parse_scope
from corral.web.request import PageHandler, PageRequest
from corral.web.tasks import TASK_VERBS


def add_task(request: PageRequest) -> Response:
    task = request.store.tasks.add(
        request.require("project", "The project"),
        request.require("key", "The key"),
        title=request.require("title", "The title"),
        role=request.field("role"),
        description=request.field("description"),
        files=_split_list(request, "files"),
        depends_on=_split_list(request, "depends_on"),
    )
    return request.success(f"Task {task.key} created ({task.state}).")


def move_task(request: PageRequest) -> Response:
    """Apply a verb that people may use; the transition table decides whether it is legal."""
    verb, task = request.require("verb", "The action"), request.require("id", "The task")
    if verb not in TASK_VERBS:
        raise Invalid(
            f"Invalid action {verb!r}: expected one of {', '.join(TASK_VERBS)}.", verb=verb
        )
    move = getattr(request.store.tasks, verb)
    if verb == "reassign":
        moved = move(task, None)
    elif verb == "reject":
        moved = move(task, request.require("reason", "The reason"))
    elif verb in ("resume", "retry"):
        moved = move(task)
    else:
        moved = move(task, **{"note" if verb == "accept" else "reason": request.field("reason")})
    return request.success(f"Task {moved.key} is {moved.state}.")


def answer_question(request: PageRequest) -> Response:
    store, id = request.store, request.require("id", "The question")
    by = _answerer(request, store.questions.get(id).answerers)
    question = store.questions.answer(id, request.require("answer", "The answer"), by=by)
    return request.success(_answer_notice(question))


def _answer_notice(question: Question) -> str:
    if question.state is QuestionState.OPEN:
        return f"Vote recorded; {question.required_votes} people must give the same answer."
    if question.answer is None:
        return f"The votes disagree. {format_asker(question.asker)} was notified."
    return f"Answer sent to {format_asker(question.asker)}: {question.answer}"


def review_decision(request: PageRequest) -> Response:
    """Apply a verdict to one decision or to all selected ones, in one transaction."""
    store, verdict = request.store, request.require("verdict", "The verdict")
    ids = [given] if (given := request.field("id")) else request.selected()
    if not ids:
        raise Invalid("Select at least one decision.")
    answerers = {_answerer(request, store.decisions.get(id).answerers) for id in ids}
    if len(answerers) > 1:
        raise Invalid(
            "The selected decisions are for different people. Select those of one person."
        )
    reviewed = store.decisions.review_many(
        ids, verdict, reason=request.field("reason"), by=answerers.pop()
    )
    if len(reviewed) > 1:
        return request.success(f"{len(reviewed)} decisions {reviewed[0].state}.")
    return request.success(f"Decision {reviewed[0].state}: {reviewed[0].title}")


def _answerer(request: PageRequest, answerers: Sequence[str]) -> str | None:
    """Return the person to answer as: None, unless the question names people."""
    people = [answerer for answerer in answerers if answerer.startswith("user:")]
    return request.user if request.user in people else next(iter(people), None)


def create_group(request: PageRequest) -> Response:
    group = request.store.groups.create(
        request.require("name", "The name"),
        members=_split_list(request, "members"),
        roles=_split_list(request, "roles"),
        by=request.user,
    )
    return request.success(f"Group {group.name} created.", redirect_to=f"/groups/{group.id}")


def post_in_group(request: PageRequest) -> Response:
    post = request.store.groups.post(
        request.require("id", "The group"), request.require("text", "The text"), author=request.user
    )
    return request.success(f"Posted as number {post.number}.")


def send_message(request: PageRequest) -> Response:
    post = request.store.groups.send(
        request.require("to", "The recipient"),
        request.require("text", "The text"),
        author=request.user,
    )
    return request.success("Message sent.", redirect_to=f"/groups/{post.group_id}")


def broadcast(request: PageRequest) -> Response:
    post = request.store.groups.broadcast(request.require("text", "The text"), author=request.user)
    return request.success("Message sent to all agents.", redirect_to=f"/groups/{post.group_id}")


def join_group(request: PageRequest) -> Response:
    joined = request.store.groups.join(request.require("id", "The group"), member=request.user)
    return request.success(f"{joined.name} joined the group.")


def leave_group(request: PageRequest) -> Response:
    left = request.store.groups.leave(request.require("id", "The group"), member=request.user)
    return request.success(f"{left.name} left the group.")


def archive_group(request: PageRequest) -> Response:
    group = request.store.groups.archive(request.require("id", "The group"))
    return request.success(f"Group {group.name} archived.")


def mark_group(request: PageRequest) -> Response:
    marked = request.store.groups.mark(
        request.require("id", "The group"), _number(request), member=request.user
    )
    return request.success(f"Marked as read up to post {marked.read_number}.")


def react_to_post(request: PageRequest) -> Response:
    emoji = request.require("emoji", "The reaction")
    post = request.store.groups.react(
        request.require("id", "The group"), _number(request), emoji, member=request.user
    )
    return request.success(f"Reacted to post {post.number} with {emoji}.")


def _number(request: PageRequest) -> int:
    request.require("number", "The number")
    return request.integer("number", "a post") or 0


def revoke_lock(request: PageRequest) -> Response:
    lock = request.store.locks.revoke(
        request.require("id", "The lock"), reason=request.require("reason", "The reason")
    )
    return request.success(f"Lock on {lock.path} revoked from {lock.owner}.")


def add_note(request: PageRequest) -> Response:
    text, scope = request.require("text", "The text"), parse_scope(request.field("scope"))
    options: dict[str, Any] = {name: value for name, value in scope.items() if name != "everyone"}
    if category := request.field("category"):
        options["category"] = category
    note = request.store.notes.add(text, key=request.field("key"), source=request.user, **options)
    return request.success(f"Note saved for {note.scope}.")


def supersede_note(request: PageRequest) -> Response:
    request.store.notes.supersede(
        request.require("id", "The note"), request.require("text", "The text"), source=request.user
    )
    return request.success("Note replaced.")


def forget_note(request: PageRequest) -> Response:
    request.store.notes.forget(request.require("id", "The note"))
    return request.success("Note deleted.")


def _split_list(request: PageRequest, name: str) -> list[str]:
    """Return the items of a comma-separated field."""
    return [part.strip() for part in (request.field(name) or "").split(",") if part.strip()]


TEAM_ACTIONS: dict[str, PageHandler] = {
    "tasks/add": add_task,
    "tasks/move": move_task,
    "questions/answer": answer_question,
    "decisions/review": review_decision,
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
