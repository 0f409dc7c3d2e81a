"""Long transactions on the same PostgreSQL server, in other databases and in the store's own."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

import corral
from corral.api import Corral
from corral.domain.mail import ops as mail
from corral.kernel.errors import NotFound
from tests.support.postgres_server import PostgresServer


@pytest.fixture
def other_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of another database on the same server."""
    url = postgres_server.new_database()
    postgres_server.run_sql("CREATE TABLE things (id INT)", url.rpartition("/")[2])
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def store_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    url = postgres_server.new_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@contextmanager
def open_transaction(url: str, prepared: str | None = None) -> Iterator[None]:
    """Keep a transaction with a write open or prepared."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE IF NOT EXISTS things (id INT)")
        connection.execute("INSERT INTO things VALUES (1)")
        if prepared is not None:
            connection.execute(f"PREPARE TRANSACTION '{prepared}'".encode())
        try:
            yield
        finally:
            end = "ROLLBACK" if prepared is None else f"ROLLBACK PREPARED '{prepared}'"
            connection.execute(end.encode())


def list_subjects(store: Corral, after: str | None = None) -> list[str]:
    return [event.subject for event in store.events.after(after).items]


@pytest.mark.parametrize("prepared", [None, "elsewhere"])
def test_transaction_in_another_database_does_not_hold_back_the_feed(
    store_url: str, other_url: str, prepared: str | None
) -> None:
    with corral.open(store_url) as store, open_transaction(other_url, prepared):
        letter = store.mail.put("queue:work", "now")
        assert list_subjects(store) == [letter.id]
        assert [event.subject for event in store.events.newest().items] == [letter.id]
        feed = store.events.follow("0-0", timeout_ms=3_600_000)
        assert next(feed).subject == letter.id
        feed.close()  # type: ignore[attr-defined]
        (finding,) = (item for item in store.db.check() if item.check == "feed")
        assert finding.state == "ok"


def test_feed_of_a_plain_role_is_not_held_back_by_another_database(
    postgres_server: PostgresServer, other_url: str
) -> None:
    """The role sees only the databases of other users' transactions, not their content."""
    name = "owned_by_plain_role"
    with suppress(psycopg.Error):
        postgres_server.run_sql("CREATE ROLE plain LOGIN")
    postgres_server.run_sql(f"CREATE DATABASE {name} OWNER plain")
    url = postgres_server.url(name)
    try:
        with (
            corral.open(url.replace("postgres@", "plain@")) as store,
            open_transaction(other_url),
            open_transaction(other_url, "prepared_by_other"),
        ):
            letter = store.mail.put("queue:work", "now")
            assert list_subjects(store) == [letter.id]
    finally:
        postgres_server.drop_database(url)


@pytest.mark.parametrize("prepared", [None, "here"])
def test_transaction_in_the_same_database_still_holds_back_the_feed(
    store_url: str, prepared: str | None
) -> None:
    """It could still write an older event; doctor names it once it takes long."""
    with corral.open(store_url) as store:
        with open_transaction(store_url, prepared):
            letter = store.mail.put("queue:work", "later")
            assert list_subjects(store) == []
        assert list_subjects(store) == [letter.id]


def test_no_event_is_skipped_beside_transactions_of_other_databases(
    store_url: str, other_url: str
) -> None:
    with corral.open(store_url) as store, corral.open(store_url) as other:
        with open_transaction(other_url), store.transaction() as tx:
            mail.put(tx, "queue:work", "1, late")
            with open_transaction(other_url, "between"):
                other.mail.put("queue:work", "2, early")
            page = other.events.after()
            assert page.items == []
        assert list_subjects(other, page.next) == ["let_1", "let_2"]


def test_feed_read_in_a_writing_transaction_hides_its_own_events(store_url: str) -> None:
    """They may be rolled back, and a cursor after them would skip other events."""
    from corral.domain.events import ops as events

    with corral.open(store_url) as store:
        before = store.mail.put("queue:work", "before")
        with suppress(NotFound), store.transaction() as tx:
            mail.put(tx, "queue:work", "undone")
            assert [event.subject for event in events.list_after(tx).items] == [before.id]
            raise NotFound("roll back")


def test_turns_become_searchable_beside_a_foreign_transaction(
    store_url: str, other_url: str
) -> None:
    with corral.open(store_url) as store, open_transaction(other_url):
        session = store.sessions.open()
        store.sessions.append(session, "user", "zebra")
        assert [hit.location for hit in store.search.find("zebra").items] == [1]
