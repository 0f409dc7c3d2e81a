"""Connection limits of PostgreSQL, isolation levels, and closing a store that is in use."""

import threading
from contextlib import suppress
from pathlib import Path

import pytest

import corral
from corral.db.database import CLOSED
from corral.db.postgres_pool import MAX_CONNECTIONS
from corral.db.sqlite import SqliteDatabase
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.kernel.errors import Refused
from tests.support.postgres_server import PostgresServer
from tests.support.store import read, write
from tests.support.store_urls import wait_until_alone
from tests.support.threads import SECONDS, Racer


def test_nested_reads_do_not_deadlock_when_all_connections_are_used(
    url: str,
) -> None:
    """Every thread holds a connection and reads. Waiting for a second one would deadlock."""
    with corral.open(url) as store:
        read: list[int] = []
        all_inside = threading.Barrier(MAX_CONNECTIONS if url.startswith("postgres") else 1)

        def put_and_read(number: int) -> None:
            with store.transaction() as tx:
                mail.put(tx, f"queue:{number}", number)
                all_inside.wait(SECONDS)
                read.append(len(store.mail.list(mailbox=f"queue:{number}").items))

        threads = [
            threading.Thread(target=put_and_read, args=(number,), daemon=True)
            for number in range(MAX_CONNECTIONS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert read == [0] * MAX_CONNECTIONS
        assert store.mail.put("queue:after", 1).state == "waiting"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_timer_limit_holds_at_any_default_isolation_level(
    postgres_server: PostgresServer, postgres_template: str, level: str
) -> None:
    url = postgres_server.new_database(template=postgres_template)
    name = url.rpartition("/")[2]
    postgres_server.run_sql(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    refused: list[Refused] = []

    def set_timers() -> None:
        for number in range(4):
            try:
                store.timers.set("agent:ada", number, delay_ms=60_000)
            except Refused as error:
                refused.append(error)

    with corral.open(url) as store:
        threads = [threading.Thread(target=set_timers) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert len(store.timers.list(limit=100).items) == 20
        assert len(refused) == 20
    postgres_server.drop_database(url)


def test_connection_in_use_while_the_store_closes_is_closed_on_return(
    postgres_server: PostgresServer, postgres_template: str
) -> None:
    url = postgres_server.new_database(template=postgres_template)
    store = corral.open(url)
    reading, closed = threading.Event(), threading.Event()

    def read_slowly(tx: Tx) -> None:
        reading.set()
        assert closed.wait(SECONDS)

    reader = Racer(lambda: read(store, read_slowly))
    assert reading.wait(SECONDS)
    store.close()
    closed.set()
    reader.join()
    wait_until_alone(url)
    postgres_server.drop_database(url)


def test_close_waits_for_the_writer_and_rejects_new_writes(url: str) -> None:
    store = corral.open(url)
    inside, go = threading.Event(), threading.Event()

    def put(tx: Tx) -> None:
        mail.put(tx, "queue:work", "kept")
        inside.set()
        assert go.wait(SECONDS)

    writer = Racer(lambda: write(store, put))
    assert inside.wait(SECONDS)
    closing = Racer(store.close)
    while store._database.unusable is None:
        assert closing.is_running
    with pytest.raises(RuntimeError, match="was closed"):
        store.mail.put("queue:work", "late")
    go.set()
    writer.result()
    closing.result()
    with corral.open(url) as reopened:
        assert [letter.body for letter in reopened.mail.list().items] == ["kept"]


def test_waiting_writer_does_not_reopen_a_closed_store(tmp_path: Path) -> None:
    store, inside, go = corral.open(tmp_path / "corral.db"), threading.Event(), threading.Event()

    def wait(tx: Tx) -> None:
        inside.set()
        assert go.wait(SECONDS)

    reader = Racer(lambda: read(store, wait))
    assert inside.wait(SECONDS)
    inside.clear()
    writer = Racer(lambda: write(store, wait))
    assert inside.wait(SECONDS)
    closing = Racer(store.close)
    while store._database.unusable is None:
        assert closing.is_running
    database = store._database
    assert isinstance(database, SqliteDatabase)
    database.unusable = None  # like a caller that checked just before
    late = Racer(lambda: store.mail.put("queue:work", "late"))
    while len(database._queue.waiting) < 2:
        assert closing.is_running
        assert late.is_running
    database.unusable = CLOSED
    go.set()
    reader.result()
    writer.result()
    closing.result()
    with pytest.raises(RuntimeError, match="was closed"):
        late.result()
    assert not [file for file in list_open_files() if file.startswith(str(database.path))]


def list_open_files() -> list[str]:
    paths = []
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            paths.append(str(file.readlink()))
    return paths
