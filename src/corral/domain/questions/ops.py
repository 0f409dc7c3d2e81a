"""Ask questions, answer each once, and send the outcome to the asker."""

from collections.abc import Sequence
from typing import Any, NoReturn

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Chain, agent_name_of, check_mailbox, is_person
from corral.domain.mail.payloads import Payload, QuestionPayload
from corral.domain.questions import sql
from corral.domain.questions.model import (
    Question,
    QuestionState,
    Vote,
    check_answerers,
    check_may_answer,
    check_required_votes,
    compute_deadline,
    count_votes,
)
from corral.domain.settings import ops as settings
from corral.kernel.clock import DAY
from corral.kernel.deadline import is_overdue
from corral.kernel.errors import Conflict, IllegalMove, Invalid, Refused
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text, encode_json

RETENTION = sql.RETENTION
MAX_OPTIONS = 20
MAX_OPTION = 500
OUTCOME_LETTER_MS = 30 * DAY
"""How long the letter with the outcome waits to be read."""


def ask(
    tx: Tx,
    text: str,
    *,
    options: Sequence[str] = (),
    free_text: bool = False,
    asker: str | None = None,
    answerers: Sequence[str] = (),
    deadline_ms: int | None = None,
    fallback: str | None = None,
    effect: str | None = None,
    required_votes: int = 1,
    project: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> Question:
    """Ask a question with options, or for any text. Secrets are redacted.

    The answer is put into the mailbox `asker` (default: the caller's), so it is not lost when the
    asker crashes. `answerers` are notified and may answer; without any, every person may.
    `required_votes` is how many must give the same answer. Without an answer in time, or when
    agreement becomes impossible, the `fallback` applies. `effect` describes everything that is done
    on the answer and is always shown complete. Idempotent by `key`. Raises Refused at
    `questions.max_open`.
    """
    asker_mailbox = check_mailbox(asker or tx.actor)
    choices = _clean_options(options)
    allowed_answerers = check_answerers(answerers)
    fallback_answer = None
    if fallback is not None:
        fallback_answer = _resolve_answer(tx, fallback, choices, free_text)
    timeout_ms = deadline_ms or settings.get_value(
        tx, "questions.deadline_ms", agent=agent_name_of(asker_mailbox), project=project
    )
    values = {
        "id": tx.new_id("qst"),
        "project_id": check_optional_text(project, "The project", max_bytes=MAX_NAME),
        "asker": asker_mailbox,
        "run_id": check_optional_text(run, "The run", max_bytes=MAX_NAME),
        "key": check_optional_text(key, "The key", max_bytes=MAX_NAME),
        "text": check_text(text, "The question"),
        "options": encode_json(choices, "The options"),
        "free_text": int(bool(free_text) or not choices),
        "answerers": encode_json(allowed_answerers, "Who may answer"),
        "fallback": fallback_answer,
        "effect": check_optional_text(effect, "The effect"),
        "required_votes": check_required_votes(required_votes, allowed_answerers),
        "deadline_at": compute_deadline(tx.now, timeout_ms),
        "created_at": tx.now,
    }
    # Serialized: concurrent calls would all pass the limit.
    tx.serialize(f"questions:{asker_mailbox}")
    existing = find_by_key(tx, asker_mailbox, key) if key is not None else None
    if existing is not None:
        return existing
    _check_limit(tx, asker_mailbox, project)
    created = create(tx, sql.QUESTIONS, values, event_data={"asker": asker_mailbox})
    cause = chains.get_for_run(tx, run) if run else chains.get_for_caller(tx, asker_mailbox)
    chains.save(tx, "questions", created.id, cause)
    notify_answerers(
        tx, created.id, created.answerers, _to_payload(created), until=created.deadline_at
    )
    return created


def answer(tx: Tx, question: str, answer: str, *, by: str | None = None) -> Question:
    """Answer a question with an option, the number of an option, or text where it is accepted.

    The first answer counts. A later one, or one after the deadline, raises Conflict; repeating
    one's own answer is idempotent. When several votes are required, each person answers once
    and the question stays open until enough agree. `by` defaults to the caller.
    """
    current = get(tx, question)
    needs_votes = current.required_votes > 1
    if needs_votes:
        # Serialized: concurrent answers would miss each other's vote.
        tx.serialize(f"question:{current.id}")
        current = get(tx, current.id)
    answerer = check_text(by or tx.actor, "The answerer", max_bytes=MAX_NAME)
    check_may_answer(current.id, answerer, asker=current.asker, answerers=current.answerers)
    text = _resolve_answer(tx, answer, current.options, current.free_text)
    redacted = tx.without_secrets(text)  # compare with the stored answer, which is redacted
    is_repeated = (current.answered_by, current.answer) == (answerer, redacted) or any(
        (vote.by, vote.answer) == (answerer, redacted) for vote in current.votes
    )
    if is_repeated:
        return current
    if current.ended_at is not None or is_overdue(current, tx.now):
        _raise_late(current)
    try:
        if needs_votes:
            return _add_vote(tx, current, text, answerer)
        return _end_answered(tx, current, text, answerer, {"by": answerer})
    except IllegalMove:
        _raise_late(get(tx, current.id))


def _add_vote(tx: Tx, current: Question, text: str, answerer: str) -> Question:
    """Record one of several answers; end the question when it is decided or cannot be."""
    previous = next((vote for vote in current.votes if vote.by == answerer), None)
    if previous is not None:
        raise Conflict(
            f"You answered {current.id} already: {previous.answer}. An answer cannot be changed; "
            "withdraw the question and ask again.",
            id=current.id,
            answer=previous.answer,
            reason="already_answered",
        )
    votes = [*current.votes, Vote(answerer, text, tx.now)]
    columns: dict[str, Any] = {"votes": encode_json(votes, "The votes")}
    event_data = {"by": answerer, "of": current.required_votes}
    # Stored votes are redacted.
    redacted = Vote(answerer, tx.without_secrets(text), tx.now)
    counted = count_votes(current, [*current.votes, redacted])
    if counted.winners:
        return _end_answered(tx, current, text, ", ".join(counted.winners), event_data, **columns)
    if counted.is_hopeless:
        return _expire(tx, current, {**event_data, "reason": "no agreement"}, **columns)
    return transition(tx, sql.QUESTIONS, "vote", current.id, event_data=event_data, **columns)


def _end_answered(
    tx: Tx,
    current: Question,
    text: str,
    answerer: str,
    event_data: dict[str, object],
    **columns: Any,
) -> Question:
    ended = transition(
        tx,
        sql.QUESTIONS,
        "answer",
        current.id,
        event_data=event_data,
        answer=text,
        answered_by=answerer,
        ended_at=tx.now,
        **columns,
    )
    return _send_outcome(tx, ended)


def _expire(tx: Tx, current: Question, event_data: dict[str, object], **columns: Any) -> Question:
    ended = transition(
        tx,
        sql.QUESTIONS,
        "expire",
        current.id,
        event_data={**event_data, "fallback": current.fallback},
        answer=current.fallback,
        ended_at=tx.now,
        **columns,
    )
    return _send_outcome(tx, ended)


def withdraw(
    tx: Tx, question: str, *, reason: str | None = None, by: str | None = None
) -> Question:
    """Withdraw a question. Only its asker and people may; the asker is notified."""
    current = get(tx, question)
    actor = by or tx.actor
    if actor != current.asker and not is_person(actor):
        raise Refused(
            f"Only {current.asker}, who asked {current.id}, or a person can withdraw it.",
            id=current.id,
        )
    return _withdraw(tx, current.id, actor, reason)


def expire_due(tx: Tx, *, limit: int = 100) -> list[Question]:
    """Expire questions whose deadline has passed, and send the outcome to their askers."""
    return [
        _expire(tx, question, {})
        for question in tx.all(sql.WAITING.due, now=tx.now, limit=check_limit(limit))
    ]


def acknowledge(tx: Tx, question: str) -> Question:
    """Record that the asker knows the outcome: its letter is closed. Idempotent."""
    current = get(tx, question)
    if current.state is not QuestionState.OPEN:
        close_outcome_letter(tx, current.id, current.asker)
    return current


def get(tx: Tx, question: str) -> Question:
    """Return a question by its id or a unique prefix of it."""
    return sql.QUESTIONS.get(tx, sql.IDS.resolve(tx, question))


def find(tx: Tx, id: str) -> Question | None:
    """Return a question by its complete id; None when it was deleted."""
    return tx.first(sql.QUESTIONS.by_key, key_=id)


def find_by_key(tx: Tx, asker: str, key: str) -> Question | None:
    """Return the question of an asker by its key, or None."""
    return tx.first(sql.BY_KEY, asker=asker, key=key)


def list_questions(
    tx: Tx,
    *,
    asker: str | None = None,
    all: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Question]:
    """List open questions, or all, newest first; of all askers or of one."""
    if asker is None:
        return (sql.ALL if all else sql.OPEN).page(tx, after=after, limit=limit)
    listing = sql.ALL_OF_ASKER if all else sql.OPEN_OF_ASKER
    return listing.page(tx, after=after, limit=limit, asker=check_mailbox(asker))


def next_due(tx: Tx) -> int | None:
    """Return when the next question expires, or None."""
    time: int | None = tx.value(sql.WAITING.next)
    return time


def release_project(tx: Tx, project_id: str) -> None:
    """Withdraw the open questions of a project that is being deleted."""
    for (id,) in tx.run(sql.WAITING.of_project, project_id=project_id):
        _withdraw(tx, id, tx.actor, "its project was deleted")


def _withdraw(tx: Tx, id: str, actor: str, reason: str | None) -> Question:
    text = check_optional_text(reason, "The reason")
    withdrawn = transition(
        tx,
        sql.QUESTIONS,
        "withdraw",
        id,
        event_data={"by": actor, "reason": text},
        ended_at=tx.now,
    )
    _send_outcome(tx, withdrawn)
    if actor == withdrawn.asker:
        close_outcome_letter(tx, withdrawn.id, actor)
    return withdrawn


def notify_answerers(
    tx: Tx, id: str, answerers: Sequence[str], body: Payload, *, until: int
) -> None:
    """Put a letter to each answerer, which expires at the deadline."""
    mail.broadcast(tx, answerers, body, key=id, expires_at=until)


def send_outcome(
    tx: Tx,
    id: str,
    to: str,
    answerers: Sequence[str],
    body: Payload,
    *,
    project: str | None,
    cause: Chain | None = None,
) -> None:
    """Put the outcome into the mailbox `to`, once, and close the unread letters of the answerers.

    The letter continues the chain `cause`.
    """
    for answerer in answerers:
        mail.ack_unclaimed(tx, answerer, [id])
    until = tx.now + OUTCOME_LETTER_MS
    mail.put_caused_by(
        tx, cause, to, body, key=_build_letter_key(id), expires_at=until, project=project
    )


def close_outcome_letter(tx: Tx, id: str, to: str) -> None:
    """Close the letter of `send_outcome` in a mailbox whose owner knows the outcome already."""
    mail.ack_unclaimed(tx, to, [_build_letter_key(id)])


def _send_outcome(tx: Tx, ended: Question) -> Question:
    send_outcome(
        tx,
        ended.id,
        ended.asker,
        ended.answerers,
        _to_payload(ended),
        project=ended.project_id,
        cause=find_outcome_chain(tx, ended),
    )
    return ended


def find_outcome_chain(tx: Tx, ended: Question) -> Chain | None:
    """Return the chain that the letter with an answer continues; None when people answered.

    A person's answer starts a new chain, so that it does not count towards the hop limit.
    """
    by_people = ended.answered_by and all(map(is_person, ended.answered_by.split(", ")))
    return None if by_people else chains.load(tx, "questions", ended.id)


def _to_payload(question: Question) -> QuestionPayload:
    return QuestionPayload(
        question=question.id,
        state=question.state,
        asker=question.asker,
        text=question.text,
        options=list(question.options),
        effect=question.effect,
        required_votes=question.required_votes,
        answer=question.answer,
        answered_by=question.answered_by,
        deadline_at=question.deadline_at,
    )


def _build_letter_key(id: str) -> str:
    return f"{id}:ended"


def _raise_late(current: Question) -> NoReturn:
    if current.state is QuestionState.ANSWERED:
        outcome = f"{current.answered_by} answered it: {current.answer}"
    elif current.state is QuestionState.WITHDRAWN:
        outcome = "it was withdrawn"
    elif current.votes and current.ended_at is not None and current.ended_at < current.deadline_at:
        outcome = "the answerers did not agree"
    else:
        fallback = (
            f"; the fallback applies: {current.fallback}" if current.fallback is not None else ""
        )
        outcome = f"its deadline has passed{fallback}"
    raise Conflict(
        f"Too late to answer {current.id}: {outcome}.",
        id=current.id,
        state=current.state,
        answer=current.answer,
        answered_by=current.answered_by,
        reason="too_late",
    )


def _check_limit(tx: Tx, asker: str, project: str | None) -> None:
    limit = settings.get_value(
        tx, "questions.max_open", agent=agent_name_of(asker), project=project
    )
    if tx.value(sql.WAITING.count_of, owner=asker) >= limit:
        raise Refused(
            f"{asker} has {limit} open questions, which is the limit. Wait for answers, or "
            "withdraw one (`corral question list`).",
            asker=asker,
            limit=limit,
        )


def _clean_options(value: Sequence[str]) -> list[str]:
    if isinstance(value, str) or len(value) > MAX_OPTIONS:
        raise Invalid(f"Options must be a list of at most {MAX_OPTIONS} texts.")
    options = [check_text(option, "An option", max_bytes=MAX_OPTION) for option in value]
    if len({*options}) < len(options):
        raise Invalid("Two options are the same. Remove one.", options=options)
    return options


def _resolve_answer(tx: Tx, value: str, options: Sequence[str], free_text: bool) -> str:
    """Return the option that a text names, by its text or number, else the text if it is accepted.

    The text is returned unredacted: the write redacts it and reports that to the caller.
    """
    text = check_text(value, "The answer")
    redacted = tx.without_secrets(text)  # stored options are redacted
    if redacted in options:
        return redacted
    if text in options or not options:
        return text
    if text.isascii() and text.isdigit() and len(text) < 3 and 1 <= int(text) <= len(options):
        return options[int(text) - 1]
    if free_text:
        return text
    raise Invalid(
        f"Invalid answer {redacted[:100]!r}: expected {', '.join(options)}.",
        options=list(options),
    )
