"""Questions on channels: shown as a card, answered by a button or in words, exactly once."""

from typing import Any

from corral.adapters.channels.contract import Incoming, Kind, card_text
from corral.adapters.channels.registry import traits_of
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.model import HOST, Card, Place, Talk
from corral.domain.chat.outbound import cards_sql, queue
from corral.domain.mail import ops as mail
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question, QuestionState
from corral.domain.runs import ops as runs
from corral.kernel.errors import CorralError, NotFound
from corral.kernel.ids import number_of
from corral.kernel.text import abridged, printable

MOST = 100
REDACTED = "[not kept: it may be a secret]"
NOT_HERE = (
    "A secret was asked for here, and what you wrote may be one, so nothing of it was kept. Delete "
    "it in the chat, give the secret where the card says, and treat what you typed as known to "
    "others. If it was no secret, say it in several words."
)
_SHORTEST = 8
"""Characters of a single word from which on it may be a secret."""


def show(tx: Tx, question: Question, place: Place, talk: Talk | None = None) -> Card | None:
    """Show a question in a place; None when it is shown already."""
    if tx.one(cards_sql.CARD, question_id=question.id) is not None:
        return None
    thread = talk.thread or None if talk is not None else None
    (message,) = queue.queue(
        tx,
        place,
        _whole(tx, question, place, thread),
        kind=Kind.QUESTION,
        thread=thread,
        agent_id=talk.agent_id if talk else None,
        data={"question": question.id, "options": question.options},
        key=f"card:{question.id}",
    )
    if asks_for_secret(question):
        tx.run(sql.GUARD_PLACE, id=place.id, guarded=1)
    return tx.one(
        cards_sql.ADD_CARD,
        secret=int(asks_for_secret(question)),
        question_id=question.id,
        place_id=place.id,
        session_id=talk.session_id if talk else None,
        message=number_of("msg", message.id),
        now=tx.now,
    )


def asks_for_secret(question: Question) -> bool:
    """Whether it is Corral's own question for a secret, which nobody answers in words."""
    return question.asker == HOST and (question.key or "").endswith(":secret")


def request_of(question: Question) -> str | None:
    """The request that Corral's own question is about; None: it is about none."""
    kind, _, rest = (question.key or "").partition(":")
    return rest.partition(":")[0] if question.asker == HOST and kind == "request" else None


def is_secret(tx: Tx, place: Place, incoming: Incoming) -> bool:
    """Whether something that is said where a secret is asked for may be that secret: it answers the
    card, or is a single word, or a file in a direct chat."""
    text = incoming.text.strip()
    asked = [card for card in _open_cards(tx, place) if card.secret]
    has_files = bool(incoming.attached or incoming.files)
    if not asked or (text.lower() in ("", "no") and not has_files):
        return False
    shown = {id for card in asked for id in queue.get(tx, card.message_id).platform_ids}
    if incoming.reply_to in shown or incoming.question in {card.question_id for card in asked}:
        return True
    if has_files:
        return place.direct
    return len(text) >= _SHORTEST and not any(c.isspace() for c in text)


def _unguard(tx: Tx, place_id: str) -> None:
    """Nothing secret is asked for in the place any more, if that was the last such card."""
    place = sql.PLACES.get(tx, place_id)
    if not any(card.secret for card in _open_cards(tx, place)):
        tx.run(sql.GUARD_PLACE, id=place_id, guarded=0)


def words_of(question: Question) -> str:
    """All that somebody must know who answers: what is asked, what is done on it, and how many must
    agree. Nothing in it can hide: what cannot be seen is spelled out."""
    parts = [question.text]
    if question.effect:
        parts.append(f"This is what will be done, and nothing else:\n{question.effect}")
    if question.needed > 1:
        parts.append(f"{question.needed} must give the same answer.")
    return "\n\n".join(printable(part, kept="\n") for part in parts)


def _whole(tx: Tx, question: Question, place: Place, thread: str | None) -> str:
    """The words of a card. What is too long for one is said before it, whole, and never cut."""
    words = words_of(question)
    room = traits_of(sql.CHANNELS.get(tx, place.channel_id).kind).max_text
    room -= len(card_text("", question.options))
    if len(words) <= room:
        return words
    queue.queue(tx, place, words, thread=thread, key=f"card:{question.id}:whole")
    return abridged(f"To what is said above ({question.id}): {words}", max(room, 40))


def show_open(tx: Tx) -> list[Card]:
    """Show the questions that agents ask in sessions with places where these are answered."""
    shown = []
    for question in reversed(questions.list_questions(tx, limit=MOST).items):  # as they were asked
        talk = _talk_of(tx, question)
        address = queue.address_of(tx, talk) if talk is not None else None
        if talk is None or address is None:
            continue
        card = show(tx, question, address[0], talk)
        if card is not None:
            shown.append(card)
    return shown


def unshown(tx: Tx) -> bool:
    """Whether there are questions that `show_open` would show."""
    return any(
        question.run_id is not None
        and tx.one(cards_sql.CARD, question_id=question.id) is None
        and _talk_of(tx, question) is not None
        for question in questions.list_questions(tx, limit=MOST).items
    )


def _talk_of(tx: Tx, question: Question) -> Talk | None:
    """The session with a place in whose run a question was asked."""
    if question.run_id is None:
        return None
    try:
        session = runs.get(tx, question.run_id).session_id
    except NotFound:
        return None
    return tx.one(sql.TALK, session_id=session) if session else None


def ended(tx: Tx) -> list[Card]:
    """Cards that do not yet say how their question ended."""
    cards = tx.all(cards_sql.ENDED_CARDS, limit=MOST)
    return [card for card in cards if not _waits(tx, card, questions.find(tx, card.question_id))]


def _waits(tx: Tx, card: Card, question: Question | None) -> bool:
    """Whether the run that asked goes on: then it may still hear the answer by itself."""
    if question is None or card.session_id is None or question.asker == HOST:
        return False
    talk = tx.one(sql.TALK, session_id=card.session_id)
    return talk is not None and talk.run_id is not None and talk.run_id == question.run_id


def settle_ended(tx: Tx) -> int:
    """Let cards whose question is over say how it ended. An answer that the asking run did not live
    to hear is told in its session; gives how many were settled."""
    settled = 0
    for card in ended(tx):
        if tx.one(cards_sql.SETTLE_CARD, question_id=card.question_id) is None:
            continue
        settled += 1
        if card.secret:
            _unguard(tx, card.place_id)
        question = questions.find(tx, card.question_id)
        if question is None:
            continue  # forgotten since; nobody waits for it any more
        _rewrite(tx, card, question)
        talk = tx.one(sql.TALK, session_id=card.session_id) if card.session_id else None
        if talk is not None and question.asker != HOST:
            _hand_over(tx, talk, question)
    return settled


def _rewrite(tx: Tx, card: Card, question: Question) -> None:
    place = sql.PLACES.get(tx, card.place_id)
    shown = queue.get(tx, card.message_id)
    ending = _ending(question)
    room = traits_of(sql.CHANNELS.get(tx, place.channel_id).kind).max_text - len(ending) - 1
    text = f"{abridged(shown.text, max(room, 40))}\n{ending}"
    if shown.platform_ids:
        queue.queue(
            tx,
            place,
            text,
            kind=Kind.EDIT,
            thread=shown.thread,
            reply_to=shown.platform_ids[0],
            agent_id=shown.agent_id,
            key=f"card:{question.id}:ended",
        )


def _ending(question: Question) -> str:
    if question.state is QuestionState.ANSWERED:
        who = (question.answered_by or "").replace("user:", "")
        return f"{who} answered: {question.answer}"
    if question.state is QuestionState.EXPIRED:
        counts = f"; {question.fallback} counts" if question.fallback else ""
        return f"{'They did not agree' if question.votes else 'Nobody answered in time'}{counts}."
    return "It is not asked any more."


def _hand_over(tx: Tx, talk: Talk, question: Question) -> None:
    """The run that asked is over. Unless it has heard the answer, its session gets it."""
    if not mail.close_unread(tx, question.asker, [f"{question.id}:ended"]):
        return
    body: dict[str, Any] = {
        "kind": "question",
        "question": question.id,
        "state": question.state,
        "text": question.text,
        "answer": question.answer,
        "answered_by": question.answered_by,
    }
    cause = questions.chain_of(tx, question)
    mail.put_after(tx, cause, talk.mailbox, body, key=f"{question.id}:ended")


def answer(tx: Tx, question: str, said: str, by: str) -> tuple[bool, str]:
    """Answer a question as somebody on a channel; whether it counts, and why not in a sentence."""
    try:
        ended = questions.answer(tx, question, said, by=by)
    except CorralError as error:
        return False, error.message
    if ended.state is QuestionState.ANSWERED:
        return True, f"{ended.answered_by} answered {ended.id}: {ended.answer}"
    return True, f"{by} answered {ended.id}; {ended.needed} must agree"


def meant_in(tx: Tx, place: Place, text: str) -> Question | None:
    """The open question of a place that a plain text answers: by a number, or an option's words."""
    asked = [questions.find(tx, card.question_id) for card in _open_cards(tx, place)]
    fitting = [each for each in asked if each is not None and _fits(tx, each, text.strip())]
    return fitting[0] if len(fitting) == 1 else None


def _open_cards(tx: Tx, place: Place) -> list[Card]:
    return tx.all(cards_sql.CARDS_OF_PLACE, place_id=place.id, limit=20)


def _fits(tx: Tx, question: Question, text: str) -> bool:
    if question.state is not QuestionState.OPEN or question.deadline_at <= tx.now:
        return False
    if text.lower() in {option.lower() for option in question.options}:
        return True
    return text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= len(question.options)


def option_of(question: Question, text: str) -> str:
    """An option in the words in which it was asked."""
    return next(
        (option for option in question.options if option.lower() == text.strip().lower()), text
    )
