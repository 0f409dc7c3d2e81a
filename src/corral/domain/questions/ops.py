"""Asking, answering once, and telling whoever asked."""

from collections.abc import Sequence
from typing import Any, NoReturn

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Chain, agent_of, check_mailbox
from corral.domain.questions import sql
from corral.domain.questions.model import (
    Question,
    QuestionState,
    Vote,
    check_answerers,
    check_may_answer,
    check_needed,
    deadline_of,
    is_person,
    tally,
)
from corral.domain.settings import ops as settings
from corral.kernel.clock import DAY
from corral.kernel.deadline import is_late
from corral.kernel.errors import Conflict, IllegalMove, Invalid, Refused
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, encode_json

KEPT = sql.KEPT
S = QuestionState
MAX_OPTIONS = 20
MAX_OPTION = 500
LETTER_MS = 30 * DAY
"""How long somebody who is away can still read how it went."""


def ask(
    tx: Tx,
    text: str,
    *,
    options: Sequence[str] = (),
    free: bool = False,
    asker: str | None = None,
    answerers: Sequence[str] = (),
    deadline_ms: int | None = None,
    fallback: str | None = None,
    effect: str | None = None,
    needed: int = 1,
    project: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> Question:
    """Ask something: with options to choose from, or for any text; secrets are taken out.

    The answer goes to the mailbox `asker` (else whoever calls) as a letter, also when the asker has
    died meanwhile. `answerers` may answer and are told; without any, every person may. Where
    several are `needed`, so many must give the same answer. Without that in time, or when they
    cannot agree any more, the `fallback` counts. `effect` is all that will be done on the answer:
    it is shown whole, wherever the question is. The same `key` gives back the first question.
    """
    whose = check_mailbox(asker or tx.actor)
    choices = _options(options)
    waited_ms = deadline_ms or settings.value(
        tx, "questions.deadline_ms", agent=agent_of(whose), project=project
    )
    values = {
        "id": tx.new_id("qst"),
        "project_id": _name(project, "The project"),
        "asker": whose,
        "run_id": _name(run, "The run"),
        "key": _name(key, "The key"),
        "text": clean_text(text, "The question"),
        "options": encode_json(choices, "The options"),
        "free": int(bool(free) or not choices),
        "answerers": encode_json(check_answerers(answerers), "Who may answer"),
        "fallback": None if fallback is None else _chosen(tx, fallback, choices, free),
        "effect": clean_text(effect, "The effect") if effect else None,
        "needed": check_needed(needed, check_answerers(answerers)),
        "deadline_at": deadline_of(tx.now, waited_ms),
        "created_at": tx.now,
    }
    # Two that count at the same moment would both find room for one more.
    tx.serialize(f"questions:{whose}")
    if key is not None and (before := tx.one(sql.BY_KEY, asker=whose, key=key)) is not None:
        return before
    _check_room(tx, whose, project)
    made = create(tx, sql.QUESTIONS, values, note={"asker": whose})
    assert made is not None
    cause = chains.of_run(tx, run) if run else chains.of_caller(tx, whose)
    chains.save(tx, "questions", made.id, cause)
    call_on(tx, made.id, made.answerers, _told(made), until=made.deadline_at)
    return made


def answer(tx: Tx, question: str, answer: str, *, by: str | None = None) -> Question:
    """Answer a question: with an option, its number, or any text where that is asked for.

    It is answered once; whoever comes later, or after the deadline, is told so (Conflict). Saying
    the same again is fine. Where several must agree, each of them answers once, and the question
    stays open until enough did. `by` is whoever calls, if nobody else is named.
    """
    found = get(tx, question)
    if found.needed > 1:
        # Two that count at the same moment would each miss the other's vote.
        tx.serialize(f"question:{found.id}")
        found = get(tx, found.id)
    who = clean_text(by or tx.actor, "Who answers", most=MAX_NAME)
    check_may_answer(found.id, who, asker=found.asker, answerers=found.answerers)
    said = _chosen(tx, answer, found.options, found.free)
    kept = tx.without_secrets(said)
    if found.state is S.ANSWERED and (found.answered_by, found.answer) == (who, kept):
        return found
    if found.ended_at is not None or is_late(found, tx.now):
        _refuse_late(found)
    try:
        if found.needed > 1:
            return _vote(tx, found, said, who)
        return _answered(tx, found, said, who, {"by": who})
    except IllegalMove:
        _refuse_late(get(tx, found.id))


def _vote(tx: Tx, found: Question, said: str, who: str) -> Question:
    """One of several answers; the last one needed ends it, as does one that makes it hopeless."""
    before = next((vote for vote in found.votes if vote.by == who), None)
    counts = tx.without_secrets(said)  # as those of others were kept
    if before is not None:
        if before.answer == counts:
            return found
        raise Conflict(
            f"You have answered {found.id} before: {before.answer}. That stands; withdraw the "
            "question, and ask anew.",
            id=found.id,
            answer=before.answer,
            reason="already_answered",
        )
    votes = [*found.votes, Vote(who, said, tx.now)]
    kept: dict[str, Any] = {"votes": encode_json(votes, "The votes")}
    note = {"by": who, "of": found.needed}
    counted = tally(found, [*found.votes, Vote(who, counts, tx.now)])
    if counted.winners:
        return _answered(tx, found, said, ", ".join(counted.winners), note, **kept)
    if counted.is_hopeless:
        return _expire(tx, found, {**note, "reason": "they do not agree"}, **kept)
    return move(tx, sql.QUESTIONS, "vote", found.id, note=note, **kept)


def _answered(
    tx: Tx, found: Question, said: str, who: str, note: dict[str, object], **columns: Any
) -> Question:
    ended = move(
        tx,
        sql.QUESTIONS,
        "answer",
        found.id,
        note=note,
        answer=said,
        answered_by=who,
        ended_at=tx.now,
        **columns,
    )
    return _tell(tx, ended)


def _expire(tx: Tx, found: Question, note: dict[str, object], **columns: Any) -> Question:
    ended = move(
        tx,
        sql.QUESTIONS,
        "expire",
        found.id,
        note={**note, "fallback": found.fallback},
        answer=found.fallback,
        ended_at=tx.now,
        **columns,
    )
    return _tell(tx, ended)


def withdraw(
    tx: Tx, question: str, *, reason: str | None = None, by: str | None = None
) -> Question:
    """Take a question back: whoever asked it, or a person. The asker is told, if it was another."""
    found = get(tx, question)
    who = by or tx.actor
    if who != found.asker and not is_person(who):
        raise Refused(f"{found.id} was asked by {found.asker}, who can take it back.", id=found.id)
    return _take_back(tx, found.id, who, reason)


def expire_due(tx: Tx, *, limit: int = 100) -> list[Question]:
    """End the questions that nobody answered in time, and tell their askers what counts now."""
    return [
        _expire(tx, late, {})
        for late in tx.all(sql.WAITING.due, now=tx.now, limit=check_limit(limit))
    ]


def hear(tx: Tx, question: str) -> Question:
    """Say that the asker has learned how its question ended: the letter that tells it is done."""
    found = get(tx, question)
    if found.state is not S.OPEN:
        close_report(tx, found.id, found.asker)
    return found


def get(tx: Tx, question: str) -> Question:
    """A question by its id, which may be shortened."""
    return sql.QUESTIONS.get(tx, sql.IDS.resolve(tx, question))


def find(tx: Tx, id: str) -> Question | None:
    """A question by its whole id, if it is still kept."""
    return tx.one(sql.QUESTIONS.by_key, key_=id)


def under(tx: Tx, asker: str, key: str) -> Question | None:
    """The question that somebody asked under a key; None: there is none."""
    return tx.one(sql.BY_KEY, asker=asker, key=key)


def list_questions(
    tx: Tx,
    *,
    asker: str | None = None,
    all: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Question]:
    """Questions that wait for an answer, or all of them, newest first; of one asker."""
    (before,) = decode_cursor(after, LAST_ID)
    if asker is None:
        rows = tx.all(
            sql.LIST_ALL if all else sql.LIST_OPEN, before=before, limit=check_limit(limit) + 1
        )
    else:
        rows = tx.all(
            sql.LIST_ALL_OF_ASKER if all else sql.LIST_OPEN_OF_ASKER,
            asker=check_mailbox(asker),
            before=before,
            limit=check_limit(limit) + 1,
        )
    return page_of(rows, limit, lambda question: (question.id,))


def next_due(tx: Tx) -> int | None:
    """The moment at which `expire_due` will next have something to do."""
    moment: int | None = tx.value(sql.WAITING.next)
    return moment


def withdraw_all(tx: Tx, project_id: str) -> None:
    """Take back what is still asked in a project that is being deleted."""
    for (id,) in tx.run(sql.WAITING.of_project, project_id=project_id):
        _take_back(tx, id, tx.actor, "its project was deleted")


def _take_back(tx: Tx, id: str, who: str, reason: str | None) -> Question:
    said = clean_text(reason, "The reason") if reason else None
    note = {"by": who, "reason": said}
    gone = _tell(tx, move(tx, sql.QUESTIONS, "withdraw", id, note=note, ended_at=tx.now))
    if who == gone.asker:
        close_report(tx, gone.id, who)
    return gone


def call_on(
    tx: Tx, id: str, answerers: Sequence[str], body: dict[str, object], *, until: int
) -> None:
    """Put a letter to each of those who may answer; it is of no use after the deadline."""
    mail.put_all(tx, answerers, body, key=id, expires_at=until)


def report(
    tx: Tx,
    id: str,
    to: str,
    answerers: Sequence[str],
    body: dict[str, object],
    *,
    project: str | None,
    cause: Chain | None = None,
) -> None:
    """Send the outcome to the caller, once, and close the unread letters of the answerers. The
    letter continues the chain `cause`."""
    for answerer in answerers:
        mail.close_unread(tx, answerer, [id])
    until = tx.now + LETTER_MS
    mail.put_after(tx, cause, to, body, key=_letter_key(id), expires_at=until, project=project)


def close_report(tx: Tx, id: str, to: str) -> None:
    """Take the letter of `report` out of the mailbox: it was learned in another way."""
    mail.close_unread(tx, to, [_letter_key(id)])


def _tell(tx: Tx, ended: Question) -> Question:
    report(
        tx,
        ended.id,
        ended.asker,
        ended.answerers,
        _told(ended),
        project=ended.project_id,
        cause=chain_of(tx, ended),
    )
    return ended


def chain_of(tx: Tx, ended: Question) -> Chain | None:
    """Return the chain that the letter with an answer continues: that of the question, unless
    people answered it."""
    by_people = ended.answered_by and all(map(is_person, ended.answered_by.split(", ")))
    return None if by_people else chains.load(tx, "questions", ended.id)


def _told(question: Question) -> dict[str, object]:
    return {
        "kind": "question",
        "question": question.id,
        "state": question.state,
        "asker": question.asker,
        "text": question.text,
        "options": question.options,
        "effect": question.effect,
        "needed": question.needed,
        "answer": question.answer,
        "answered_by": question.answered_by,
        "deadline_at": question.deadline_at,
    }


def _letter_key(id: str) -> str:
    return f"{id}:ended"


def _refuse_late(found: Question) -> NoReturn:
    if found.state is S.ANSWERED:
        how = f"{found.answered_by} answered it before: {found.answer}"
    elif found.state is S.WITHDRAWN:
        how = "it was withdrawn"
    elif found.votes and found.ended_at is not None and found.ended_at < found.deadline_at:
        how = "those who were asked did not agree"
    else:
        counts = f"; {found.fallback} counts" if found.fallback is not None else ""
        how = f"its time was over{counts}"
    raise Conflict(
        f"Your answer to {found.id} comes too late: {how}.",
        id=found.id,
        found=found.state,
        answer=found.answer,
        answered_by=found.answered_by,
        reason="too_late",
    )


def _check_room(tx: Tx, asker: str, project: str | None) -> None:
    most = settings.value(tx, "questions.max_open", agent=agent_of(asker), project=project)
    if tx.value(sql.WAITING.count_of, whose=asker) >= most:
        raise Refused(
            f"{asker} has {most} questions open, and more are not allowed; wait for answers, or "
            "withdraw one (`corral question list`).",
            asker=asker,
            limit=most,
        )


def _options(given: Sequence[str]) -> list[str]:
    if isinstance(given, str) or len(given) > MAX_OPTIONS:
        raise Invalid(f"Options are a list of at most {MAX_OPTIONS} texts.")
    options = [clean_text(option, "An option", most=MAX_OPTION) for option in given]
    if len({*options}) < len(options):
        raise Invalid("Two options are the same; leave one out.", options=options)
    return options


def _chosen(tx: Tx, given: str, options: Sequence[str], free: bool) -> str:
    """The option that was meant, by its words or its number; else the text, where it is free. What
    it holds of secrets is taken out where it is kept, which whoever wrote it is told."""
    text = clean_text(given, "The answer")
    kept = tx.without_secrets(text)  # as the options were
    if kept in options:
        return kept
    if text in options or not options:
        return text
    if text.isascii() and text.isdigit() and len(text) < 3 and 1 <= int(text) <= len(options):
        return options[int(text) - 1]
    if free:
        return text
    raise Invalid(
        f"{kept[:100]!r} is none of the options; answer with one of {', '.join(options)}.",
        options=list(options),
    )


def _name(given: str | None, what: str) -> str | None:
    return clean_text(given, what, most=MAX_NAME) if given else None
