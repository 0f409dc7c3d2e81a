"""Read messages and conversations, for people and programs."""

from collections.abc import Sequence

from msgspec.structs import replace

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels import places
from corral.domain.chat.model import Conversation, Message, Route
from corral.domain.mail import queries as letters
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Invalid
from corral.kernel.ids import parse_number
from corral.kernel.pagination import Page, check_limit, make_page

MAX_CONVERSATIONS = 200
SCAN_SIZE = 500
"""Messages that one call scans for those of a session, which have no index."""


def get_message(tx: Tx, message: str) -> Message:
    """Return a message by its id, with the letters of its routes."""
    return _with_letters(tx, [sql.MESSAGES.get(tx, parse_number("msg", message))])[0]


def list_messages(
    tx: Tx,
    *,
    place: str | None = None,
    session: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Message]:
    """List messages of both directions, newest first: all, those of a place, or of a session.

    A page of a session may have fewer messages than `limit` and still a next page: each call scans
    a limited number of messages.
    """
    if place is not None and session is not None:
        raise Invalid("Give a place or a session, not both.")
    if session is not None:
        page = _scan_session(tx, sessions.get(tx, session).id, after, check_limit(limit))
    else:
        place_id = places.get_place(tx, place).id if place else None
        page = _list_by_place(tx, place_id, after, limit)
    return Page(_with_letters(tx, page.items), page.next)


def _list_by_place(tx: Tx, place_id: str | None, after: str | None, limit: int) -> Page[Message]:
    if place_id is None:
        return sql.ALL_MESSAGES.page(tx, after=after, limit=limit)
    return sql.MESSAGES_OF_PLACE.page(tx, after=after, limit=limit, place_id=place_id)


def _scan_session(tx: Tx, id: str, after: str | None, limit: int) -> Page[Message]:
    """Return the messages that were routed to a session, and those that it sent."""
    conversation = tx.first(sql.CONVERSATION, session_id=id)
    place_id = conversation.place_id or None if conversation is not None else None
    page = _list_by_place(tx, place_id, after, SCAN_SIZE)
    scanned = page.items
    letter_ids = [message.letter_id for message in scanned if message.letter_id is not None]
    # The sender of an outbound message's letter is the session that sent it.
    sent = {
        letter.id for letter in letters.get_many(tx, letter_ids) if letter.sender == f"session:{id}"
    }
    matching = [
        message
        for message in scanned
        if message.letter_id in sent or any(route.session_id == id for route in message.routes)
    ]
    if len(matching) > limit:
        return make_page(matching, limit, sql.build_message_key)
    return Page(matching, page.next)


def list_awaiting_approval(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Message]:
    """List the messages that wait for an owner's decision, by account, oldest first."""
    return sql.HELD_MESSAGES.page(tx, after=after, limit=limit)


def list_conversations(tx: Tx, place: str) -> list[Conversation]:
    """Return the sessions that agents have in a place, each with its current run."""
    place_id = places.get_place(tx, place).id
    return tx.all(sql.CONVERSATIONS_OF_PLACE, place_id=place_id, limit=MAX_CONVERSATIONS)


def is_used(tx: Tx) -> bool:
    """Whether chat has any work: a channel exists, or letters wake a session."""
    return bool(tx.value(sql.IS_USED))


def _with_letters(tx: Tx, messages: Sequence[Message]) -> list[Message]:
    """Add to each route the id of its letter, if the letter is still kept."""
    keys = {
        (f"session:{route.session_id}", message.id)
        for message in messages
        for route in message.routes
        if route.session_id is not None
    }
    letter_ids = letters.find_ids_by_key(tx, sorted(keys)) if keys else {}

    def add_letter(route: Route, message: Message) -> Route:
        letter_id = letter_ids.get((f"session:{route.session_id}", message.id))
        return replace(route, letter_id=letter_id) if letter_id is not None else route

    return [
        replace(message, routes=[add_letter(route, message) for route in message.routes])
        if message.routes
        else message
        for message in messages
    ]
