"""The loops of a daemon together, in this process: joining, leading, and giving up its place."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import corral
from corral.adapters import process
from corral.adapters.process import ProcessIdentity
from corral.api import Corral
from corral.daemon.loop import BaseLoop
from corral.daemon.loop_manager import LoopManager
from corral.kernel.errors import Held
from tests.support.home import SECONDS, wait_until
from tests.support.run_factories import running


class Idle(BaseLoop):
    """A loop with nothing to do."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run_once(self, store: Corral) -> int:
        return 0

    def next_delay(self, store: Corral) -> float:
        return 3_600.0


@pytest.fixture
def live(url: str) -> Iterator[Corral]:
    """A store whose time goes on, with leases short enough to be waited for."""
    with corral.open(url, actor="user:tester") as store:
        store.settings.set("nodes.lease_ms", 1_500)
        yield store


@pytest.fixture
def host(live: Corral, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LoopManager]]:
    """Makes hosts that are machines of their own, and ends them."""
    with ExitStack() as stack:

        def make(name: str, **options: object) -> LoopManager:
            monkeypatch.setattr(process, "host", lambda: name)
            made = LoopManager(live, loops=[Idle("scheduler"), Idle("alert_sender")], **options)
            stack.callback(made.end, SECONDS)
            return made

        yield make


def states(host: LoopManager) -> list[str]:
    return [loop.state for loop in host.status().loops]


def test_daemon_joins_leads_and_leaves(live: Corral, host: Callable[..., LoopManager]) -> None:
    one = host("one", slots=3, labels=["gpu"])
    assert one.begin() == []
    node = live.nodes.daemon_of("one")
    assert node is not None
    assert (node.slots, node.labels, node.owner) == (3, ["gpu"], one.owner)
    assert states(one) == ["works", "works"]
    assert one.end(SECONDS)
    assert live.nodes.daemon_of("one") is None
    assert [lead.lease_until for lead in live.nodes.leaders()] == [0, 0]


def test_daemon_recovers_runs_before_its_loops_start(
    live: Corral, host: Callable[..., LoopManager]
) -> None:
    gone = running(live)
    live.internal.runs.heartbeat(gone, output_bytes=0, lease_ms=1_000)
    wait_until(lambda: live.runs.get(gone.id).lease_until < live.now(), "its lease is over")
    one = host("one")
    (recovered,) = one.begin()
    assert (recovered.run_id, recovered.state) == (gone.id, "interrupted")
    assert one.status().recovered == [recovered]


def test_remaining_daemon_takes_over_all_loops(
    live: Corral, host: Callable[..., LoopManager]
) -> None:
    live.settings.set("nodes.lease_ms", 15_000)  # a slow machine must not lose its lead
    one, two = host("one"), host("two")
    one.begin()
    two.begin()
    assert (states(one), states(two)) == (["works"] * 2, ["waits"] * 2)
    assert {loop.leader for loop in two.status().loops} == {one.owner}
    one.end(SECONDS)
    wait_until(lambda: states(two) == ["works"] * 2, "the second one leads")


def test_second_daemon_of_a_living_process_is_refused(
    live: Corral, host: Callable[..., LoopManager]
) -> None:
    me = process.identify(os.getppid())
    assert me is not None
    owner = me._replace(host="one").as_owner("daemon")
    live.internal.nodes.join("one", process.boot_id(), owner=owner, slots=1)
    with pytest.raises(Held, match="CORRAL_HOST"):
        host("one").begin()


def test_dead_daemon_is_replaced_at_once(live: Corral, host: Callable[..., LoopManager]) -> None:
    dead = ProcessIdentity("one", process.boot_id(), 4190000, "1").as_owner("daemon")
    live.internal.nodes.join("one", process.boot_id(), owner=dead, slots=1)
    live.internal.nodes.acquire_leadership("scheduler", owner=dead, lease_ms=3_600_000)
    one = host("one")
    one.begin()
    assert states(one) == ["works", "works"]


def test_daemon_marked_lost_joins_again(live: Corral, host: Callable[..., LoopManager]) -> None:
    one = host("one")
    one.begin()
    node = live.nodes.daemon_of("one")
    assert node is not None
    with live.transaction() as tx:
        from corral.db.transitions import transition
        from corral.domain.nodes import sql

        transition(tx, sql.NODES, "lose", node.id)
    wait_until(lambda: live.nodes.daemon_of("one"), "it is there again")
    assert live.nodes.get(node.id).fence == node.fence + 1


def test_replaced_daemon_exits(live: Corral, host: Callable[..., LoopManager]) -> None:
    ended = threading.Event()
    reasons: list[str] = []

    def give_up(reason: str) -> None:
        reasons.append(reason)
        ended.set()

    one = host("one", give_up=give_up)
    one.begin()
    live.internal.nodes.join("one", process.boot_id(), owner="another", slots=1)
    assert ended.wait(SECONDS)
    assert "another" in reasons[0]
    assert live.nodes.daemon_of("one") is not None, "the other one's place is not given up"


@pytest.mark.parametrize("engine", ["sqlite"])
def test_daemon_exits_when_its_store_is_replaced(
    live: Corral, host: Callable[..., LoopManager], url: str
) -> None:
    ended = threading.Event()
    one = host("one", give_up=lambda reason: ended.set())
    one.begin()
    path = Path(url.removeprefix("sqlite:///"))
    path.rename(path.with_name("aside.db"))
    path.touch()
    assert ended.wait(SECONDS)
