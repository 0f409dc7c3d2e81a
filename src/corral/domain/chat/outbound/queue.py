"""The queue of outbound messages.

An outbound message is a row and a letter in the mailbox of its place. The letter keeps the order,
the attempts and the lease; the row records the final state. `delivery` sends the letters.
"""

from typing import Any, NamedTuple

from corral.adapters.channels.contract import MessageKind
from corral.adapters.channels.message_text import split_for_channel
from corral.adapters.channels.registry import get_traits
from corral.db.transitions import create_if_absent
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat import sql
from corral.domain.chat.channels import places
from corral.domain.chat.model import (
    Message,
    Place,
)
from corral.domain.chat.outbound import targets
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.mail.payloads import OutboundMessage
from corral.kernel.ids import parse_number
from corral.kernel.validation import MAX_BODY, check_text, encode_json


class MessageDraft(NamedTuple):
    """An outbound message before it is queued."""

    text: str
    kind: MessageKind = MessageKind.TEXT
    agent_id: str | None = None
    """None: the message is Corral's own."""
    thread: str | None = None
    reply_to: str | None = None
    """The platform's id of the message that it answers, edits or reacts to."""
    data: dict[str, Any] | None = None
    run_id: str | None = None
    sender: str | None = None
    """The mailbox that is notified if the message is not delivered."""
    key: str | None = None
    """The idempotency key."""


def send(
    tx: Tx,
    text: str,
    *,
    agent: str,
    to: str | None = None,
    thread: str | None = None,
    session: str | None = None,
    run: str | None = None,
    reply_to: str | None = None,
    edit: str | None = None,
    react: str | None = None,
    key: str | None = None,
) -> list[Message]:
    """Queue a message of an agent: to a destination, or to the reply address of its session.

    Raises Refused unless the agent has the destination; that is checked again at delivery. `thread`
    defaults to the thread of the reply address. `edit` and `react` name an earlier message (msg_…)
    whose text is replaced, or which gets `text` as a reaction. A long text becomes several
    messages. Idempotent by `key`.
    """
    sender = agents.get(tx, agent)
    for value, what in ((to, "destination"), (session, "session"), (run, "run")):
        targets.check_short_text(value, f"The {what}")
    address = targets.resolve_target(tx, sender.id, to, session)
    place = address.place
    thread = targets.check_thread(tx, place, thread) or address.thread
    kind, target = targets.resolve_reference(tx, place, edit, react, reply_to)
    draft = MessageDraft(
        check_text(text, "The text", max_bytes=MAX_BODY),
        kind=kind,
        agent_id=sender.id,
        thread=thread,
        reply_to=target,
        run_id=run,
        sender=f"session:{session}" if session else f"agent:{sender.name}",
        key=f"{sender.id}:{targets.check_short_text(key, 'The key')}" if key else None,
    )
    return enqueue(tx, place, draft)


def send_as_system(
    tx: Tx, place: str, text: str, *, thread: str | None = None, key: str | None = None
) -> list[Message]:
    """Queue a message in Corral's own name, for people and programs. Idempotent by `key`."""
    target = places.get_place(tx, place)
    own_key = f"{tx.actor}:{targets.check_short_text(key, 'The key')}" if key else None
    draft = MessageDraft(
        check_text(text, "The text", max_bytes=MAX_BODY),
        thread=targets.check_short_text(thread, "The thread"),
        key=own_key,
    )
    return enqueue(tx, target, draft)


def enqueue(tx: Tx, place: Place, draft: MessageDraft) -> list[Message]:
    """Queue a message, split into pieces that the platform accepts; each piece has a letter.

    Idempotent by the draft's key.
    """
    channel = sql.CHANNELS.get(tx, place.channel_id)
    tx.serialize(f"outbound:{place.id}")  # message numbers follow the order of delivery
    messages = []
    traits = get_traits(channel.kind)
    pieces = split_for_channel(draft.text, traits, draft.kind)
    if pieces != [draft.text]:  # redaction cannot recognize a secret that was split
        text = tx.redact_before_split(draft.text, "messages", "text")
        pieces = split_for_channel(text, traits, draft.kind)
    for number, piece in enumerate(pieces):
        row = build_row(tx, place, piece, draft.kind, _build_piece_key(tx, draft.key, number))
        row |= {
            "agent_id": draft.agent_id,
            "run_id": draft.run_id,
            "thread": draft.thread,
            "reply_to": draft.reply_to,
            "data": encode_json(draft.data, "The data") if draft.data else None,
        }
        messages.append(_enqueue_piece(tx, place, row, draft.sender))
    return messages


def _build_piece_key(tx: Tx, key: str | None, number: int) -> str:
    if key is None:
        return tx.new_id("key")
    return f"{key}:{number}" if number else key


def _enqueue_piece(tx: Tx, place: Place, row: dict[str, Any], sender: str | None) -> Message:
    event_id = row["event_id"]
    message = create_if_absent(
        tx,
        sql.MESSAGES,
        row,
        on_conflict="(channel_id, event_id)",
        verb="queue",
        event_data={"out": place.id},
    )
    if message is None:
        return tx.one(sql.MESSAGE_BY_EVENT, channel_id=place.channel_id, event_id=event_id)
    body = OutboundMessage(message=message.id)
    letter = mail.put_last(tx, place.mailbox, body, key=message.id, sender=sender)
    return set_letter(tx, message, letter)


def set_letter(tx: Tx, message: Message, letter: Letter) -> Message:
    """Record the letter that carries a message."""
    return tx.one(
        sql.SET_LETTER,
        seq=parse_number("msg", message.id),
        letter_id=parse_number("let", letter.id),
    )


def build_row(tx: Tx, place: Place, text: str, kind: MessageKind, key: str) -> dict[str, Any]:
    """Return the columns of an outbound message; the key is its idempotency key on the channel."""
    return {
        "channel_id": place.channel_id,
        "place_id": place.id,
        "direction": "out",
        "kind": kind,
        "event_id": _build_event_id(key),
        "platform_ids": "[]",
        "text": text,
        "routes": "[]",
        "at": tx.now,
        "created_at": tx.now,
    }


def _build_event_id(key: str) -> str:
    """Return the event id of an outbound message; inbound ones begin with `in:`."""
    return f"out:{key}"


# -- lookups --------------------------------------------------------------------------------------


def get_message(tx: Tx, message: str) -> Message:
    """Return a message by its id, without the letters of its routes."""
    return sql.MESSAGES.get(tx, parse_number("msg", message))


def find_sent(tx: Tx, place: Place, agent_id: str, key: str) -> Message | None:
    """Return the message that an agent queued for a place under its own key, or None."""
    return find_by_key(tx, place, f"{agent_id}:{key}")


def find_by_key(tx: Tx, place: Place, key: str) -> Message | None:
    """Return the message that was queued under this key on the channel of a place, or None."""
    return tx.first(
        sql.MESSAGE_BY_EVENT, channel_id=place.channel_id, event_id=_build_event_id(key)
    )
