"""The delivery of outbound messages.

The delivery loop claims a letter of a place, calls `prepare_delivery`, sends the message, and
records the result with `mark_delivered`, `mark_failed` or `reject`.
"""

import msgspec

from corral.adapters.channels.contract import MessageKind
from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.alerts import ops as alerts
from corral.domain.chat import sql
from corral.domain.chat.channels import destinations
from corral.domain.chat.model import (
    Channel,
    ChannelState,
    Message,
    MessageState,
    Place,
    PlaceState,
)
from corral.domain.chat.outbound import queue
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterState
from corral.domain.mail.payloads import OutboundMessage, UndeliveredNotice, parse_payload
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.ids import parse_number
from corral.kernel.validation import MAX_BODY, MAX_NAME, encode_json


class OutboundLetter(msgspec.Struct, frozen=True):
    """A claimed letter of a place, with the message to send."""

    letter: Letter
    message: Message
    place: Place
    channel: Channel


def prepare_delivery(tx: Tx, letter: Letter) -> OutboundLetter | None:
    """Return what a claimed letter sends; None when it is rejected and its sender notified.

    The permission is checked against the store at this time, not when the message was queued.
    """
    message, place = load_message(tx, letter)
    channel = sql.CHANNELS.get(tx, place.channel_id)
    agent_id = message.agent_id
    reason = None
    if channel.state is not ChannelState.ACTIVE:
        reason = f"the channel {channel.name} was removed"
    elif place.state is not PlaceState.OPEN:
        reason = f"{place.display_name} is blocked"
    elif agent_id is not None and destinations.find_granted(tx, agent_id, place.id) is None:
        name = agents.get(tx, agent_id).name
        reason = f"{name} has no destination for {place.display_name} ({place.id})"
    if reason is None:
        return OutboundLetter(letter, message, place, channel)
    reject(tx, letter, message, reason)
    return None


def mark_delivered(
    tx: Tx, letter: Letter | str, message: str, ids: list[str], *, fence: int | None = None
) -> Message:
    """Acknowledge the letter and record the platform's ids of the message."""
    mail.ack(tx, letter, fence=fence)
    return close_message(tx, message, "deliver", None, ids)


def mark_failed(
    tx: Tx, letter: Letter, message: str, error: str, *, pause_ms: int | None = None
) -> Letter:
    """Record a failed attempt: retry after a back-off, or give up after the last attempt."""
    failed = mail.fail(tx, letter, error, pause_ms=pause_ms)
    if failed.state is LetterState.DEAD:
        mark_undelivered(tx, failed, message, error)
    return failed


def reject(tx: Tx, letter: Letter, message: Message, reason: str) -> Letter:
    """Give up a message that a rule or the platform rejects; its sender is notified."""
    refused = mail.refuse(tx, letter, reason)
    mark_undelivered(tx, refused, message.id, reason)
    return refused


def mark_undelivered(tx: Tx, letter: Letter, message: str, reason: str) -> None:
    """Record that a message will never be delivered, and alert the operator once."""
    stored = sql.MESSAGES.get(tx, parse_number("msg", message))
    if stored.state is MessageState.QUEUED:
        stored = close_message(tx, message, "give_up", reason, stored.platform_ids)
    alerts.raise_alert(
        tx,
        "undelivered",
        stored.id,
        edge=f"{letter.id}:{letter.fence}",
        agent_id=stored.agent_id,
        data={
            "place": stored.place_id,
            "state": letter.state,
            "reason": tx.shorten_for_storage(reason, MAX_NAME),
        },
    )


def close_message(tx: Tx, message: str, verb: str, reason: str | None, ids: list[str]) -> Message:
    """Move a message to its final state, with the platform's ids of what was sent."""
    return transition(
        tx,
        sql.MESSAGES,
        verb,
        parse_number("msg", message),
        event_data={"reason": reason} if reason else None,
        reason=reason,
        platform_ids=encode_json(ids, "The ids"),
        ended_at=tx.now,
    )


# -- the message of a letter ----------------------------------------------------------------------


def load_message(tx: Tx, letter: Letter) -> tuple[Message, Place]:
    """Return the message of a letter and its place.

    A letter that was put into the mailbox by hand, or that reports a failed delivery, has no
    message yet; one is created.
    """
    payload = parse_payload(letter)
    place = sql.PLACES.get(tx, letter.mailbox.removeprefix("place:"))
    if isinstance(payload, OutboundMessage):
        stored = tx.first(sql.MESSAGES.by_key, key_=_parse_message_number(payload.message))
        if stored is not None and stored.letter_id == letter.id:
            return stored, place
    text, thread = _render_body(tx, letter)
    message = queue.find_by_key(tx, place, letter.id)
    if message is None:
        row = queue.build_row(tx, place, text[: MAX_BODY // 4], MessageKind.TEXT, letter.id)
        row |= {"thread": thread, "agent_id": _find_agent_id(tx, letter.sender)}
        message = create(tx, sql.MESSAGES, row, verb="queue", event_data={"out": place.id})
    if message.letter_id != letter.id:
        message = queue.set_letter(tx, message, letter)
    return message, place


def _render_body(tx: Tx, letter: Letter) -> tuple[str, str | None]:
    """Return the text of a letter that is not a message, and the thread that it belongs to."""
    body, payload = letter.body, parse_payload(letter)
    if isinstance(body, str):
        return body, None
    if isinstance(payload, UndeliveredNotice):
        original = tx.first(sql.MESSAGES.by_key, key_=_parse_message_number(payload.key))
        excerpt = f" ({original.text[:60]!r})" if original else ""
        is_prompt = (payload.key or "").startswith("sch_")
        subject = "A scheduled prompt" if is_prompt else f"Your message{excerpt}"
        text = f"{subject} could not be answered: {payload.reason}"
        return text, original.thread if original else None
    if isinstance(body, dict) and isinstance(body.get("text"), str):
        return body["text"], None
    return encode_json(body, "The body"), None


def _parse_message_number(id: str | None) -> int:
    try:
        return parse_number("msg", id) if id is not None else 0
    except (Invalid, NotFound):
        return 0


def _find_agent_id(tx: Tx, sender: str | None) -> str | None:
    """Return the agent that put a letter into a place's mailbox; None when it was no agent."""
    kind, _, name = (sender or "").partition(":")
    if kind == "agent":
        return agents.get(tx, name).id
    if kind == "session":
        conversation = tx.first(sql.CONVERSATION, session_id=name)
        return conversation.agent_id if conversation is not None else None
    return None
