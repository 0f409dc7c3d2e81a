"""A server with few connections: none is held unused, and a full server is retried."""

from collections.abc import Iterator

import psycopg
import pytest

import corral
from corral.db import postgres_pool
from corral.kernel.errors import StoreUnavailable
from tests.support.home import wait_until
from tests.support.postgres_server import PostgresServer
from tests.support.threads import Racer

MAX_CONNECTIONS = 6


@pytest.fixture(scope="module")
def small_server() -> Iterator[PostgresServer]:
    server = PostgresServer(
        f"max_connections={MAX_CONNECTIONS}", "superuser_reserved_connections=0"
    )
    try:
        yield server
    finally:
        server.close()


def count_connections(server: PostgresServer, url: str) -> int:
    with psycopg.connect(server.url("postgres")) as watcher:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        row = watcher.execute(query, (url.rpartition("/")[2],)).fetchone()
        assert row is not None
        return int(row[0])


def take_all_connections(server: PostgresServer) -> list[psycopg.Connection[tuple[object, ...]]]:
    """Open connections until the server has none left."""
    connections = []
    while True:
        try:
            connections.append(psycopg.connect(server.url("postgres")))
        except psycopg.OperationalError:
            return connections


def release(connections: list[psycopg.Connection[tuple[object, ...]]]) -> None:
    for connection in connections:
        connection.close()


def test_unused_connections_and_listeners_are_closed(
    small_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "IDLE_SECONDS", 0.05)
    url = small_server.new_database()
    with corral.open(url) as store:
        assert store.mail.claim("agent:ada", owner="me", wait_ms=10) == []
        wait_until(lambda: count_connections(small_server, url) == 0, "no connection is open")
        store.mail.put("agent:ada", "after")
        wait_until(lambda: count_connections(small_server, url) == 0, "no connection is open")
        assert [letter.body for letter in store.mail.list().items] == ["after"]


def test_early_release_closes_a_connection_in_constant_use(
    small_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "EARLY_MAX_AGE", 0.0)
    url = small_server.new_database()
    with corral.open(url) as store:
        store.release_connections_early()
        for number in range(3):
            store.mail.put("agent:ada", number)
        wait_until(lambda: count_connections(small_server, url) == 0, "no connection is open")


def test_open_and_write_wait_for_a_full_server(
    small_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = small_server.new_database()
    refused = []
    connect_once = postgres_pool.PostgresPool._connect_once

    def connect_and_record(self: postgres_pool.PostgresPool, **options: bool) -> object:
        try:
            return connect_once(self, **options)
        except StoreUnavailable as error:
            refused.append(error.reason)
            raise

    monkeypatch.setattr(postgres_pool.PostgresPool, "_connect_once", connect_and_record)
    monkeypatch.setattr(postgres_pool, "IDLE_SECONDS", 0.05)
    connections = take_all_connections(small_server)
    opening = Racer(lambda: corral.open(url))
    wait_until(lambda: len(refused) >= 2, "two connections were refused")
    release(connections)
    with opening.result() as store:
        wait_until(lambda: count_connections(small_server, url) == 0, "no connection is open")
        connections = take_all_connections(small_server)
        before = len(refused)
        putting = Racer(lambda: store.mail.put("agent:ada", "kept"))
        wait_until(lambda: len(refused) >= before + 2, "two connections were refused")
        release(connections)
        assert putting.result().body == "kept"
    assert set(refused) == {postgres_pool.TOO_MANY_CLIENTS}


def test_full_server_is_reported_after_the_maximum_wait(
    small_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "MAX_SERVER_WAIT", 0.2)
    url = small_server.new_database()
    connections = take_all_connections(small_server)
    try:
        with pytest.raises(StoreUnavailable) as caught:
            corral.open(url)
    finally:
        release(connections)
    assert caught.value.reason == "too_many_clients"
    assert "max_connections" in caught.value.message
