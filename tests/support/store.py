"""What a store holds, seen from outside the rooms: for tests that ask what was written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import pytest

from corral.api import Corral
from corral.db.schema import tables
from corral.db.statement import Row, Statement
from corral.kernel.errors import CorralError
from corral.kernel.pagination import Page
from tests.support.database_pool import filled_tables

T = TypeVar("T")
E = TypeVar("E", bound=CorralError)


def rows(store: Corral, sql: str, **params: Any) -> list[Row]:
    """The rows of any statement, in a transaction of its own."""
    with store.transaction() as tx:
        return tx.run(Statement(sql), **params)


@cache
def _readings() -> tuple[Statement, dict[str, Statement]]:
    """Which tables hold anything, asked at once, and the rows of each: few tests fill many, and
    a call for each empty one would be most of what a test costs."""
    names = [table.name for table in tables()]
    filled = ", ".join(f"EXISTS (SELECT 1 FROM {name})" for name in names)
    return (
        Statement(f"SELECT {filled}"),
        {name: Statement(f"SELECT * FROM {name} ORDER BY 1, 2") for name in names},
    )


def contents(store: Corral) -> dict[str, list[Row]]:
    """Every row of every table."""
    look, readings = _readings()
    filled = filled_tables(store.address)
    with store.transaction() as tx:
        if filled is None:
            found = zip(readings, tx.run(look)[0], strict=True)
            filled = {name for name, holds in found if holds}
        return {name: tx.run(readings[name]) if name in filled else [] for name in readings}


def record(store: Corral, subject: str | None = None) -> list[str]:
    """The whole record of changes, as `letter.put`, in the order in which they were written.

    It reads the table and not the feed: PostgreSQL's feed holds back what any other transaction of
    the server might still precede, which is right for readers and too late for a test.
    """
    found = rows(store, "SELECT kind, verb, subject FROM events ORDER BY seq")
    return [f"{kind}.{verb}" for kind, verb, of in found if subject in (None, of)]


@contextmanager
def unchanged(store: Corral) -> Iterator[None]:
    """What stands inside writes nothing at all: no row, no event."""
    before = contents(store)
    yield
    assert contents(store) == before


@contextmanager
def refuses(store: Corral, error: type[E]) -> Iterator[pytest.ExceptionInfo[E]]:
    """What stands inside raises exactly this class, and leaves the store as it was."""
    with unchanged(store), pytest.raises(error) as caught:
        yield caught
    assert caught.type is error


def walk(
    list_: Callable[..., Page[T]],
    *,
    limit: int = 2,
    between: Callable[[], object] = lambda: None,
    **arguments: Any,
) -> list[T]:
    """Every item of a list, page by page to its end; `between` is called between two pages."""
    page = list_(limit=limit, **arguments)
    items = list(page.items)
    while page.next is not None:
        assert len(page.items) == limit, "only the last page may be short"
        between()
        page = list_(limit=limit, after=page.next, **arguments)
        assert page.items, "a page that promises more is followed by at least one item"
        items += page.items
    return items


def shared_length(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    count = 0
    while one[count] == other[count]:
        count += 1
    return count
