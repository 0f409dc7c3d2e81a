"""Leadership of a loop and heartbeats of a node are exclusive between processes."""

import os
import time
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import corral
from corral.domain.nodes.model import Node
from corral.kernel.clock import SECOND
from corral.kernel.errors import Held
from tests.support.invariants import check_store
from tests.support.processes import SECONDS, Child, Counters, run_concurrently
from tests.support.shared_clock import SharedClock

LEASE = 2 * SECOND
PROCESSES = 4
CHANGES = 12


class Leadership(NamedTuple):
    fence: int
    since: int
    until: int
    owner: str


def test_leadership_is_exclusive_between_processes(url: str) -> None:
    clock = SharedClock()
    fences = Counters(PROCESSES)
    """The newest fence of each process."""

    def is_over() -> bool:
        return max(fences.all()) > CHANGES

    def compete(number: int) -> list[Leadership]:
        me = f"process {os.getpid()}"
        periods = []
        with corral.open(url, clock=clock) as store:
            while not is_over():
                with suppress(Held):
                    lead = store.internal.nodes.acquire_leadership("loop", owner=me, lease_ms=LEASE)
                    fences.set(number, lead.fence)
                    since = lead.lease_until - LEASE
                    if lead.fence % 3 == 0:
                        # Released at once, so the next leader may start at any time.
                        periods.append(Leadership(lead.fence, since, 0, me))
                        store.internal.nodes.release_leadership("loop", owner=me)
                    else:
                        periods.append(Leadership(lead.fence, since, lead.lease_until, me))
                    while clock.now() < lead.lease_until + SECOND and not is_over():
                        time.sleep(0.0005)  # lets the other processes compete
        return periods

    with ExitStack() as stack:
        children = [stack.enter_context(Child(partial(compete, n))) for n in range(PROCESSES)]
        deadline = time.monotonic() + SECONDS
        while not is_over():
            assert time.monotonic() < deadline, "the leader does not change"
            clock.advance(SECOND // 20)
            time.sleep(0.0005)
        periods = sorted(period for child in children for period in child.result())

    for before, after in pairwise(periods):
        # A leader that acquires again without a competitor keeps its fence.
        assert (after.fence == before.fence) == (after.owner == before.owner)
        assert after.fence - before.fence in (0, 1)
        assert after.since >= before.until, (
            "the new leadership started before the old lease expired"
        )
    assert periods[-1].fence - periods[0].fence >= CHANGES


def test_only_the_last_daemon_of_a_node_may_heartbeat(url: str) -> None:
    def join() -> Node:
        with corral.open(url) as store:
            return store.internal.nodes.join("host", "boot", owner=str(os.getpid()))

    nodes = run_concurrently([join] * 6)
    assert len({node.id for node in nodes}) == 1
    assert sorted(node.fence for node in nodes) == [1, 2, 3, 4, 5, 6]
    accepted = []
    with corral.open(url) as store:
        for node in nodes:
            with suppress(Held):
                accepted.append(store.internal.nodes.heartbeat(node).fence)
        assert accepted == [6]
        check_store(store)
