"""PostgreSQL connections that break or are interrupted: no data and no pool slot is lost."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import corral
from corral.api import Corral
from corral.db.pooler import query_value
from corral.db.postgres import PostgresDatabase
from corral.db.postgres_connection import PostgresConnection
from corral.db.postgres_pool import MAX_CONNECTIONS, SESSION_SETTINGS
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.domain.mail.sql import LETTERS
from corral.kernel.errors import StoreUnavailable
from tests.support.home import wait_until

BLOCKED = Statement("SELECT 1 FROM pg_locks WHERE NOT granted")
SLEEP = Statement("SELECT pg_sleep(3600)")
ASLEEP = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


@pytest.fixture
def store(own_url: str) -> Iterator[Corral]:
    with corral.open(own_url) as opened:
        yield opened


@pytest.fixture
def database(store: Corral) -> PostgresDatabase:
    database = store._database
    assert isinstance(database, PostgresDatabase)
    return database


def get_backend_pid(tx: Tx) -> int:
    return int(tx.value(Statement("SELECT pg_backend_pid()")))


def terminate_backend(url: str, process: int) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 120000)", (process,))


def cut_connection(link: PostgresConnection) -> None:
    with socket.socket(fileno=os.dup(link.connection.fileno())) as peer:
        peer.shutdown(socket.SHUT_RDWR)


def wait_for_free_slots(database: PostgresDatabase) -> None:
    """Wait until all slots are free; the listener may still hold one for a moment."""
    wait_until(lambda: database._pool._free_slots.qsize() == MAX_CONNECTIONS, "all slots are free")


@pytest.fixture
def interrupt_sleep(own_url: str) -> Iterator[Callable[[], None]]:
    """Send SIGINT once the server runs SLEEP, even if the parent process ignores it."""

    def interrupt() -> None:
        with psycopg.connect(own_url, autocommit=True) as watcher:
            wait_until(lambda: watcher.execute(ASLEEP).fetchone(), "the server runs the statement")
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: threading.Thread(target=interrupt).start()
    signal.signal(signal.SIGINT, before)


def test_connection_lost_inside_a_transaction_is_reported(
    own_url: str, store: Corral, database: PostgresDatabase
) -> None:
    def put_two() -> None:
        with store.transaction() as tx:
            mail.put(tx, "queue:work", "lost")
            terminate_backend(own_url, get_backend_pid(tx))
            mail.put(tx, "queue:work", "never")

    with pytest.raises(StoreUnavailable) as caught:
        put_two()
    assert caught.value.reason == "unreachable"
    assert "report" not in caught.value.message
    assert store.mail.list().items == []
    wait_for_free_slots(database)


def test_conflicting_transactions_are_retried(own_url: str, store: Corral) -> None:
    first_letter, second_letter = (store.mail.put("queue:work", number) for number in (1, 2))
    lock_row = "SELECT 1 FROM letters WHERE seq = %s FOR UPDATE"
    first, second = (
        int(letter.id.removeprefix("let_")) for letter in (first_letter, second_letter)
    )
    with psycopg.connect(own_url) as other:
        other.execute("SET deadlock_timeout = '1h'")
        other.execute(lock_row, (first,))
        waiter = threading.Thread(target=lambda: other.execute(lock_row, (second,)))

        def cause_deadlock() -> None:
            with store.transaction() as tx:
                # The session with the shorter timeout detects the deadlock.
                tx.run(Statement("SET LOCAL deadlock_timeout = '10ms'"))
                LETTERS.get(tx, second, for_update=True)
                waiter.start()
                wait_until(lambda: tx.value(BLOCKED), "the other transaction waits")
                LETTERS.get(tx, first, for_update=True)

        with pytest.raises(StoreUnavailable) as caught:
            cause_deadlock()
        waiter.join()
    assert caught.value.reason == "locked"
    assert caught.value.details["reason"] == "locked"


@pytest.mark.parametrize(
    "first_statement", [SESSION_SETTINGS, "extract(epoch"], ids=["plans", "time"]
)
def test_connection_lost_at_its_start_is_retried(
    store: Corral,
    database: PostgresDatabase,
    monkeypatch: pytest.MonkeyPatch,
    first_statement: str,
) -> None:
    """Like a server restart while many clients connect."""
    run, cuts = PostgresConnection.run, []

    def cut_at_first_statement(link: PostgresConnection, text: str) -> None:
        if first_statement in text and not cuts:
            cuts.append(text)
            cut_connection(link)

    def run_and_cut(link: PostgresConnection, text: str) -> Any:
        cut_at_first_statement(link, text)
        return run(link, text)

    def query_and_cut(connection: Any, text: bytes, **options: Any) -> Any:
        cut_at_first_statement(PostgresConnection(connection), text.decode())
        return query_value(connection, text, **options)

    monkeypatch.setattr(PostgresConnection, "run", run_and_cut)
    monkeypatch.setattr("corral.db.postgres_pool.query_value", query_and_cut)
    database._pool.close_idle()
    monkeypatch.setattr(database.clock, "_measurement", (-1e9, 0))  # the time is queried again
    store.mail.put("queue:work", "kept")
    assert cuts
    assert [letter.body for letter in store.mail.list().items] == ["kept"]
    wait_for_free_slots(database)


def test_connection_with_an_uncancelled_statement_is_not_reused(
    store: Corral,
    database: PostgresDatabase,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_sleep: Callable[[], None],
) -> None:
    """Ctrl-C, and again while the statement is being cancelled."""

    def interrupted_again(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(psycopg.Connection, "_try_cancel", interrupted_again)
    interrupt_sleep()
    with pytest.raises(KeyboardInterrupt):
        database.read(lambda tx: tx.run(SLEEP))
    wait_for_free_slots(database)
    assert all(link.is_idle for link in database._pool._idle)
    store.mail.put("queue:work", "kept")
    assert [letter.body for letter in store.mail.list().items] == ["kept"]


def test_cancelled_statement_releases_its_connection_and_slot(
    store: Corral, database: PostgresDatabase, interrupt_sleep: Callable[[], None]
) -> None:
    def put_slowly() -> None:
        with store.transaction() as tx:
            mail.put(tx, "queue:work", "lost")
            tx.run(SLEEP)

    for _ in range(3):
        interrupt_sleep()
        with pytest.raises(KeyboardInterrupt):
            put_slowly()
    wait_for_free_slots(database)
    assert all(link.is_idle for link in database._pool._idle)
    assert store.mail.list().items == []
