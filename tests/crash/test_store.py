"""Crashes of the store itself: first open, transactions, and writes of several threads.

The harness kills at the commits that the probe reports, so the probe must see every commit.
"""

import itertools
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.settings import ops as settings
from corral.kernel.clock import HOUR, ManualClock
from tests.crash.harness import FreshUrl, Probe, Scenario, World, crash_at_every_commit, do_nothing
from tests.support.invariants import check_store
from tests.support.processes import Child
from tests.support.shared_clock import SharedClock
from tests.support.store_urls import wait_until_alone
from tests.support.threads import race


def _claim_letter(store: Corral) -> Letter:
    store.mail.put("queue:a", 1)
    return store.mail.claim("queue:a", owner="me")[0]


# Each function prepares the store and returns the write to observe.
WRITES: dict[str, Callable[[Corral], Callable[[], object]]] = {
    "mail put": lambda store: lambda: store.mail.put("queue:a", 1),
    "mail put with a key": lambda store: lambda: store.mail.put("queue:a", 1, key="k"),
    "mail claim": lambda store: (
        store.mail.put("queue:a", 1),
        lambda: store.mail.claim("queue:a", owner="me"),
    )[1],
    "mail claim in order": lambda store: (
        store.mail.put("agent:a", 1),
        lambda: store.mail.claim("agent:a", owner="me"),
    )[1],
    "mail renew": lambda store: (letter := _claim_letter(store), lambda: store.mail.renew(letter))[
        1
    ],
    "mail ack": lambda store: (letter := _claim_letter(store), lambda: store.mail.ack(letter))[1],
    "mail fail": lambda store: (
        letter := _claim_letter(store),
        lambda: store.mail.fail(letter, "x"),
    )[1],
    "mail begin_delivery": lambda store: (
        letter := _claim_letter(store),
        lambda: store.mail.begin_delivery(letter),
    )[1],
    "timer set": lambda store: lambda: store.timers.set("agent:a", 1, delay_ms=HOUR),
    "setting set": lambda store: lambda: store.settings.set("mail.max_attempts", 3),
    "node join": lambda store: lambda: store.internal.nodes.join("n", "b", owner="me"),
    "node heartbeat": lambda store: (
        node := store.internal.nodes.join("n", "b", owner="me"),
        lambda: store.internal.nodes.heartbeat(node),
    )[1],
    "lead": lambda store: lambda: store.internal.nodes.acquire_leadership("loop", owner="me"),
}


@pytest.mark.parametrize("name", WRITES)
def test_every_write_is_one_commit_seen_by_the_probe(url: str, name: str) -> None:
    probe = Probe()
    with corral.open(url, clock=ManualClock(), probe=probe) as store:
        write = WRITES[name](store)
        probe.moments.clear()
        write()
        assert probe.moments == ["before commit", "after commit"]


def test_transaction_over_two_concepts_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def change_both(store: Corral, world: World) -> None:
        with store.transaction() as tx:
            mail.put(tx, "queue:a", "changed")
            settings.set_value(tx, "mail.max_attempts", 3)

    def check(store: Corral, world: World) -> None:
        letters = store.mail.list(mailbox="queue:a").items
        value = store.settings.get("mail.max_attempts").value
        assert (len(letters), value) in [(0, 6), (1, 3)]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(change_both, recover=do_nothing, check=check)
    )


@pytest.mark.parametrize("moment", [0, 1], ids=["before commit", "after commit"])
def test_interrupted_first_open_is_completed_by_the_next(empty_url: str, moment: int) -> None:
    def open_store() -> None:
        corral.open(empty_url, probe=Probe(kill_at=moment)).close()

    with Child(open_store) as child:
        assert child.ended_by() is signal.SIGKILL, "the process was not killed"
    wait_until_alone(empty_url)
    with corral.open(empty_url) as store:
        store.mail.put("queue:a", 1)
        assert store.db.schema_version() >= 1
        check_store(store, schema=True)


def test_acknowledged_writes_of_threads_survive_a_kill(fresh_url: FreshUrl, tmp_path: Path) -> None:
    """Threads share commits, so a kill affects all of them."""
    for number in range(4):
        url = fresh_url()
        world = World(tmp_path / f"records-{number}", SharedClock())

        def put_forever(url: str = url, world: World = world) -> None:
            with corral.open(url, clock=ManualClock()) as store:

                def put(thread: int) -> None:
                    for count in itertools.count():
                        body = f"{thread}-{count}"
                        store.mail.put("queue:a", body)
                        world.record(body)

                race([partial(put, thread) for thread in range(8)])

        with Child(put_forever) as child:
            while len(world.records) < 100 * (number + 1):
                time.sleep(0.005)
            child.kill()
        wait_until_alone(url)
        with corral.open(url) as store:
            bodies = [row[0] for row in store.db.sql("SELECT body FROM letters", limit=10_000).rows]
            assert len(bodies) == len(set(bodies))
            # The last line may be incomplete: the process was killed while it was written.
            acknowledged = {f'"{record}"' for record in world.records[:-1]}
            assert set(bodies) >= acknowledged
            assert len(bodies) <= len(world.records) + 8, (
                "at most one unacknowledged write per thread"
            )
            check_store(store)
