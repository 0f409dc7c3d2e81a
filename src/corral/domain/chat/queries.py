"""Messages for people and programs that look at what was said and what became of it, with the
letters in which agents heard it."""

from collections.abc import Sequence

from msgspec.structs import replace

from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels import ops
from corral.domain.chat.model import Message, Route, Talk
from corral.domain.mail import queries as letters
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Invalid
from corral.kernel.ids import number_of
from corral.kernel.pagination import (
    LAST_NUMBER,
    Page,
    check_limit,
    decode_cursor,
    encode_cursor,
    page_of,
)

MOST_TALKS = 200
LOOKED_AT = 500
"""Messages among which those of a session are looked for at a time; there is no index of them."""


def get(tx: Tx, message: str) -> Message:
    """A message by its id."""
    return _with_letters(tx, [sql.MESSAGES.get(tx, number_of("msg", message))])[0]


def list_messages(
    tx: Tx,
    *,
    place: str | None = None,
    session: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Message]:
    """What was said both ways, newest first: everywhere, in one place, or in one session.

    Of a session some messages are looked through at a time; a page may have few, and a next one.
    """
    if place is not None and session is not None:
        raise Invalid("Look at a place or at a session, not at both.")
    (before,) = decode_cursor(after, LAST_NUMBER)
    if session is not None:
        page = _of_session(tx, sessions.get(tx, session).id, before, check_limit(limit))
    else:
        rows = _rows(tx, ops.get_place(tx, place).id if place else None, before, limit)
        page = page_of(rows, limit, _cursor)
    return Page(_with_letters(tx, page.items), page.next)


def _rows(tx: Tx, place_id: str | None, before: int, limit: int) -> list[Message]:
    most = check_limit(limit) + 1
    if place_id is None:
        return tx.all(sql.ALL_MESSAGES, before=before, limit=most)
    return tx.all(sql.MESSAGES_OF_PLACE, place_id=place_id, before=before, limit=most)


def _of_session(tx: Tx, id: str, before: int, limit: int) -> Page[Message]:
    """What was heard in a session, and what was said in it: its letters tell who wrote them."""
    talk = tx.one(sql.TALK, session_id=id)
    rows = _rows(tx, talk.place_id or None if talk is not None else None, before, LOOKED_AT)
    looked = rows[:LOOKED_AT]
    told = [each.letter_id for each in looked if each.letter_id is not None]
    own = {each.id for each in letters.get_all(tx, told) if each.sender == f"session:{id}"}
    found = [
        each
        for each in looked
        if each.letter_id in own or any(route.session_id == id for route in each.routes)
    ]
    if len(found) > limit:
        return page_of(found, limit, _cursor)
    return Page(found, encode_cursor(*_cursor(looked[-1])) if len(rows) > LOOKED_AT else None)


def _cursor(message: Message) -> tuple[int]:
    return (number_of("msg", message.id),)


def list_held(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Message]:
    """What waits until somebody says whether it may be heard: by account, in the order in which
    each spoke."""
    sender, seq = decode_cursor(after, "", 0)
    rows = tx.all(sql.HELD, sender=sender, seq=seq, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda each: (str(each.sender_id), *_cursor(each)))


def talks(tx: Tx, place: str) -> list[Talk]:
    """The sessions that agents have in a place, and the runs that work in them now."""
    return tx.all(sql.TALKS_OF_PLACE, place_id=ops.get_place(tx, place).id, limit=MOST_TALKS)


def _with_letters(tx: Tx, messages: Sequence[Message]) -> list[Message]:
    """Each message with the letters by which it was told, of those that are still kept."""
    heard = {
        (f"session:{route.session_id}", message.id)
        for message in messages
        for route in message.routes
        if route.session_id is not None
    }
    found = letters.find_all(tx, sorted(heard)) if heard else {}

    def told(route: Route, message: Message) -> Route:
        letter = found.get((f"session:{route.session_id}", message.id))
        return replace(route, letter_id=letter) if letter is not None else route

    return [
        replace(message, routes=[told(route, message) for route in message.routes])
        if message.routes
        else message
        for message in messages
    ]
