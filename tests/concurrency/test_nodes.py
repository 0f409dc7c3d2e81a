"""The lead of a loop: never two at once, however many want it."""

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


class Reign(NamedTuple):
    fence: int
    since: int
    until: int
    owner: str


def test_leadership_is_exclusive_between_processes(url: str) -> None:
    clock = SharedClock()
    fences = Counters(PROCESSES)
    """The newest fence that each process has had."""

    def is_over() -> bool:
        return max(fences.all()) > CHANGES

    def compete(number: int) -> list[Reign]:
        me = f"process {os.getpid()}"
        reigns = []
        with corral.open(url, clock=clock) as store:
            while not is_over():
                with suppress(Held):
                    lead = store.internal.nodes.acquire_leadership("loop", owner=me, lease_ms=LEASE)
                    fences.set(number, lead.fence)
                    since = lead.lease_until - LEASE
                    if lead.fence % 3 == 0:
                        # It lets go at once: from then on, whoever asked before may have it.
                        reigns.append(Reign(lead.fence, since, 0, me))
                        store.internal.nodes.release_leadership("loop", owner=me)
                    else:
                        reigns.append(Reign(lead.fence, since, lead.lease_until, me))
                    while clock.now() < lead.lease_until + SECOND and not is_over():
                        time.sleep(0.0005)  # stands back, so that the others have a chance
        return reigns

    with ExitStack() as stack:
        children = [stack.enter_context(Child(partial(compete, n))) for n in range(PROCESSES)]
        deadline = time.monotonic() + SECONDS
        while not is_over():
            assert time.monotonic() < deadline, "the lead does not change"
            clock.advance(SECOND // 20)
            time.sleep(0.0005)
        reigns = sorted(reign for child in children for reign in child.result())

    for before, after in pairwise(reigns):
        # Who takes up again a lead that nobody wanted meanwhile, leads on under the same fence.
        assert (after.fence == before.fence) == (after.owner == before.owner)
        assert after.fence - before.fence in (0, 1)
        assert after.since >= before.until, "the next one led before the last one's lease was over"
    assert reigns[-1].fence - reigns[0].fence >= CHANGES


def test_only_the_last_daemon_of_a_node_may_heartbeat(url: str) -> None:
    def join() -> Node:
        with corral.open(url) as store:
            return store.internal.nodes.join("host", "boot", owner=str(os.getpid()))

    nodes = run_concurrently([join] * 6)
    assert len({node.id for node in nodes}) == 1
    assert sorted(node.fence for node in nodes) == [1, 2, 3, 4, 5, 6]
    heard = []
    with corral.open(url) as store:
        for node in nodes:
            with suppress(Held):
                heard.append(store.internal.nodes.heartbeat(node).fence)
        assert heard == [6]
        check_store(store)
