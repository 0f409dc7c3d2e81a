"""Read a store directly, for tests that check what was written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import pytest

from corral.api import Corral
from corral.db.schema import tables
from corral.db.statement import Row, Statement
from corral.db.tx import Tx
from corral.kernel.errors import CorralError
from corral.kernel.pagination import Page
from tests.support.database_pool import filled_tables

T = TypeVar("T")
E = TypeVar("E", bound=CorralError)


def read(store: Corral, work: Callable[[Tx], T], **options: Any) -> T:
    """Run `work` in a read transaction, for operations that have no method in the API."""
    return store._database.read(work, **options)


def write(store: Corral, work: Callable[[Tx], T], **options: Any) -> T:
    """Run `work` in a write transaction, for operations that have no method in the API."""
    return store._database.write(work, **options)


def rows(store: Corral, sql: str, **params: Any) -> list[Row]:
    """Run any statement in its own transaction and return the rows."""
    with store.transaction() as tx:
        return tx.run(Statement(sql), **params)


@cache
def _read_statements() -> tuple[Statement, dict[str, Statement]]:
    """Return one statement that finds the non-empty tables, and one per table for its rows.

    Most tests fill few tables, and a query for each empty table would be most of their cost.
    """
    names = [table.name for table in tables()]
    filled = ", ".join(f"EXISTS (SELECT 1 FROM {name})" for name in names)
    return (
        Statement(f"SELECT {filled}"),
        {name: Statement(f"SELECT * FROM {name} ORDER BY 1, 2") for name in names},
    )


def contents(store: Corral) -> dict[str, list[Row]]:
    """Return every row of every table."""
    find_filled, statements = _read_statements()
    filled = filled_tables(store.address)
    with store.transaction() as tx:
        if filled is None:
            result = zip(statements, tx.run(find_filled)[0], strict=True)
            filled = {name for name, is_filled in result if is_filled}
        return {name: tx.run(statements[name]) if name in filled else [] for name in statements}


def list_events(store: Corral, subject: str | None = None) -> list[str]:
    """Return all events as `letter.put`, in the order in which they were written.

    Reads the table instead of the feed: PostgreSQL's feed holds back events that an open
    transaction could still precede, which would delay a test.
    """
    result = rows(store, "SELECT kind, verb, subject FROM events ORDER BY seq")
    return [
        f"{kind}.{verb}" for kind, verb, event_subject in result if subject in (None, event_subject)
    ]


@contextmanager
def unchanged(store: Corral) -> Iterator[None]:
    """Assert that the block writes nothing: no row and no event."""
    before = contents(store)
    yield
    assert contents(store) == before


@contextmanager
def raises_without_change(store: Corral, error: type[E]) -> Iterator[pytest.ExceptionInfo[E]]:
    """Assert that the block raises exactly this class and leaves the store unchanged."""
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
    """Return every item of a list, page by page; call `between` between two pages."""
    page = list_(limit=limit, **arguments)
    items = list(page.items)
    while page.next is not None:
        assert len(page.items) == limit, "only the last page may be short"
        between()
        page = list_(limit=limit, after=page.next, **arguments)
        assert page.items, "a next cursor leads to at least one item"
        items += page.items
    return items


def shared_length(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    count = 0
    while first[count] == second[count]:
        count += 1
    return count
