"""Tools by which agents ask, answer, and put on record what they decided."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corral.kernel.errors import Invalid, Refused
from corral.mcp.call import Arguments, Call, Told, Wait, Writing

Names = Annotated[
    list[str],
    Meta(
        max_length=50,
        description="Who may answer: user:NAME or agent:NAME; nobody named: any person.",
    ),
]
Minutes = Annotated[int, Meta(ge=1, le=43_200, description="How long an answer is waited for.")]


class Ask(Writing, kw_only=True):
    text: Annotated[str, Meta(min_length=1)]
    options: Annotated[
        list[str], Meta(max_length=20, description="To choose from; none: any text.")
    ] = msgspec.field(default_factory=list)
    to: Names = msgspec.field(default_factory=list)
    fallback: Annotated[
        str | None, Meta(description="What counts when nobody answers in time; the safe one.")
    ] = None
    within_minutes: Minutes | None = None
    wait_seconds: Wait = 0


class Answered(Told, kw_only=True):
    id: str
    state: str
    answer: str | None
    by: str | None


def ask(call: Call, asked: Ask) -> Answered:
    """Ask a person, or named agents, something that you must not guess. With wait_seconds the
    answer comes in this call if it comes soon; else to your inbox, also after a restart."""
    me = call.caller
    made = call.store.questions.ask(
        asked.text,
        options=asked.options,
        asker=me.mailbox,
        answerers=asked.to,
        deadline_ms=asked.within_minutes * 60_000 if asked.within_minutes else None,
        fallback=asked.fallback,
        project=me.project_id,
        run=me.run,
        key=_own_key(call, asked),
    )
    return _wait_for(call, made.id, asked.wait_seconds)


def _own_key(call: Call, asked: Writing) -> str | None:
    """A key that was seen gives back the first one, which must not be another's."""
    return f"{call.caller.mailbox}:{asked.idempotency_key}" if asked.idempotency_key else None


class AnswerWait(Arguments, kw_only=True):
    id: Annotated[str, Meta(description="Of your question, or of a decision to be confirmed.")]
    wait_seconds: Wait = 30


def answer_wait(call: Call, asked: AnswerWait) -> Answered:
    """Wait for the answer to a question that you asked, or for the confirmation of a decision that
    you proposed. Ask again as often as you need to."""
    return _wait_for(call, asked.id, asked.wait_seconds)


def _wait_for(call: Call, id: str, seconds: int) -> Answered:
    is_decision = id.startswith("dec_")
    room: Any = call.store.decisions if is_decision else call.store.questions
    found = room.get(id)
    owner = found.author if is_decision else found.asker
    if owner != call.caller.mailbox:
        raise Refused(
            f"{found.id} is not yours; only {owner} waits for it.", id=found.id, reason="not_yours"
        )
    for wait_ms in call.slices(seconds) if seconds else ():
        if found.state not in ("open", "proposed"):
            break
        found = _after(room.wait, found, wait_ms)
    if found.ended_at is not None:
        room.hear(found.id)  # told here, so no letter has to tell it once more
    return _told(found, is_decision)


def _after(wait: Callable[..., Any], found: Any, wait_ms: int) -> Any:
    try:
        return wait(found.id, timeout_ms=wait_ms)
    except Refused:
        return found  # not yet


def _told(found: Any, is_decision: bool) -> Answered:
    open_ = found.state in ("open", "proposed")
    step = "Go on with that."
    if open_:
        step = (
            "No answer yet: do something else, and call answer_wait or inbox later. Do not guess."
        )
    elif found.state in ("expired", "rejected", "dismissed", "withdrawn"):
        step = "You have no yes: take the safe way, or leave it."
    if is_decision:
        said, by = (None if open_ else found.reason), found.decided_by
    else:
        said, by = found.answer, found.answered_by
    return Answered(next_step=step, id=found.id, state=found.state, answer=said, by=by)


class Answer(Writing, kw_only=True):
    id: Annotated[str, Meta(description="Of the question or decision, as the letter told it.")]
    answer: Annotated[
        str,
        Meta(min_length=1, description="One of its options, or a text; of a decision yes or no."),
    ]
    reason: Annotated[str | None, Meta(description="Why, for a decision.")] = None


def answer(call: Call, asked: Answer) -> Answered | msgspec.Raw:
    """Answer a question, or confirm or reject a decision, that another agent put to you. It counts
    once; who comes too late is told so."""
    by = call.caller.mailbox
    if not asked.id.startswith("dec_"):
        return call.do(
            "questions.answer",
            asked,
            lambda found: _told(found, False),
            question=asked.id,
            answer=asked.answer,
            by=by,
        )
    verbs = {"yes": "decisions.confirm", "no": "decisions.reject"}
    verb = verbs.get(asked.answer.strip().lower())
    if verb is None:
        raise Invalid("A decision is answered with yes or no; say why in `reason`.")
    return call.do(
        verb,
        asked,
        lambda found: _told(found, True),
        decision=asked.id,
        reason=asked.reason,
        by=by,
    )


class Decide(Writing, kw_only=True):
    title: Annotated[str, Meta(min_length=1, description="What was decided, in one sentence.")]
    rationale: Annotated[str, Meta(description="Why.")] = ""
    alternatives: Annotated[list[str], Meta(max_length=50)] = msgspec.field(default_factory=list)
    category: str = "general"
    confirm: Annotated[
        bool, Meta(description="True: nothing may be done on it until somebody says yes.")
    ] = False
    to: Names = msgspec.field(default_factory=list)
    within_minutes: Minutes | None = None
    wait_seconds: Wait = 0


def decide(call: Call, asked: Decide) -> Answered:
    """Put a choice on record, with its reasons and what else there was, so that others need not
    wonder. With confirm it is only proposed: wait for the yes before you act on it. No answer in
    time is a no."""
    me = call.caller
    made = call.store.decisions.record(
        asked.title,
        rationale=asked.rationale,
        alternatives=asked.alternatives,
        category=asked.category,
        confirm=asked.confirm,
        answerers=asked.to,
        deadline_ms=asked.within_minutes * 60_000 if asked.within_minutes else None,
        author=me.mailbox,
        project=me.project_id,
        run=me.run,
        key=_own_key(call, asked),
    )
    return _wait_for(call, made.id, asked.wait_seconds if asked.confirm else 0)
