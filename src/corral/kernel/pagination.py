"""Cursor pagination: every list is returned in pages.

A cursor holds the sort key of the last row of a page, so the next page is one index lookup however
long the list is. It is opaque to callers.
"""

import binascii
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.validation import check_int

T = TypeVar("T")

MAX_LIMIT = 1_000
# Sort keys above every sequence number and every id: the start of a list that is newest first.
LAST_NUMBER = 1 << 62
LAST_ID = "~"


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    items: list[T]
    next: str | None = None
    """The cursor of the next page, to pass as `after`; None on the last page."""


def check_limit(limit: int, maximum: int = MAX_LIMIT) -> int:
    """Return `limit`, or raise Invalid if it is not from 1 to `maximum`."""
    if not 1 <= check_int(limit, "The limit") <= maximum:
        raise Invalid(f"Invalid limit {limit}: it must be from 1 to {maximum}.", limit=limit)
    return limit


def encode_cursor(*key: str | int) -> str:
    """Encode the sort key of a row as a cursor."""
    return binascii.b2a_base64(msgspec.json.encode(key), newline=False).decode().rstrip("=")


def decode_cursor(cursor: str | None, *defaults: str | int) -> list[Any]:
    """Decode the sort key of a cursor; raises Invalid if it is not a cursor of this list.

    Without a cursor, returns `defaults`: the sort key before the first row.
    """
    if cursor is None:
        return list(defaults)
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        key = msgspec.json.decode(binascii.a2b_base64(padded), type=list[str | int])
    except (ValueError, msgspec.DecodeError):
        key = []
    if [type(part) for part in key] != [type(part) for part in defaults] or not _is_storable(key):
        raise Invalid(
            f"Invalid cursor {cursor!r}: expected `next` of a page of the same list. Omit it to "
            "start at the beginning.",
            value=cursor,
            reason="bad_cursor",
        )
    return key


def _is_storable(key: list[Any]) -> bool:
    """Whether both engines can compare the key; a caller may send a forged cursor."""
    try:
        return all(
            b"\0" not in part.encode() if isinstance(part, str) else abs(part) < 1 << 63
            for part in key
        )
    except UnicodeEncodeError:
        return False


def make_page(rows: list[T], limit: int, key: Any) -> Page[T]:
    """Build a page from up to `limit + 1` fetched rows; `key(row)` is the sort key of a row."""
    if len(rows) <= limit:
        return Page(rows)
    items = rows[:limit]
    return Page(items, encode_cursor(*key(items[-1])))


def iter_all(list_page: Callable[..., Page[T]], *args: Any, **filters: Any) -> Iterator[T]:
    """Iterate over all items of a list, fetching page after page."""
    after: str | None = None
    while True:
        page = list_page(*args, after=after, **filters)
        yield from page.items
        after = page.next
        if after is None:
            return
