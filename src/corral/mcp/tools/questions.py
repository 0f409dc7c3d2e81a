"""Tools: ask, answer_wait, answer, decide."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corral.kernel.errors import Invalid, NotYet, Refused
from corral.mcp.call import ToolArguments, ToolCall, ToolResult, WaitSeconds, WriteArguments

Answerers = Annotated[
    list[str],
    Meta(
        max_length=50,
        description="Who may answer: user:NAME or agent:NAME. Empty: any person.",
    ),
]
DeadlineMinutes = Annotated[int, Meta(ge=1, le=43_200, description="Minutes until the deadline.")]


class AskArguments(WriteArguments, kw_only=True):
    text: Annotated[str, Meta(min_length=1)]
    options: Annotated[
        list[str], Meta(max_length=20, description="Possible answers. Empty: free text.")
    ] = msgspec.field(default_factory=list)
    to: Answerers = msgspec.field(default_factory=list)
    fallback: Annotated[
        str | None,
        Meta(description="The answer when the deadline passes without one; choose the safe one."),
    ] = None
    within_minutes: DeadlineMinutes | None = None
    wait_seconds: WaitSeconds = 0


class AnswerResult(ToolResult, kw_only=True):
    id: str
    state: str
    answer: str | None
    by: str | None


def ask_question(call: ToolCall, arguments: AskArguments) -> AnswerResult:
    """Ask a person, or named agents, something that you must not guess. With wait_seconds this call
    returns the answer if it comes soon. Otherwise it comes to your inbox, also after a restart."""
    caller = call.caller
    question = call.store.questions.ask(
        arguments.text,
        options=arguments.options,
        asker=caller.mailbox,
        answerers=arguments.to,
        deadline_ms=arguments.within_minutes * 60_000 if arguments.within_minutes else None,
        fallback=arguments.fallback,
        project=caller.project_id,
        run=caller.run,
        key=_scoped_key(call, arguments),
    )
    return _wait_for_answer(call, question.id, arguments.wait_seconds)


def _scoped_key(call: ToolCall, arguments: WriteArguments) -> str | None:
    """Prefix the key with the caller: a repeated key returns the first record, which must not
    belong to another agent."""
    key = arguments.idempotency_key
    return f"{call.caller.mailbox}:{key}" if key else None


class AnswerWaitArguments(ToolArguments, kw_only=True):
    id: Annotated[str, Meta(description="Id of your question or proposed decision.")]
    wait_seconds: WaitSeconds = 30


def wait_for_answer(call: ToolCall, arguments: AnswerWaitArguments) -> AnswerResult:
    """Wait for the answer to a question that you asked, or for the confirmation of a decision that
    you proposed. Call it as often as needed."""
    return _wait_for_answer(call, arguments.id, arguments.wait_seconds)


def _wait_for_answer(call: ToolCall, id: str, seconds: int) -> AnswerResult:
    is_decision = id.startswith("dec_")
    resource: Any = call.store.decisions if is_decision else call.store.questions
    record = resource.get(id)
    owner = record.author if is_decision else record.asker
    if owner != call.caller.mailbox:
        raise Refused(
            f"{record.id} belongs to {owner}; only {owner} can wait for it.",
            id=record.id,
            reason="not_yours",
        )
    for wait_ms in call.wait_slices(seconds) if seconds else ():
        if record.state not in ("open", "proposed"):
            break
        record = _wait_slice(resource.wait, record, wait_ms)
    if record.ended_at is not None:
        resource.acknowledge(record.id)  # delivered by this call, so no message follows
    return _answer_result(record, is_decision)


def _wait_slice(wait: Callable[..., Any], record: Any, wait_ms: int) -> Any:
    try:
        return wait(record.id, timeout_ms=wait_ms)
    except NotYet:
        return record


def _answer_result(record: Any, is_decision: bool) -> AnswerResult:
    is_open = record.state in ("open", "proposed")
    step = "Continue with this answer."
    if is_open:
        step = "No answer yet. Do other work, and call answer_wait or inbox later. Do not guess."
    elif record.state in ("expired", "rejected", "dismissed", "withdrawn"):
        step = "Not approved. Choose the safe alternative, or leave it."
    if is_decision:
        text, by = (None if is_open else record.reason), record.decided_by
    else:
        text, by = record.answer, record.answered_by
    return AnswerResult(next_step=step, id=record.id, state=record.state, answer=text, by=by)


class AnswerArguments(WriteArguments, kw_only=True):
    id: Annotated[str, Meta(description="Id of the question or decision, from the message.")]
    answer: Annotated[
        str,
        Meta(
            min_length=1,
            description="One of the options, or a text; for a decision yes or no.",
        ),
    ]
    reason: Annotated[str | None, Meta(description="Reason, for a decision.")] = None


def answer_question(call: ToolCall, arguments: AnswerArguments) -> AnswerResult | msgspec.Raw:
    """Answer a question, or confirm or reject a decision, that another agent sent you. The first
    answer counts; later ones get an error."""
    by = call.caller.mailbox
    if not arguments.id.startswith("dec_"):
        return call.perform(
            "questions.answer",
            arguments,
            lambda question: _answer_result(question, False),
            question=arguments.id,
            answer=arguments.answer,
            by=by,
        )
    verbs = {"yes": "decisions.confirm", "no": "decisions.reject"}
    verb = verbs.get(arguments.answer.strip().lower())
    if verb is None:
        raise Invalid("Answer a decision with yes or no, and explain in `reason`.")
    return call.perform(
        verb,
        arguments,
        lambda decision: _answer_result(decision, True),
        decision=arguments.id,
        reason=arguments.reason,
        by=by,
    )


class DecideArguments(WriteArguments, kw_only=True):
    title: Annotated[str, Meta(min_length=1, description="The decision in one sentence.")]
    rationale: Annotated[str, Meta(description="Why.")] = ""
    alternatives: Annotated[list[str], Meta(max_length=50)] = msgspec.field(default_factory=list)
    category: str = "general"
    confirm: Annotated[
        bool, Meta(description="true: the decision is a proposal until it is confirmed.")
    ] = False
    to: Answerers = msgspec.field(default_factory=list)
    within_minutes: DeadlineMinutes | None = None
    wait_seconds: WaitSeconds = 0


def record_decision(call: ToolCall, arguments: DecideArguments) -> AnswerResult:
    """Record a decision with its reasons and alternatives, so that others can understand it. With
    confirm it is only proposed: wait for the confirmation before you act on it. No answer by the
    deadline means no."""
    caller = call.caller
    decision = call.store.decisions.record(
        arguments.title,
        rationale=arguments.rationale,
        alternatives=arguments.alternatives,
        category=arguments.category,
        confirm=arguments.confirm,
        answerers=arguments.to,
        deadline_ms=arguments.within_minutes * 60_000 if arguments.within_minutes else None,
        author=caller.mailbox,
        project=caller.project_id,
        run=caller.run,
        key=_scoped_key(call, arguments),
    )
    wait_seconds = arguments.wait_seconds if arguments.confirm else 0
    return _wait_for_answer(call, decision.id, wait_seconds)
