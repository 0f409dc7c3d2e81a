"""Outbound messages whose recorded state may be wrong.

A crash while a message is sent leaves its letter unconfirmed, until `resolve` or
`give_up_unconfirmed`. A letter that ends without its message, for example because it was dropped,
leaves the message stale, until `sync_with_letter`.
"""

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.model import (
    MessageState,
    Place,
)
from corral.domain.chat.outbound import delivery, queue
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.ids import parse_number
from corral.kernel.pagination import LAST_NUMBER

MAX_RECENT = 200


def list_unconfirmed(tx: Tx, place: Place, *, limit: int) -> list[Letter]:
    """Return the letters of a place whose sending began and has no recorded result."""
    return [
        letter
        for message in tx.all(sql.QUEUED_OF_PLACE, place_id=place.id, limit=limit)
        if message.letter_id is not None
        and (letter := mail.find_by_number(tx, parse_number("let", message.letter_id))) is not None
        and letter.state is LetterState.UNCONFIRMED
    ]


def load_unconfirmed(tx: Tx, letter: Letter) -> delivery.OutboundLetter:
    """Return what an unconfirmed letter sends."""
    message, place = delivery.load_message(tx, letter)
    return delivery.OutboundLetter(letter, message, place, sql.CHANNELS.get(tx, place.channel_id))


def resolve(tx: Tx, letter: str, message: str, ids: list[str] | None, reason: str) -> Letter:
    """Resolve an unconfirmed message: delivered with these ids, or None to send it again."""
    resolved = mail.resolve(tx, letter, delivered=ids is not None, reason=reason)
    if ids is not None:
        delivery.close_message(tx, message, "deliver", None, ids)
    return resolved


def give_up_unconfirmed(tx: Tx, letter: Letter, message: str, reason: str) -> Letter:
    """Give up a message whose delivery cannot be confirmed; its sender is notified."""
    dead = mail.mark_dead(tx, letter, reason)
    delivery.mark_undelivered(tx, dead, message, reason)
    return dead


def list_sent_ids(tx: Tx, place: Place) -> set[str]:
    """Return the platform ids of the messages that were recently sent to a place."""
    recent = tx.all(
        sql.MESSAGES_OF_PLACE.query, place_id=place.id, before=LAST_NUMBER, limit=MAX_RECENT
    )
    return {id for message in recent if message.direction == "out" for id in message.platform_ids}


# -- messages whose letter ended elsewhere --------------------------------------------------------


def list_stale(tx: Tx, *, after: str = "msg_0", limit: int = 200) -> tuple[list[str], str | None]:
    """Scan queued messages for those whose letter has ended, for example by dropping it.

    Returns their ids and the message to continue after, None at the end.
    """
    page = tx.all(sql.QUEUED_MESSAGES, after=parse_number("msg", after), limit=limit)
    stale = [
        message.id
        for message in page
        if message.letter_id is not None
        and (letter := mail.find_by_number(tx, parse_number("let", message.letter_id))) is not None
        and letter.ended_at is not None
    ]
    return stale, page[-1].id if len(page) == limit else None


def sync_with_letter(tx: Tx, message: str) -> None:
    """Give a stale message the final state of its letter. Idempotent."""
    stored = queue.get_message(tx, message)
    letter = mail.get(tx, str(stored.letter_id))
    if stored.state is not MessageState.QUEUED or letter.ended_at is None:
        return
    if letter.state is LetterState.DONE:
        delivery.close_message(tx, stored.id, "deliver", None, stored.platform_ids)
    else:
        reason = letter.last_error or f"its letter was {letter.state}"
        delivery.mark_undelivered(tx, letter, stored.id, reason)
