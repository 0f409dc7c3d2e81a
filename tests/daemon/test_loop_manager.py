"""The loops of a daemon in one process: join, lead, fail over, and leave."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import corral
from corral.adapters.processes import process
from corral.adapters.processes.process import ProcessIdentity
from corral.api import Corral
from corral.daemon.loop import BaseLoop
from corral.daemon.loop_manager import LoopManager
from corral.kernel.errors import Held
from tests.support.home import SECONDS, wait_until
from tests.support.run_factories import running


class IdleLoop(BaseLoop):
    """A loop with nothing to do."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run_once(self, store: Corral) -> int:
        return 0

    def next_delay(self, store: Corral) -> float:
        return 3_600.0


@pytest.fixture
def live_store(url: str) -> Iterator[Corral]:
    """A store with the real clock and short leases."""
    with corral.open(url, actor="user:tester") as store:
        store.settings.set("nodes.lease_ms", 1_500)
        yield store


@pytest.fixture
def new_manager(
    live_store: Corral, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., LoopManager]]:
    """Return a function that creates a loop manager with its own host name."""
    with ExitStack() as stack:

        def create(name: str, **options: object) -> LoopManager:
            monkeypatch.setattr(process, "host", lambda: name)
            manager = LoopManager(
                live_store, loops=[IdleLoop("scheduler"), IdleLoop("alert_sender")], **options
            )
            stack.callback(manager.end, SECONDS)
            return manager

        yield create


def loop_states(manager: LoopManager) -> list[str]:
    return [loop.state for loop in manager.status().loops]


def test_daemon_joins_leads_and_leaves(
    live_store: Corral, new_manager: Callable[..., LoopManager]
) -> None:
    manager = new_manager("one", slots=3, labels=["gpu"])
    assert manager.begin() == []
    node = live_store.nodes.daemon_of("one")
    assert node is not None
    assert (node.slots, node.labels, node.owner) == (3, ["gpu"], manager.owner)
    assert loop_states(manager) == ["works", "works"]
    assert manager.end(SECONDS)
    assert live_store.nodes.daemon_of("one") is None
    assert [lead.lease_until for lead in live_store.nodes.leaders()] == [0, 0]


def test_daemon_recovers_runs_before_its_loops_start(
    live_store: Corral, new_manager: Callable[..., LoopManager]
) -> None:
    run = running(live_store)
    live_store.internal.runs.heartbeat(run, output_bytes=0, lease_ms=1_000)
    wait_until(
        lambda: live_store.runs.get(run.id).lease_until < live_store.now(), "the lease expired"
    )
    manager = new_manager("one")
    (recovered,) = manager.begin()
    assert (recovered.run_id, recovered.state) == (run.id, "interrupted")
    assert manager.status().recovered == [recovered]


def test_remaining_daemon_takes_over_all_loops(
    live_store: Corral, new_manager: Callable[..., LoopManager]
) -> None:
    live_store.settings.set("nodes.lease_ms", 15_000)  # so that a slow machine keeps its leadership
    first, second = new_manager("one"), new_manager("two")
    first.begin()
    second.begin()
    assert (loop_states(first), loop_states(second)) == (["works"] * 2, ["waits"] * 2)
    assert {loop.leader for loop in second.status().loops} == {first.owner}
    first.end(SECONDS)
    wait_until(lambda: loop_states(second) == ["works"] * 2, "the second daemon leads")


def test_second_daemon_of_a_living_process_is_refused(
    live_store: Corral, new_manager: Callable[..., LoopManager]
) -> None:
    identity = process.identify(os.getppid())
    assert identity is not None
    owner = identity._replace(host="one").as_owner("daemon")
    live_store.internal.nodes.join("one", process.boot_id(), owner=owner, slots=1)
    with pytest.raises(Held, match="CORRAL_HOST"):
        new_manager("one").begin()


def test_dead_daemon_is_replaced_at_once(
    live_store: Corral, new_manager: Callable[..., LoopManager]
) -> None:
    dead = ProcessIdentity("one", process.boot_id(), 4190000, "1").as_owner("daemon")
    live_store.internal.nodes.join("one", process.boot_id(), owner=dead, slots=1)
    live_store.internal.nodes.acquire_leadership("scheduler", owner=dead, lease_ms=3_600_000)
    manager = new_manager("one")
    manager.begin()
    assert loop_states(manager) == ["works", "works"]


def test_daemon_marked_lost_joins_again(
    live_store: Corral, new_manager: Callable[..., LoopManager]
) -> None:
    manager = new_manager("one")
    manager.begin()
    node = live_store.nodes.daemon_of("one")
    assert node is not None
    with live_store.transaction() as tx:
        from corral.db.transitions import transition
        from corral.domain.nodes import sql

        transition(tx, sql.NODES, "lose", node.id)
    wait_until(lambda: live_store.nodes.daemon_of("one"), "the daemon joined again")
    assert live_store.nodes.get(node.id).fence == node.fence + 1


def test_replaced_daemon_exits(live_store: Corral, new_manager: Callable[..., LoopManager]) -> None:
    ended = threading.Event()
    reasons: list[str] = []

    def give_up(reason: str) -> None:
        reasons.append(reason)
        ended.set()

    manager = new_manager("one", give_up=give_up)
    manager.begin()
    live_store.internal.nodes.join("one", process.boot_id(), owner="another", slots=1)
    assert ended.wait(SECONDS)
    assert "another" in reasons[0]
    assert live_store.nodes.daemon_of("one") is not None, "the node of the new daemon is kept"


@pytest.mark.parametrize("engine", ["sqlite"])
def test_daemon_exits_when_its_store_is_replaced(
    live_store: Corral, new_manager: Callable[..., LoopManager], url: str
) -> None:
    ended = threading.Event()
    manager = new_manager("one", give_up=lambda reason: ended.set())
    manager.begin()
    path = Path(url.removeprefix("sqlite:///"))
    path.rename(path.with_name("aside.db"))
    path.touch()
    assert ended.wait(SECONDS)
