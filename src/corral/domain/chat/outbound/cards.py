"""Cards: questions that are shown in a place and answered there by a button or by text."""

from corral.adapters.channels.contract import IncomingEvent, MessageKind
from corral.adapters.channels.message_text import format_card
from corral.adapters.channels.registry import get_traits
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.model import CHAT_MAILBOX, Conversation, Place, QuestionCard
from corral.domain.chat.outbound import queue, targets
from corral.domain.chat.outbound.queue import MessageDraft
from corral.domain.mail import ops as mail
from corral.domain.mail.payloads import QuestionPayload
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question, QuestionState
from corral.domain.runs import ops as runs
from corral.kernel.display_text import escape_unprintable, shorten
from corral.kernel.errors import CorralError, NotFound
from corral.kernel.ids import parse_number

MAX_CARDS = 100
MAX_OPEN_OF_PLACE = 20
MIN_TEXT = 40
"""Characters of a shortened card that remain at least."""
REDACTED = "[not kept: it may be a secret]"
NOT_KEPT_REPLY = (
    "A secret is being asked for here and your message may contain it, so it was not stored. "
    "Delete it in the chat, enter the secret where the card says, and replace the one you typed: "
    "others may have seen it. If it was not a secret, send it again as several words."
)
_MIN_SECRET = 8
"""Characters from which on a single word may be a secret."""


# -- showing --------------------------------------------------------------------------------------


def show_card(
    tx: Tx, question: Question, place: Place, conversation: Conversation | None = None
) -> QuestionCard | None:
    """Show a question in a place; None when it is shown already."""
    if tx.first(sql.CARD, question_id=question.id) is not None:
        return None
    thread = conversation.thread or None if conversation is not None else None
    draft = MessageDraft(
        _fit_card(tx, question, place, thread),
        kind=MessageKind.QUESTION,
        thread=thread,
        agent_id=conversation.agent_id if conversation else None,
        data={"question": question.id, "options": question.options},
        key=f"card:{question.id}",
    )
    (message,) = queue.enqueue(tx, place, draft)
    if asks_for_secret(question):
        tx.run(sql.SET_AWAITS_SECRET, id=place.id, awaits_secret=1)
    return tx.first(
        sql.ADD_CARD,
        secret=int(asks_for_secret(question)),
        question_id=question.id,
        place_id=place.id,
        session_id=conversation.session_id if conversation else None,
        message_id=parse_number("msg", message.id),
        now=tx.now,
    )


def render_question(question: Question) -> str:
    """Render what a person must know to answer: the text, the effect and the required votes.

    Invisible characters are escaped, so that nothing in the text can hide.
    """
    parts = [question.text]
    if question.effect:
        parts.append(f"Complete effect:\n{question.effect}")
    if question.required_votes > 1:
        parts.append(f"{question.required_votes} people must give the same answer.")
    return "\n\n".join(escape_unprintable(part, keep="\n") for part in parts)


def _fit_card(tx: Tx, question: Question, place: Place, thread: str | None) -> str:
    """Return the text of a card. A text that is too long is first sent complete as messages."""
    text = render_question(question)
    room = get_traits(sql.CHANNELS.get(tx, place.channel_id).kind).max_text
    room -= len(format_card("", question.options))
    if len(text) <= room:
        return text
    queue.enqueue(tx, place, MessageDraft(text, thread=thread, key=f"card:{question.id}:whole"))
    return shorten(f"Answer the question above ({question.id}): {text}", max(room, MIN_TEXT))


def show_open(tx: Tx) -> list[QuestionCard]:
    """Show the open questions of agents at the reply addresses of their sessions. Idempotent."""
    shown = []
    for question in reversed(questions.list_questions(tx, limit=MAX_CARDS).items):  # oldest first
        conversation = _find_conversation(tx, question)
        address = targets.find_reply_address(tx, conversation) if conversation is not None else None
        if conversation is None or address is None:
            continue
        card = show_card(tx, question, address.place, conversation)
        if card is not None:
            shown.append(card)
    return shown


def has_unshown(tx: Tx) -> bool:
    """Whether `show_open` has a question to show."""
    return any(
        question.run_id is not None
        and tx.first(sql.CARD, question_id=question.id) is None
        and _find_conversation(tx, question) is not None
        for question in questions.list_questions(tx, limit=MAX_CARDS).items
    )


def _find_conversation(tx: Tx, question: Question) -> Conversation | None:
    """Return the conversation whose run asked a question."""
    if question.run_id is None:
        return None
    try:
        session = runs.get(tx, question.run_id).session_id
    except NotFound:
        return None
    return tx.first(sql.CONVERSATION, session_id=session) if session else None


# -- secrets --------------------------------------------------------------------------------------


def asks_for_secret(question: Question) -> bool:
    """Whether it is Corral's own question for a secret, which must not be answered in the chat."""
    return question.asker == CHAT_MAILBOX and (question.key or "").endswith(":secret")


def find_request_id(question: Question) -> str | None:
    """Return the id of the host request that Corral's own question is about, or None."""
    kind, _, rest = (question.key or "").partition(":")
    is_request = question.asker == CHAT_MAILBOX and kind == "request"
    return rest.partition(":")[0] if is_request else None


def can_be_secret(tx: Tx, place: Place, incoming: IncomingEvent) -> bool:
    """Whether an event may contain a secret that is asked for in its place.

    That is an answer to the card, a single long word, or a file in a direct chat.
    """
    text = incoming.text.strip()
    secret_cards = [card for card in _list_open(tx, place) if card.secret]
    has_files = bool(incoming.attached or incoming.files)
    if not secret_cards or (text.lower() in ("", "no") and not has_files):
        return False
    shown = {
        id for card in secret_cards for id in queue.get_message(tx, card.message_id).platform_ids
    }
    question_ids = {card.question_id for card in secret_cards}
    if incoming.reply_to in shown or incoming.question in question_ids:
        return True
    if has_files:
        return place.direct
    return len(text) >= _MIN_SECRET and not any(c.isspace() for c in text)


def _stop_guarding(tx: Tx, place_id: str) -> None:
    """Stop guarding a place after its last question for a secret has ended."""
    place = sql.PLACES.get(tx, place_id)
    if not any(card.secret for card in _list_open(tx, place)):
        tx.run(sql.SET_AWAITS_SECRET, id=place_id, awaits_secret=0)


# -- answering ------------------------------------------------------------------------------------


def answer_question(tx: Tx, question: str, text: str, by: str) -> tuple[bool, str]:
    """Answer a question for a person on a channel; return whether it counts, and the message."""
    try:
        ended = questions.answer(tx, question, text, by=by)
    except CorralError as error:
        return False, error.message
    if ended.state is QuestionState.ANSWERED:
        return True, f"{ended.answered_by} answered {ended.id}: {ended.answer}"
    return True, f"{by} answered {ended.id}; {ended.required_votes} must agree"


def find_answered(tx: Tx, place: Place, text: str) -> Question | None:
    """Return the open question of a place that a text answers, by option number or option text.

    None when no question matches, or several do.
    """
    shown = [questions.find(tx, card.question_id) for card in _list_open(tx, place)]
    matching = [
        question
        for question in shown
        if question is not None and _is_answered_by(tx, question, text.strip())
    ]
    return matching[0] if len(matching) == 1 else None


def _list_open(tx: Tx, place: Place) -> list[QuestionCard]:
    return tx.all(sql.OPEN_CARDS_OF_PLACE, place_id=place.id, limit=MAX_OPEN_OF_PLACE)


def _is_answered_by(tx: Tx, question: Question, text: str) -> bool:
    if question.state is not QuestionState.OPEN or question.deadline_at <= tx.now:
        return False
    if text.lower() in {option.lower() for option in question.options}:
        return True
    return text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= len(question.options)


def match_option(question: Question, text: str) -> str:
    """Return the option that a text names, ignoring case; else the text itself."""
    return next(
        (option for option in question.options if option.lower() == text.strip().lower()), text
    )


# -- closing --------------------------------------------------------------------------------------


def list_ended(tx: Tx) -> list[QuestionCard]:
    """Return the cards that must still show how their question ended."""
    cards = tx.all(sql.ENDED_CARDS, limit=MAX_CARDS)
    return [
        card for card in cards if not _is_awaited(tx, card, questions.find(tx, card.question_id))
    ]


def _is_awaited(tx: Tx, card: QuestionCard, question: Question | None) -> bool:
    """Whether the asking run still goes on and may read the answer itself."""
    if question is None or card.session_id is None or question.asker == CHAT_MAILBOX:
        return False
    conversation = tx.first(sql.CONVERSATION, session_id=card.session_id)
    run_id = conversation.run_id if conversation is not None else None
    return run_id is not None and run_id == question.run_id


def close_ended(tx: Tx) -> int:
    """Update the cards whose question has ended; return how many were closed.

    If the asking run ended before it read the answer, its session gets the answer as a letter.
    """
    closed = 0
    for card in list_ended(tx):
        if tx.first(sql.CLOSE_CARD, question_id=card.question_id) is None:
            continue
        closed += 1
        if card.secret:
            _stop_guarding(tx, card.place_id)
        question = questions.find(tx, card.question_id)
        if question is None:
            continue  # deleted by retention
        _edit_card(tx, card, question)
        conversation = (
            tx.first(sql.CONVERSATION, session_id=card.session_id) if card.session_id else None
        )
        if conversation is not None and question.asker != CHAT_MAILBOX:
            _put_answer(tx, conversation, question)
    return closed


def _edit_card(tx: Tx, card: QuestionCard, question: Question) -> None:
    """Queue an edit of the card that adds the outcome."""
    place = sql.PLACES.get(tx, card.place_id)
    message = queue.get_message(tx, card.message_id)
    outcome = _describe_outcome(question)
    room = get_traits(sql.CHANNELS.get(tx, place.channel_id).kind).max_text - len(outcome) - 1
    text = f"{shorten(message.text, max(room, MIN_TEXT))}\n{outcome}"
    if message.platform_ids:
        draft = MessageDraft(
            text,
            kind=MessageKind.EDIT,
            thread=message.thread,
            reply_to=message.platform_ids[0],
            agent_id=message.agent_id,
            key=f"card:{question.id}:ended",
        )
        queue.enqueue(tx, place, draft)


def _describe_outcome(question: Question) -> str:
    if question.state is QuestionState.ANSWERED:
        who = (question.answered_by or "").replace("user:", "")
        return f"{who} answered: {question.answer}"
    if question.state is QuestionState.EXPIRED:
        fallback = f" The fallback applies: {question.fallback}." if question.fallback else ""
        return f"{'No agreement.' if question.votes else 'Not answered in time.'}{fallback}"
    return "The question was withdrawn."


def _put_answer(tx: Tx, conversation: Conversation, question: Question) -> None:
    """Put the answer into the session's mailbox, unless the asking run has read it."""
    if not mail.ack_unclaimed(tx, question.asker, [f"{question.id}:ended"]):
        return
    body = QuestionPayload(
        question=question.id,
        state=question.state,
        text=question.text,
        answer=question.answer,
        answered_by=question.answered_by,
    )
    cause = questions.find_outcome_chain(tx, question)
    mail.put_caused_by(tx, cause, conversation.mailbox, body, key=f"{question.id}:ended")
