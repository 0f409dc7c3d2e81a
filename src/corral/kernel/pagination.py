"""Pages: every list comes in pieces, and a piece knows where the next one begins.

A cursor holds the sort key of the last row shown, so the next page is one index look-up however
long the list is. It is opaque to callers.
"""

import binascii
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.text import check_int

T = TypeVar("T")

MAX_LIMIT = 1_000
# Where a list that goes from the newest to the oldest begins: behind every number, and every id.
LAST_NUMBER = 1 << 62
LAST_ID = "~"


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: list[T]
    next: str | None = None
    """Hand it back as `after` for what follows; None when there was nothing more."""


def check_limit(limit: int, most: int = MAX_LIMIT) -> int:
    if not 1 <= check_int(limit, "The limit") <= most:
        raise Invalid(f"A limit goes from 1 to {most}, not {limit}.", limit=limit)
    return limit


def encode_cursor(*key: str | int) -> str:
    return binascii.b2a_base64(msgspec.json.encode(key), newline=False).decode().rstrip("=")


def decode_cursor(cursor: str | None, *defaults: str | int) -> list[Any]:
    """The sort key in a cursor; `defaults` (the key before the first row) when there is none."""
    if cursor is None:
        return list(defaults)
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        key = msgspec.json.decode(binascii.a2b_base64(padded), type=list[str | int])
    except (ValueError, msgspec.DecodeError):
        key = []
    if [type(part) for part in key] != [type(part) for part in defaults] or not _storable(key):
        raise Invalid(
            f"{cursor!r} is no cursor of this list; take `next` of a page of the same "
            "list, or leave it out to begin at its start.",
            value=cursor,
            reason="bad_cursor",
        )
    return key


def _storable(key: list[Any]) -> bool:
    """Whether both engines can compare with it: a cursor may have been made up."""
    try:
        return all(
            b"\0" not in part.encode() if isinstance(part, str) else abs(part) < 1 << 63
            for part in key
        )
    except UnicodeEncodeError:
        return False


def page_of(rows: list[T], limit: int, key: Any) -> Page[T]:
    """A page from `limit + 1` fetched rows; `key(row)` is the row's sort key."""
    if len(rows) <= limit:
        return Page(rows)
    items = rows[:limit]
    return Page(items, encode_cursor(*key(items[-1])))


def every(pages: Callable[..., Page[T]], *given: Any, **wanted: Any) -> Iterator[T]:
    """All items of a list, page by page."""
    after: str | None = None
    while True:
        page = pages(*given, after=after, **wanted)
        yield from page.items
        after = page.next
        if after is None:
            return
