"""A connection pooler between Corral and PostgreSQL: only session mode is accepted."""

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

import corral
from corral.api.doctor import examine
from corral.kernel.clock import HOUR
from corral.kernel.errors import StoreUnavailable
from tests.support.pgbouncer import Pgbouncer, find_pgbouncer
from tests.support.postgres_server import PostgresServer
from tests.support.threads import SECONDS

StartPooler = Callable[..., str]


@pytest.fixture
def start_pooler(postgres_server: PostgresServer) -> Iterator[StartPooler]:
    """A function that returns the URL of a new database through a pgbouncer in a mode."""
    program = find_pgbouncer()
    if program is None:
        pytest.skip("pgbouncer is not installed; install the package `pgbouncer`")
    poolers: list[Pgbouncer] = []
    urls: list[str] = []

    def start(mode: str, *, size: int = 5) -> str:
        urls.append(postgres_server.new_database())
        poolers.append(Pgbouncer(program, urls[-1], mode, size=size))
        return poolers[-1].url

    yield start
    for pooler in poolers:
        pooler.close()
    for url in urls:
        postgres_server.drop_database(url)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_pooler_that_shares_server_connections_is_rejected(
    start_pooler: StartPooler, mode: str
) -> None:
    url = start_pooler(mode)
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(url)
    assert caught.value.reason == "pooler"
    assert "pool_mode = session" in caught.value.message
    (item,) = (result for result in examine(url) if result.check == "store")
    assert (item.state, "pool_mode = session" in item.message) == ("broken", True)


def test_pooler_in_session_mode_is_used(start_pooler: StartPooler) -> None:
    with corral.open(start_pooler("session")) as store:
        bodies: list[object] = []
        store.mail.put("agent:ada", "first")

        def wait() -> None:
            letters = store.mail.claim("agent:bob", owner="bob", wait_ms=HOUR)
            bodies.extend(letter.body for letter in letters)

        waiter = threading.Thread(target=wait)
        waiter.start()
        store.mail.put("agent:bob", "second")
        waiter.join(SECONDS)
        assert bodies == ["second"]
        assert store.db.migrate() == []
        assert [event.subject for event in store.events.after().items] == ["let_1", "let_2"]


def test_session_pooler_without_a_second_connection_is_accepted(
    start_pooler: StartPooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second client of the check gets no server connection; the check has a timeout."""
    monkeypatch.setattr("corral.db.pooler.ANSWER_TIMEOUT", 0.2)
    from corral.db import connect

    database = connect(start_pooler("session", size=1), actor="test")
    assert database.schema_version() == 0
    database.close()


def test_more_threads_than_pooler_connections_work(start_pooler: StartPooler) -> None:
    """Threads reuse the connections that other threads of the process returned.

    A pooler in session mode accepts every client, and blocks its first statement until a server
    connection is free.
    """
    errors: list[Exception] = []
    with corral.open(start_pooler("session", size=3)) as store:

        def put(number: int) -> None:
            try:
                for _ in range(5):
                    store.mail.put("queue:work", number)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        assert errors == []
        assert len(store.mail.list(limit=100).items) == 40


def test_pooler_without_a_free_connection_is_reported(
    start_pooler: StartPooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.db.postgres_pool.CONNECT_TIMEOUT", 1)
    monkeypatch.setattr("corral.db.postgres_pool.MAX_SERVER_WAIT", 1.0)
    url = start_pooler("session", size=1)
    with psycopg.connect(url) as holder:
        holder.execute("SELECT 1")
        with pytest.raises(StoreUnavailable, match="pool size") as caught:
            corral.open(url)
    assert caught.value.reason == "too_many_clients"
