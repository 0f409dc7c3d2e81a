"""A PostgreSQL server that restarts or stays unavailable."""

import signal
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

import corral
from corral.adapters.processes.process import ProcessUsage
from corral.api import Corral
from corral.db import postgres_pool
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import StoreUnavailable
from corral.supervisor.lease import LEASE_LOST, RunLease
from corral.supervisor.resource_usage import ResourceMeter
from tests.support.home import wait_until
from tests.support.invariants import check_store
from tests.support.listeners import HOUR as HOUR_IN_SECONDS
from tests.support.listeners import call_before_waits
from tests.support.postgres_server import PostgresServer
from tests.support.processes import Signal
from tests.support.run_factories import running
from tests.support.threads import Racer

WORKERS = 4
RESTARTS = {"stopped": signal.SIGINT, "killed": signal.SIGQUIT}


@pytest.fixture(autouse=True)
def _long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server as long as it takes to start on this machine."""
    monkeypatch.setattr(postgres_pool, "MAX_SERVER_WAIT", HOUR_IN_SECONDS)


@pytest.fixture
def waiting_signal(monkeypatch: pytest.MonkeyPatch) -> Signal:
    """Set whenever a listener is about to wait."""
    result = Signal()
    call_before_waits(monkeypatch, result.send)
    return result


@pytest.fixture
def connect_errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors of failed connection attempts, one entry each."""
    reasons: list[str] = []
    connect_once = postgres_pool.PostgresPool._connect_once

    def connect_and_record(self: postgres_pool.PostgresPool, **options: bool) -> object:
        try:
            return connect_once(self, **options)
        except StoreUnavailable as error:
            reasons.append(error.reason)
            raise

    monkeypatch.setattr(postgres_pool.PostgresPool, "_connect_once", connect_and_record)
    return reasons


def restart(server: PostgresServer, how: signal.Signals) -> None:
    server.stop(how)
    server.start()


def put_and_work(store: Corral, me: int, stop: threading.Event, accepted: list[str]) -> int:
    """Work in a loop; `accepted` collects the keys of accepted letters.

    Returns how often the outcome of a put was unknown.
    """
    unknown = 0
    number = 0
    while not stop.is_set():
        number += 1
        key = f"{me}-{number}"
        try:
            store.mail.put("queue:work", key, key=key)
            accepted.append(key)
        except StoreUnavailable as error:
            if error.reason != "unknown_outcome":
                raise
            unknown += 1
        for letter in store.mail.claim("queue:work", owner=f"worker {me}"):
            store.mail.renew(letter)
            store.mail.ack(letter)
    return unknown


@pytest.mark.parametrize("how", RESTARTS)
def test_restart_during_work_loses_and_duplicates_nothing(
    own_server: PostgresServer, own_url: str, how: str
) -> None:
    clock = ManualClock()
    stop = threading.Event()
    keys: list[list[str]] = [[] for _ in range(WORKERS)]

    def wait_for_progress() -> None:
        """Wait until each worker has put more letters."""
        targets = [len(worker_keys) + 5 for worker_keys in keys]
        wait_until(
            lambda: all(
                len(worker_keys) >= count for worker_keys, count in zip(keys, targets, strict=True)
            ),
            "all workers continue",
        )

    with corral.open(own_url, clock=clock) as store:
        workers = [
            Racer(partial(put_and_work, store, me, stop, worker_keys))
            for me, worker_keys in enumerate(keys)
        ]
        wait_for_progress()
        restart(own_server, RESTARTS[how])
        wait_for_progress()
        stop.set()
        unknown = sum(worker.result() for worker in workers)
        accepted = [key for worker_keys in keys for key in worker_keys]
        print(f"{len(accepted)} accepted, {unknown} unknown")

        # A claim whose response was lost holds its letter until the lease expires.
        clock.advance(HOUR)
        for letter in store.mail.claim("queue:work", owner="cleaner", limit=1_000):
            store.mail.ack(letter)
        with corral.open(own_url) as other:
            result = other.db.sql("SELECT key, state FROM letters", limit=100_000).rows
            acks = other.db.sql("SELECT subject FROM events WHERE verb = 'ack'", limit=100_000).rows
        assert {key for key, _ in result} >= set(accepted), "an accepted letter is lost"
        assert len(result) == len({key for key, _ in result})
        assert {state for _, state in result} == {"done"}
        assert set(Counter(subject for (subject,) in acks).values()) == {1}
        assert len(acks) == len(result)
        check_store(store)


def test_restart_of_an_idle_server_is_not_noticed(own_server: PostgresServer, own_url: str) -> None:
    """The pooled connections are dead, and no request was sent through them."""
    with corral.open(own_url) as store:
        store.mail.put("queue:work", "before")
        restart(own_server, signal.SIGINT)
        store.mail.put("queue:work", "after")
        assert [letter.body for letter in store.mail.list().items] == ["before", "after"]


def test_waiting_claim_survives_a_restart(
    own_server: PostgresServer, own_url: str, waiting_signal: Signal
) -> None:
    with corral.open(own_url) as store, corral.open(own_url) as other:
        waiting = Racer(lambda: store.mail.claim("agent:ada", owner="me", wait_ms=HOUR))
        waiting_signal.wait()
        restart(own_server, signal.SIGINT)
        other.mail.put("agent:ada", "hello", key="k")
        assert [letter.body for letter in waiting.result()] == ["hello"]


def test_follower_survives_a_restart(
    own_server: PostgresServer, own_url: str, waiting_signal: Signal
) -> None:
    with corral.open(own_url) as store, corral.open(own_url) as other:
        other.mail.put("agent:ada", 1, key="1")

        def follow() -> list[str]:
            events = store.events.follow("0-0", timeout_ms=HOUR)
            subjects = [next(events).subject for _ in range(3)]
            events.close()
            return subjects

        following = Racer(follow)
        waiting_signal.wait()
        restart(own_server, signal.SIGQUIT)
        for number in (2, 3):
            other.mail.put("agent:ada", number, key=str(number))
        subjects = following.result()
        assert len(subjects) == len(set(subjects)) == 3


def test_claim_that_starts_waiting_during_a_restart_is_served(
    own_server: PostgresServer, own_url: str, connect_errors: list[str]
) -> None:
    with corral.open(own_url) as store:
        own_server.stop()
        waiting = Racer(lambda: store.mail.claim("agent:ada", owner="me", wait_ms=HOUR))
        wait_until(lambda: connect_errors, "a connection was refused")
        own_server.start()
        with corral.open(own_url) as other:
            other.mail.put("agent:ada", "hello")
        assert [letter.body for letter in waiting.result()] == ["hello"]


def test_explicit_timeout_bounds_the_wait_for_a_server(
    own_server: PostgresServer, own_url: str, connect_errors: list[str]
) -> None:
    """Without a timeout, a call waits for MAX_SERVER_WAIT, which is longer than this test."""
    with corral.open(own_url) as store:
        own_server.stop()

        def list_with_timeout() -> None:
            with store.server_timeout(0.1):
                store.mail.list()

        with pytest.raises(StoreUnavailable):
            Racer(list_with_timeout).result()
        connect_errors.clear()
        later = Racer(lambda: store.mail.list().items)  # a call without a timeout waits as usual
        wait_until(lambda: connect_errors, "a connection was refused")
        own_server.start()
        assert later.result() == []


def test_supervisor_waits_for_a_server_no_longer_than_its_heartbeat(
    own_server: PostgresServer, own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting supervisor cannot notice that its lease expired."""
    monkeypatch.setattr(corral.supervisor.lease, "LEASE_MS", 3_000)
    with corral.open(own_url) as store:
        lease = RunLease(store, running(store), is_pinned=False)
        lease.renew(None, 0, ResourceMeter())
        assert lease.is_store_reachable
        own_server.stop()  # between two heartbeats

        def write_until_lease_is_lost() -> None:
            lease.record_resource_sample(ProcessUsage(cpu_ms=1, memory_bytes=1, processes=1))
            lease.log("info", "running")
            while lease.stop_reason is None:
                lease.renew(None, 0, ResourceMeter())

        Racer(write_until_lease_is_lost).result()
        assert lease.stop_reason == LEASE_LOST
        own_server.start()


def test_absent_server_is_reported_and_found_again_later(
    own_server: PostgresServer, own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses: list[Callable[[Corral], object]] = [
        lambda store: store.mail.list(),
        lambda store: store.mail.claim("queue:work", owner="me"),
        lambda store: store.settings.set("mail.max_attempts", 3),
        lambda store: store.timers.set("agent:ada", "body", delay_ms=5_000),
        lambda store: list(store.events.follow("0-0", timeout_ms=HOUR)),
        lambda store: store.mail.claim("agent:ada", owner="me", wait_ms=HOUR),
    ]
    with corral.open(own_url) as store:
        store.mail.put("queue:work", "before", key="before")
        own_server.stop()
        with monkeypatch.context() as patch:
            patch.setattr(postgres_pool, "MAX_SERVER_WAIT", 1.0)
            for use in uses:
                racer = Racer(partial(use, store)).join()
                assert isinstance(racer.error, StoreUnavailable)
                assert racer.error.reason == "unreachable"
        own_server.start()
        assert [letter.body for letter in store.mail.list().items] == ["before"]
        store.mail.put("queue:work", "after", key="after")
        check_store(store)


def test_connection_closed_by_the_server_is_replaced(own_url: str) -> None:
    """Like an administrator or the idle timeout of a proxy."""
    import psycopg

    with corral.open(own_url) as store, psycopg.connect(own_url, autocommit=True) as admin:
        store.mail.put("queue:work", 1, key="1")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        store.mail.put("queue:work", 2, key="2")
        assert len(store.mail.list().items) == 2
