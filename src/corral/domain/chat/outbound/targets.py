"""The target of an outbound message: its place, its thread and the message that it refers to."""

import msgspec

from corral.adapters.channels.contract import MessageKind
from corral.adapters.channels.registry import get_traits
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels import destinations
from corral.domain.chat.model import (
    Conversation,
    Place,
)
from corral.domain.chat.payloads import parse_request
from corral.domain.mail import ops as mail
from corral.kernel.errors import Invalid, Refused
from corral.kernel.ids import parse_number
from corral.kernel.validation import MAX_NAME, check_text


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


def check_thread(tx: Tx, place: Place, thread: str | None) -> str | None:
    """Return the thread; raises Refused when the channel of the place has no threads."""
    channel = sql.CHANNELS.get(tx, place.channel_id)
    if thread and not get_traits(channel.kind).threads:
        raise Refused(
            f"{place.display_name} is on a channel of kind {channel.kind}, which has no threads."
        )
    return check_short_text(thread, "The thread")


def resolve_reference(
    tx: Tx, place: Place, edit: str | None, react: str | None, reply_to: str | None
) -> tuple[MessageKind, str | None]:
    """Return the kind of a message, and the platform's id of the message that it refers to."""
    references = [id for id in (edit, react, reply_to) if id]
    if len(references) > 1:
        raise Invalid("A message can edit, react to or answer one other message. Give only one.")
    if not references:
        return MessageKind.TEXT, None
    target = sql.MESSAGES.get(tx, parse_number("msg", references[0]))
    if target.place_id != place.id or not target.platform_ids:
        raise Refused(
            f"{target.id} is not in {place.display_name}, or was not delivered yet.", id=target.id
        )
    kind = MessageKind.EDIT if edit else MessageKind.REACTION if react else MessageKind.TEXT
    return kind, target.platform_ids[0]


def check_short_text(value: str | None, what: str) -> str | None:
    """Validate an optional short text, such as an id or a key; empty: None. Raises Invalid."""
    return check_text(value, what, max_bytes=2 * MAX_NAME) if value else None
