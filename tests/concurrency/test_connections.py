"""PostgreSQL's connections: a process has so many, and the server's defaults are not ours."""

import threading

import pytest

import corral
from corral.db.postgres import MAX_CONNECTIONS
from corral.db.tx import Tx
from corral.kernel.errors import Refused
from corral.rooms.mail import ops as mail
from tests.support.fresh import wait_until_alone
from tests.support.postgres import PostgresServer
from tests.support.threads import Racer


@pytest.mark.timeout(60)
def test_as_many_transactions_as_there_are_connections_may_each_read_through_the_library(
    url: str,
) -> None:
    """Each holds a place and reads: waiting for a second place, all would wait for ever."""
    with corral.open(url) as store:
        read: list[int] = []
        all_inside = threading.Barrier(MAX_CONNECTIONS if url.startswith("postgres") else 1)

        def put_and_read(number: int) -> None:
            with store.transaction() as tx:
                mail.put(tx, f"queue:{number}", number)
                all_inside.wait(30)
                read.append(len(store.mail.list(mailbox=f"queue:{number}").items))

        threads = [
            threading.Thread(target=put_and_read, args=(number,), daemon=True)
            for number in range(MAX_CONNECTIONS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert read == [0] * MAX_CONNECTIONS
        assert store.mail.put("queue:after", 1).state == "waiting"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_the_limit_of_timers_holds_whatever_isolation_the_server_gives_by_default(
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
            thread.join(60)
        assert len(store.timers.list(limit=100).items) == 20
        assert len(refused) == 20
    postgres_server.drop_database(url)


def test_a_connection_that_is_out_when_the_store_is_closed_is_closed_behind_it(
    postgres_server: PostgresServer, postgres_template: str
) -> None:
    url = postgres_server.new_database(template=postgres_template)
    store = corral.open(url)
    out, closed = threading.Event(), threading.Event()

    def look(tx: Tx) -> None:
        out.set()
        assert closed.wait(30)

    reader = Racer(lambda: store._database.read(look))
    assert out.wait(30)
    store.close()
    closed.set()
    reader.join()
    wait_until_alone(url)
    postgres_server.drop_database(url)
