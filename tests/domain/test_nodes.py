"""Nodes: join, heartbeat, leave, lost nodes and leadership of loops."""

import threading
from typing import Any

import pytest

from corral.api import Corral
from corral.domain.nodes import ops
from corral.domain.nodes.model import NodeState
from corral.kernel.clock import DAY, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Ambiguous, Held, IllegalMove, Invalid, NotFound
from corral.kernel.pagination import encode_cursor
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, rows, shared_length, walk


def test_node_joins_with_a_lease(store: Corral, clock: ManualClock) -> None:
    node = store.internal.nodes.join(
        "host", "boot-1", owner="d1", slots=4, labels=["gpu", "big", "gpu"]
    )
    assert node.id.startswith("nod_")
    assert (node.name, node.boot_id, node.state) == ("host", "boot-1", NodeState.UP)
    assert (node.owner, node.fence, node.slots) == ("d1", 1, 4)
    assert node.labels == ["big", "gpu"]
    assert (node.lease_until, node.joined_at) == (clock.now() + 15 * SECOND, clock.now())
    assert store.nodes.get(node.id) == node
    assert list_events(store) == ["node.join"]


def test_rejoining_keeps_the_node_and_increments_the_fence(
    store: Corral, clock: ManualClock
) -> None:
    node = store.internal.nodes.join("host", "boot-1", owner="d1", slots=1)
    clock.advance(5)
    rejoined = store.internal.nodes.join("host", "boot-1", owner="d2", slots=2, labels=["x"])
    assert (rejoined.id, rejoined.fence) == (node.id, node.fence + 1)
    assert (rejoined.owner, rejoined.slots, rejoined.labels) == ("d2", 2, ["x"])
    assert (rejoined.joined_at, rejoined.seen_at) == (node.joined_at, clock.now())
    assert list_events(store) == ["node.join", "node.rejoin"]
    assert rows(store, "SELECT count(*) FROM nodes") == [(1,)]


def test_another_boot_or_host_is_another_node(store: Corral) -> None:
    node = store.internal.nodes.join("host", "boot-1", owner="d")
    assert store.internal.nodes.join("host", "boot-2", owner="d").id != node.id
    assert store.internal.nodes.join("other", "boot-1", owner="d").id != node.id


@each_case(
    "arguments",
    [
        {"name": ""},
        {"name": "a\0"},
        {"name": "x" * 201},
        {"boot_id": ""},
        {"boot_id": "\ud800"},
        {"owner": ""},
        {"owner": "a\0"},
        {"slots": -1},
        {"slots": 10_001},
        {"labels": ["a\0"]},
        {"labels": ["\ud800"]},
        {"lease_ms": 999},
        {"lease_ms": DAY + 1},
    ],
    ids=lambda arguments: ascii(arguments)[:30],
)
def test_invalid_node_is_rejected(store: Corral, arguments: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"name": "host", "boot_id": "boot", "owner": "d", **arguments}
    with raises_without_change(store, Invalid):
        store.internal.nodes.join(fields.pop("name"), fields.pop("boot_id"), **fields)


# -- heartbeats ------------------------------------------------------------------------------


def test_heartbeat_renews_the_lease_and_writes_no_event(store: Corral, clock: ManualClock) -> None:
    node = store.internal.nodes.join("host", "boot", owner="d")
    clock.advance(10 * SECOND)
    renewed = store.internal.nodes.heartbeat(node, lease_ms=20 * SECOND)
    assert (renewed.lease_until, renewed.seen_at) == (clock.now() + 20 * SECOND, clock.now())
    assert (renewed.fence, renewed.state) == (node.fence, NodeState.UP)
    assert list_events(store) == ["node.join"]


def test_heartbeat_with_a_stale_fence_is_rejected(store: Corral) -> None:
    replaced = store.internal.nodes.join("host", "boot", owner="d1")
    store.internal.nodes.join("host", "boot", owner="d2")
    with raises_without_change(store, Held) as caught:
        store.internal.nodes.heartbeat(replaced)
    assert caught.value.details == {
        "fence": 2,
        "yours": 1,
        "owner": "d2",
        "reason": "taken_over",
    }


def test_heartbeat_of_a_lost_node_is_rejected(store: Corral, clock: ManualClock) -> None:
    node = store.internal.nodes.join("host", "boot", owner="d")
    clock.advance(MINUTE)
    store.internal.nodes.mark_lost()
    with raises_without_change(store, Held) as caught:
        store.internal.nodes.heartbeat(node)
    assert caught.value.details["state"] == "lost"


def test_late_heartbeat_is_accepted_while_the_node_is_up(store: Corral, clock: ManualClock) -> None:
    node = store.internal.nodes.join("host", "boot", owner="d")
    clock.advance(MINUTE)
    store.internal.nodes.heartbeat(node)
    assert store.internal.nodes.mark_lost() == []


@each_case("lease_ms", [0, 999, DAY + 1])
def test_heartbeat_with_an_invalid_lease_is_rejected(store: Corral, lease_ms: int) -> None:
    node = store.internal.nodes.join("host", "boot", owner="d")
    with raises_without_change(store, Invalid):
        store.internal.nodes.heartbeat(node, lease_ms=lease_ms)


# -- leaving and lost nodes ------------------------------------------------------------------


def test_node_that_left_is_not_marked_lost(store: Corral, clock: ManualClock) -> None:
    node = store.internal.nodes.join("host", "boot", owner="d")
    assert store.internal.nodes.leave(node).state is NodeState.LEFT
    clock.advance(DAY)
    assert store.internal.nodes.mark_lost() == []
    with raises_without_change(store, IllegalMove):
        store.internal.nodes.leave(node)
    assert list_events(store) == ["node.join", "node.leave"]


def test_leave_with_a_stale_fence_is_rejected(store: Corral) -> None:
    replaced = store.internal.nodes.join("host", "boot", owner="d1")
    store.internal.nodes.join("host", "boot", owner="d2")
    with raises_without_change(store, Held):
        store.internal.nodes.leave(replaced)


def test_nodes_with_an_expired_lease_are_marked_lost(store: Corral, clock: ManualClock) -> None:
    silent = store.internal.nodes.join("silent", "boot", owner="d")
    alive = store.internal.nodes.join("alive", "boot", owner="d", lease_ms=MINUTE)
    clock.advance(15 * SECOND - 1)
    assert store.internal.nodes.mark_lost() == []
    clock.advance(1)
    assert [node.id for node in store.internal.nodes.mark_lost()] == [silent.id]
    assert store.internal.nodes.mark_lost() == []
    assert store.nodes.get(silent.id).state is NodeState.LOST
    assert store.nodes.get(alive.id).state is NodeState.UP
    assert list_events(store, silent.id) == ["node.join", "node.lose"]


@pytest.mark.parametrize("verb", ["leave", "lose"])
def test_lost_node_can_rejoin(store: Corral, clock: ManualClock, verb: str) -> None:
    node = store.internal.nodes.join("host", "boot", owner="d")
    if verb == "leave":
        store.internal.nodes.leave(node)
    clock.advance(MINUTE)
    store.internal.nodes.mark_lost()
    rejoined = store.internal.nodes.join("host", "boot", owner="d")
    assert (rejoined.id, rejoined.state, rejoined.fence) == (node.id, NodeState.UP, 2)


def test_mark_lost_takes_the_oldest_leases_up_to_the_limit(
    store: Corral, clock: ManualClock
) -> None:
    for n in (2, 0, 1):
        store.internal.nodes.join(f"host{n}", "boot", owner="d", lease_ms=(n + 1) * SECOND)
    clock.advance(MINUTE)
    assert [node.name for node in store.internal.nodes.mark_lost(limit=2)] == ["host0", "host1"]
    assert [node.name for node in store.internal.nodes.mark_lost(limit=2)] == ["host2"]
    with raises_without_change(store, Invalid):
        store.internal.nodes.mark_lost(limit=0)


def test_concurrent_heartbeat_keeps_the_node_up(store: Corral, clock: ManualClock) -> None:
    node = store.internal.nodes.join("host", "boot", owner="d")
    clock.advance(MINUTE)
    lost: list[Any] = []
    sweep = threading.Thread(target=lambda: lost.extend(store.internal.nodes.mark_lost()))
    with store.transaction() as tx:
        ops.heartbeat(tx, node)
        sweep.start()
        sweep.join(0.3)  # the sweep skips the node or waits for this transaction
    sweep.join()
    assert lost == []
    assert store.nodes.get(node.id).state is NodeState.UP


# -- lists and lookup ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 50])
def test_nodes_are_listed_newest_first(store: Corral, limit: int) -> None:
    nodes = [store.internal.nodes.join(f"host{n}", "boot", owner="d") for n in range(5)]
    assert walk(store.nodes.list, limit=limit) == nodes[::-1]
    listed = walk(
        store.nodes.list,
        limit=2,
        between=lambda: store.internal.nodes.join("late", "boot", owner="d"),
    )
    assert listed == nodes[::-1]


@each_case("cursor", ["", "x", encode_cursor(1)])
def test_invalid_cursor_is_rejected(store: Corral, cursor: str) -> None:
    with raises_without_change(store, Invalid):
        store.nodes.list(after=cursor)


def test_node_is_found_by_a_unique_prefix(store: Corral, clock: ManualClock) -> None:
    first_node = store.internal.nodes.join("a", "boot", owner="d")
    clock.advance(DAY)
    second_node = store.internal.nodes.join("b", "boot", owner="d")
    shared = shared_length(first_node.id, second_node.id)
    assert store.nodes.get(second_node.id[: shared + 1]) == second_node
    with raises_without_change(store, Ambiguous) as caught:
        store.nodes.get(first_node.id[:shared])
    assert caught.value.details["candidates"] == [first_node.id, second_node.id]
    with raises_without_change(store, NotFound):
        store.nodes.get("nod_zzz")
    with raises_without_change(store, Invalid):
        store.nodes.get("nod_!")


# -- leadership ------------------------------------------------------------------------------


def test_first_candidate_becomes_leader(store: Corral, clock: ManualClock) -> None:
    leadership = store.internal.nodes.acquire_leadership("scheduler", owner="a")
    assert (leadership.name, leadership.owner, leadership.fence) == ("scheduler", "a", 1)
    assert leadership.lease_until == clock.now() + 15 * SECOND


def test_another_candidate_gets_the_leader_and_its_lease(store: Corral) -> None:
    leadership = store.internal.nodes.acquire_leadership("scheduler", owner="a")
    with raises_without_change(store, Held) as caught:
        store.internal.nodes.acquire_leadership("scheduler", owner="b")
    assert caught.value.details == {"owner": "a", "lease_until": leadership.lease_until}
    assert store.internal.nodes.acquire_leadership("alert_sender", owner="b").owner == "b"


def test_renewing_leadership_keeps_the_fence(store: Corral, clock: ManualClock) -> None:
    store.internal.nodes.acquire_leadership("scheduler", owner="a")
    clock.advance(10 * SECOND)
    renewed = store.internal.nodes.acquire_leadership("scheduler", owner="a")
    assert (renewed.fence, renewed.lease_until) == (1, clock.now() + 15 * SECOND)


def test_expired_leadership_is_acquired_with_a_higher_fence(
    store: Corral, clock: ManualClock
) -> None:
    store.internal.nodes.acquire_leadership("scheduler", owner="a")
    clock.advance(15 * SECOND - 1)
    with raises_without_change(store, Held):
        store.internal.nodes.acquire_leadership("scheduler", owner="b")
    clock.advance(1)
    assert store.internal.nodes.acquire_leadership("scheduler", owner="b").fence == 2
    with raises_without_change(store, Held):
        store.internal.nodes.acquire_leadership("scheduler", owner="a")


def test_released_leadership_can_be_acquired_at_once(store: Corral) -> None:
    store.internal.nodes.acquire_leadership("scheduler", owner="a")
    assert store.internal.nodes.release_leadership("scheduler", owner="b") is False
    assert store.internal.nodes.release_leadership("scheduler", owner="a") is True
    leadership = store.internal.nodes.acquire_leadership("scheduler", owner="b")
    assert (leadership.owner, leadership.fence) == ("b", 2)
    assert store.internal.nodes.release_leadership("scheduler", owner="a") is False
    assert store.internal.nodes.release_leadership("unknown", owner="a") is False


@each_case(
    ("name", "owner", "lease_ms"),
    [
        ("", "a", 15_000),
        ("n\0", "a", 15_000),
        ("\ud800", "a", 15_000),
        ("n", "", 15_000),
        ("n", "a\0", 15_000),
        ("n", "a", 1),
        ("n", "a", DAY + 1),
    ],
    ids=range(7),
)
def test_invalid_leadership_is_rejected(
    store: Corral, name: str, owner: str, lease_ms: int
) -> None:
    with raises_without_change(store, Invalid):
        store.internal.nodes.acquire_leadership(name, owner=owner, lease_ms=lease_ms)


@each_case(("name", "owner"), [("n\0", "a"), ("n", "a\0"), ("\ud800", "a")], ids=ascii)
def test_releasing_without_an_owner_is_rejected(store: Corral, name: str, owner: str) -> None:
    with raises_without_change(store, Invalid):
        store.internal.nodes.release_leadership(name, owner=owner)


def test_leadership_writes_no_event(store: Corral) -> None:
    store.internal.nodes.acquire_leadership("scheduler", owner="a")
    store.internal.nodes.release_leadership("scheduler", owner="a")
    assert list_events(store) == []


def test_labels_of_a_node_are_a_list(store: Corral) -> None:
    node = store.internal.nodes.join("host", "boot", owner="d", labels=["ü", "a b"])
    assert store.nodes.get(node.id).labels == ["a b", "ü"]


# -- renewal of node and leaderships -----------------------------------------------------------


def test_renew_extends_the_lease_and_acquires_free_leaderships(
    store: Corral, clock: ManualClock
) -> None:
    node = store.internal.nodes.join("local", "boot", owner="d1")
    other_node = store.internal.nodes.join("remote", "boot", owner="d2")
    store.internal.nodes.acquire_leadership("alert_sender", owner="d2")
    clock.advance(SECOND)
    renewal = store.internal.nodes.renew(
        node, loops=["scheduler", "alert_sender"], lease_ms=20 * SECOND
    )
    assert renewal.node.lease_until == clock.now() + 20 * SECOND
    assert [(leadership.name, leadership.owner) for leadership in renewal.leaderships] == [
        ("alert_sender", "d2"),
        ("scheduler", "d1"),
    ]
    clock.advance(16 * SECOND)
    renewal = store.internal.nodes.renew(node, loops=["scheduler", "alert_sender"])
    assert {leadership.owner for leadership in renewal.leaderships} == {"d1"}
    with raises_without_change(store, Held):
        store.internal.nodes.acquire_leadership("alert_sender", owner="d2")
    assert [leadership.name for leadership in store.nodes.leaders()] == [
        "alert_sender",
        "scheduler",
    ]
    assert store.nodes.daemon_of("remote") is None, "the lease of the other node expired"
    assert store.nodes.daemon_of("local") == renewal.node
    assert store.nodes.get(other_node.id).state is NodeState.UP, "the node is not marked lost yet"


def test_renew_with_a_stale_fence_acquires_no_leadership(store: Corral) -> None:
    replaced = store.internal.nodes.join("local", "boot", owner="d1")
    store.internal.nodes.join("local", "boot", owner="d2")
    with raises_without_change(store, Held):
        store.internal.nodes.renew(replaced, loops=["scheduler"])
    assert store.nodes.leaders() == []
