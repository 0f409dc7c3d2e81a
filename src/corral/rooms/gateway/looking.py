"""Looking at what was said, with the letters in which agents heard it."""

from collections.abc import Sequence

from msgspec.structs import replace

from corral.db.tx import Tx
from corral.kernel.ids import number_of
from corral.kernel.page import Page, check_limit, decode_cursor, page_of
from corral.rooms.gateway import ops, sql
from corral.rooms.gateway.model import Message, Route
from corral.rooms.mail import ops as mail

_END = 1 << 62


def get(tx: Tx, message: str) -> Message:
    """A message by its id."""
    return _with_letters(tx, [sql.MESSAGES.get(tx, number_of("msg", message))])[0]


def list_messages(
    tx: Tx, *, place: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Message]:
    """What was said both ways, newest first: everywhere, or in one place."""
    (before,) = decode_cursor(after, _END)
    if place is None:
        rows = tx.all(sql.ALL_MESSAGES, before=before, limit=check_limit(limit) + 1)
    else:
        where = ops.get_place(tx, place).id
        rows = tx.all(
            sql.MESSAGES_OF_PLACE, place_id=where, before=before, limit=check_limit(limit) + 1
        )
    page = page_of(rows, limit, lambda message: (number_of("msg", message.id),))
    return Page(_with_letters(tx, page.items), page.next)


def _with_letters(tx: Tx, messages: Sequence[Message]) -> list[Message]:
    """Each message with the letters by which it was told, of those that are still kept."""
    heard = {
        (f"session:{route.session_id}", message.id)
        for message in messages
        for route in message.routes
        if route.session_id is not None
    }
    letters = mail.find_all(tx, sorted(heard)) if heard else {}

    def told(route: Route, message: Message) -> Route:
        letter = letters.get((f"session:{route.session_id}", message.id))
        return replace(route, letter_id=letter) if letter is not None else route

    return [
        replace(message, routes=[told(route, message) for route in message.routes])
        if message.routes
        else message
        for message in messages
    ]
