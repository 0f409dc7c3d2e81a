"""Durability after a power cut depends on the settings of the PostgreSQL server."""

from collections.abc import Iterator

import pytest

import corral
from corral.api import Corral
from corral.api.doctor import examine
from corral.db.types import Finding
from corral.kernel.errors import Invalid
from tests.support.home import wait_until
from tests.support.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def durable_server() -> Iterator[PostgresServer]:
    server = PostgresServer(durable=True)
    try:
        yield server
    finally:
        server.close()


def check_durability(url: str) -> Finding:
    """Return what `corral doctor` reports."""
    (item,) = (result for result in examine(url) if result.check == "durability")
    return item


def change_setting(server: PostgresServer, setting: str) -> None:
    server.run_sql(f"ALTER SYSTEM SET {setting}")
    server.run_sql("SELECT pg_reload_conf()")


def wait_for(store: Corral, expected: str) -> None:
    """Wait until the server has applied new settings after the reload."""
    wait_until(lambda: store.db.durability() == expected, f"the durability is {expected}")


def test_durability_is_promised_only_if_the_server_syncs_its_disk(
    durable_server: PostgresServer,
) -> None:
    url = durable_server.new_database()
    with corral.open(url) as store:
        assert check_durability(url).state == "ok"
        assert store.db.durability() == store.db.durability("full") == "full"
        for setting in ("fsync", "full_page_writes"):
            change_setting(durable_server, f"{setting} = off")
            wait_for(store, "normal")
            result = check_durability(url)
            assert (result.state, setting in result.message) == ("warning", True)
            with pytest.raises(Invalid):
                store.db.durability("full")
            change_setting(durable_server, f"{setting} = on")
            wait_for(store, "full")
        # Corral sets this one for its own connections.
        change_setting(durable_server, "synchronous_commit = off")
        assert check_durability(url).state == "ok"


def test_unlogged_table_is_reported(durable_server: PostgresServer) -> None:
    url = durable_server.new_database()
    corral.open(url).close()
    durable_server.run_sql("ALTER TABLE letters SET UNLOGGED", url.rpartition("/")[2])
    result = check_durability(url)
    assert (result.state, "letters" in result.message) == ("warning", True)
