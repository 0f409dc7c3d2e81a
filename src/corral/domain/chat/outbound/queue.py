"""The queue of outbound messages.

An outbound message is a row and a letter in the mailbox of its place. The letter keeps the order,
the attempts and the lease; the row records the final state. The delivery loop claims the letter,
calls `prepare_dispatch`, sends the message, and reports the result by `mark_delivered`,
`mark_failed` or `reject`. When a crash leaves the result unknown, the message is unconfirmed until
`resolve` or `give_up_unconfirmed`.
"""

from typing import Any

import msgspec

from corral.adapters.channels.contract import MessageKind, split_for_channel
from corral.adapters.channels.registry import get_traits
from corral.db.transitions import create, create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.alerts import ops as alerts
from corral.domain.chat import sql
from corral.domain.chat.channels import destinations, places
from corral.domain.chat.conversations.payloads import parse_request
from corral.domain.chat.model import (
    Channel,
    ChannelState,
    Conversation,
    Message,
    MessageState,
    Place,
    PlaceState,
)
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterState
from corral.domain.mail.payloads import OutboundMessage, UndeliveredNotice, parse_payload
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.ids import parse_number
from corral.kernel.pagination import LAST_NUMBER
from corral.kernel.text import MAX_BODY, MAX_NAME, check_text, encode_json

MAX_RECENT = 200


# -- sending --------------------------------------------------------------------------------------


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
        _clean_short(value, f"The {what}")
    address = resolve_target(tx, sender.id, to, session)
    place = address.place
    thread = check_thread(tx, place, thread) or address.thread
    kind, target = _resolve_reference(tx, place, edit, react, reply_to)
    return enqueue(
        tx,
        place,
        check_text(text, "The text", max_bytes=MAX_BODY),
        kind=kind,
        agent_id=sender.id,
        thread=thread,
        reply_to=target,
        run_id=run,
        sender=f"session:{session}" if session else f"agent:{sender.name}",
        key=f"{sender.id}:{_clean_short(key, 'The key')}" if key else None,
    )


def send_as_system(
    tx: Tx, place: str, text: str, *, thread: str | None = None, key: str | None = None
) -> list[Message]:
    """Queue a message in Corral's own name, for people and programs. Idempotent by `key`."""
    target = places.get_place(tx, place)
    own_key = f"{tx.actor}:{_clean_short(key, 'The key')}" if key else None
    body = check_text(text, "The text", max_bytes=MAX_BODY)
    return enqueue(tx, target, body, thread=_clean_short(thread, "The thread"), key=own_key)


def check_thread(tx: Tx, place: Place, thread: str | None) -> str | None:
    """Return the thread; raises Refused when the channel of the place has no threads."""
    channel = sql.CHANNELS.get(tx, place.channel_id)
    if thread and not get_traits(channel.kind).threads:
        raise Refused(
            f"{place.display_name} is on a channel of kind {channel.kind}, which has no threads."
        )
    return _clean_short(thread, "The thread")


def enqueue(
    tx: Tx,
    place: Place,
    text: str,
    *,
    kind: MessageKind = MessageKind.TEXT,
    agent_id: str | None = None,
    thread: str | None = None,
    reply_to: str | None = None,
    data: dict[str, Any] | None = None,
    run_id: str | None = None,
    sender: str | None = None,
    key: str | None = None,
) -> list[Message]:
    """Queue a message, split into pieces that the platform accepts; each piece has a letter.

    `sender` is the mailbox that is notified if the message is not delivered. Idempotent by `key`.
    """
    channel = sql.CHANNELS.get(tx, place.channel_id)
    tx.serialize(f"outbound:{place.id}")  # message numbers follow the order of delivery
    messages = []
    for number, piece in enumerate(split_for_channel(text, get_traits(channel.kind), kind)):
        piece_key = tx.new_id("key") if key is None else f"{key}:{number}" if number else key
        row = _build_row(tx, place, piece, kind, piece_key)
        row |= {
            "agent_id": agent_id,
            "run_id": run_id,
            "thread": thread,
            "reply_to": reply_to,
            "data": encode_json(data, "The data") if data else None,
        }
        messages.append(_enqueue_piece(tx, place, row, sender))
    return messages


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
    return _set_letter(tx, message, letter)


def _set_letter(tx: Tx, message: Message, letter: Letter) -> Message:
    return tx.one(
        sql.SET_LETTER,
        seq=parse_number("msg", message.id),
        letter_id=parse_number("let", letter.id),
    )


def _build_row(tx: Tx, place: Place, text: str, kind: MessageKind, key: str) -> dict[str, Any]:
    return {
        "channel_id": place.channel_id,
        "place_id": place.id,
        "direction": "out",
        "kind": kind,
        "event_id": _event_id(key),
        "platform_ids": "[]",
        "text": text,
        "routes": "[]",
        "at": tx.now,
        "created_at": tx.now,
    }


def _event_id(key: str) -> str:
    """Return the event id of an outbound message; inbound ones begin with `in:`."""
    return f"out:{key}"


def _clean_short(value: str | None, what: str) -> str | None:
    return check_text(value, what, max_bytes=2 * MAX_NAME) if value else None


# -- the target of a message ----------------------------------------------------------------------


class ReplyAddress(msgspec.Struct, frozen=True):
    """Where the answers of a session go."""

    place: Place
    thread: str | None


def find_reply_address(tx: Tx, conversation: Conversation) -> ReplyAddress | None:
    """Return the place and thread where a session's answers go.

    That is the origin of the newest message that it works on, else the place of the conversation.
    """
    for claimed in reversed(conversation.claimed_letters):
        letter = mail.find_by_number(tx, parse_number("let", claimed.id))
        request = parse_request(letter) if letter is not None else None
        if request is not None and request.place:
            return ReplyAddress(sql.PLACES.get(tx, request.place), request.thread)
    if conversation.place_id:
        place = sql.PLACES.get(tx, conversation.place_id)
        return ReplyAddress(place, conversation.thread or None)
    return None


def resolve_target(tx: Tx, agent_id: str, to: str | None, session: str | None) -> ReplyAddress:
    """Return the place and thread that an agent sends to: a destination, or its reply address.

    Raises Refused unless the agent has the destination.
    """
    conversation = tx.first(sql.CONVERSATION, session_id=session) if session else None
    address = None
    if conversation is not None and conversation.agent_id == agent_id:
        address = find_reply_address(tx, conversation)
    if to is not None:
        place = _get_destination_place(tx, agent_id, to)
        is_reply = address is not None and address.place.id == place.id
        address = address if is_reply else ReplyAddress(place, None)
    if address is None:
        raise Refused("This session has no reply address. Name a destination.")
    place = address.place
    if destinations.find_granted(tx, agent_id, place.id) is None:
        raise Refused(
            f"You may no longer send to {place.display_name}. Request the destination.",
            to=place.id,
        )
    return address


def _get_destination_place(tx: Tx, agent_id: str, to: str) -> Place:
    """Return the place of a destination that the agent has; raises Refused for any other name."""
    destination = destinations.find_granted(tx, agent_id, to)
    if destination is None:
        granted = destinations.list_destinations(tx, agent=agent_id, limit=20).items
        names = ", ".join(destination.name for destination in granted) or "none yet"
        raise Refused(
            f"You have no destination {to!r}. Your destinations: {names}.",
            to=to,
            reason="unknown_destination",
        )
    return sql.PLACES.get(tx, destination.place_id)


def _resolve_reference(
    tx: Tx, place: Place, edit: str | None, react: str | None, reply_to: str | None
) -> tuple[MessageKind, str | None]:
    """Return the kind of a message, and the platform's id of the message that it refers to."""
    references = [id for id in (edit, react, reply_to) if id]
    if len(references) > 1:
        raise Invalid("A message can edit, react to or answer one other message. Give only one.")
    if not references:
        return MessageKind.TEXT, None
    target = get_message(tx, references[0])
    if target.place_id != place.id or not target.platform_ids:
        raise Refused(
            f"{target.id} is not in {place.display_name}, or was not delivered yet.", id=target.id
        )
    kind = MessageKind.EDIT if edit else MessageKind.REACTION if react else MessageKind.TEXT
    return kind, target.platform_ids[0]


# -- lookups --------------------------------------------------------------------------------------


def get_message(tx: Tx, message: str) -> Message:
    """Return a message by its id, without the letters of its routes."""
    return sql.MESSAGES.get(tx, parse_number("msg", message))


def find_sent(tx: Tx, place: Place, agent_id: str, key: str) -> Message | None:
    """Return the message that an agent queued for a place under its own key, or None."""
    return _find_by_key(tx, place, f"{agent_id}:{key}")


def _find_by_key(tx: Tx, place: Place, key: str) -> Message | None:
    return tx.first(sql.MESSAGE_BY_EVENT, channel_id=place.channel_id, event_id=_event_id(key))


def list_sent_ids(tx: Tx, place: Place) -> set[str]:
    """Return the platform ids of the messages that were recently sent to a place."""
    recent = tx.all(
        sql.MESSAGES_OF_PLACE.query, place_id=place.id, before=LAST_NUMBER, limit=MAX_RECENT
    )
    return {id for message in recent if message.direction == "out" for id in message.platform_ids}


# -- delivery -------------------------------------------------------------------------------------


class Dispatch(msgspec.Struct, frozen=True):
    """A claimed letter of a place, with the message to send."""

    letter: Letter
    message: Message
    place: Place
    channel: Channel


def prepare_dispatch(tx: Tx, letter: Letter) -> Dispatch | None:
    """Return what a claimed letter sends; None when it is rejected and its sender notified.

    The permission is checked against the store at this time, not when the message was queued.
    """
    message, place = _load_message(tx, letter)
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
        return Dispatch(letter, message, place, channel)
    reject(tx, letter, message, reason)
    return None


def mark_delivered(
    tx: Tx, letter: Letter | str, message: str, ids: list[str], *, fence: int | None = None
) -> Message:
    """Acknowledge the letter and record the platform's ids of the message."""
    mail.ack(tx, letter, fence=fence)
    return _close(tx, message, "deliver", None, ids)


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
        stored = _close(tx, message, "give_up", reason, stored.platform_ids)
    alerts.raise_alert(
        tx,
        "undelivered",
        stored.id,
        edge=f"{letter.id}:{letter.fence}",
        agent_id=stored.agent_id,
        data={"place": stored.place_id, "state": letter.state, "reason": reason[:MAX_NAME]},
    )


def _close(tx: Tx, message: str, verb: str, reason: str | None, ids: list[str]) -> Message:
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


# -- unconfirmed deliveries -----------------------------------------------------------------------


def list_unconfirmed(tx: Tx, place: Place, *, limit: int) -> list[Letter]:
    """Return the letters of a place whose sending began and has no recorded result."""
    return [
        letter
        for message in tx.all(sql.QUEUED_OF_PLACE, place_id=place.id, limit=limit)
        if message.letter_id is not None
        and (letter := mail.find_by_number(tx, parse_number("let", message.letter_id))) is not None
        and letter.state is LetterState.UNCONFIRMED
    ]


def load_unconfirmed(tx: Tx, letter: Letter) -> Dispatch:
    """Return what an unconfirmed letter sends."""
    message, place = _load_message(tx, letter)
    return Dispatch(letter, message, place, sql.CHANNELS.get(tx, place.channel_id))


def resolve(tx: Tx, letter: str, message: str, ids: list[str] | None, reason: str) -> Letter:
    """Resolve an unconfirmed message: delivered with these ids, or None to send it again."""
    resolved = mail.resolve(tx, letter, delivered=ids is not None, reason=reason)
    if ids is not None:
        _close(tx, message, "deliver", None, ids)
    return resolved


def give_up_unconfirmed(tx: Tx, letter: Letter, message: str, reason: str) -> Letter:
    """Give up a message whose delivery cannot be confirmed; its sender is notified."""
    dead = mail.mark_dead(tx, letter, reason)
    mark_undelivered(tx, dead, message, reason)
    return dead


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
    stored = get_message(tx, message)
    letter = mail.get(tx, str(stored.letter_id))
    if stored.state is not MessageState.QUEUED or letter.ended_at is None:
        return
    if letter.state is LetterState.DONE:
        _close(tx, stored.id, "deliver", None, stored.platform_ids)
    else:
        reason = letter.last_error or f"its letter was {letter.state}"
        mark_undelivered(tx, letter, stored.id, reason)


# -- letters without a message --------------------------------------------------------------------


def _load_message(tx: Tx, letter: Letter) -> tuple[Message, Place]:
    """Return the message of a letter and its place.

    A letter that was put into the mailbox by hand, or that reports a failed delivery, has no
    message yet; one is created.
    """
    payload = parse_payload(letter)
    place = sql.PLACES.get(tx, letter.mailbox.removeprefix("place:"))
    if isinstance(payload, OutboundMessage):
        stored = tx.first(sql.MESSAGES.by_key, key_=_parse_number(payload.message))
        if stored is not None and stored.letter_id == letter.id:
            return stored, place
    text, thread = _render_body(tx, letter)
    message = _find_by_key(tx, place, letter.id)
    if message is None:
        row = _build_row(tx, place, text[: MAX_BODY // 4], MessageKind.TEXT, letter.id)
        row |= {"thread": thread, "agent_id": _find_agent_id(tx, letter.sender)}
        message = create(tx, sql.MESSAGES, row, verb="queue", event_data={"out": place.id})
    if message.letter_id != letter.id:
        message = _set_letter(tx, message, letter)
    return message, place


def _render_body(tx: Tx, letter: Letter) -> tuple[str, str | None]:
    """Return the text of a letter that is not a message, and the thread that it belongs to."""
    body, payload = letter.body, parse_payload(letter)
    if isinstance(body, str):
        return body, None
    if isinstance(payload, UndeliveredNotice):
        original = tx.first(sql.MESSAGES.by_key, key_=_parse_number(payload.key))
        excerpt = f" ({original.text[:60]!r})" if original else ""
        is_task = (payload.key or "").startswith("sch_")
        subject = "A task" if is_task else f"Your message{excerpt}"
        text = f"{subject} could not be answered: {payload.reason}"
        return text, original.thread if original else None
    if isinstance(body, dict) and isinstance(body.get("text"), str):
        return body["text"], None
    return encode_json(body, "The body"), None


def _parse_number(id: str | None) -> int:
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
