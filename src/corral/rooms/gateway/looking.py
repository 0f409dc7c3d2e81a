"""Lists of messages, for people and programs that look at what was said and what became of it."""

from corral.db.tx import Tx
from corral.kernel.errors import Invalid
from corral.kernel.ids import number_of
from corral.kernel.page import Page, check_limit, decode_cursor, encode_cursor, page_of
from corral.rooms.gateway import ops, sql
from corral.rooms.gateway.model import Message, Talk
from corral.rooms.mail import looking as mail
from corral.rooms.sessions import ops as sessions

_END = 1 << 62
MOST_TALKS = 200
LOOKED_AT = 500
"""Messages among which those of a session are looked for at a time; there is no index of them."""


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
    (before,) = decode_cursor(after, _END)
    if session is not None:
        return _of_session(tx, sessions.get(tx, session).id, before, check_limit(limit))
    rows = _rows(tx, ops.get_place(tx, place).id if place else None, before, limit)
    return page_of(rows, limit, _cursor)


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
    own = {each.id for each in mail.get_all(tx, told) if each.sender == f"session:{id}"}
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
