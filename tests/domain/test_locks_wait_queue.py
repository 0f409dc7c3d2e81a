"""The wait queue of locks: fair order, one notification, deadlock detection."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.db.database import Database
from corral.domain.locks.model import Lock
from corral.domain.projects.model import Project
from corral.kernel.clock import HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Conflict, Held, Refused
from corral.services.locks import acquisition
from tests.support.store import list_events, raises_without_change, unchanged


@pytest.fixture
def project(store: Corral, tmp_path: Path) -> Project:
    return store.projects.register(tmp_path)


def list_states(store: Corral, *locks: Lock) -> list[str]:
    return [str(store.locks.get(lock.id).state) for lock in locks]


def list_notices(store: Corral, agent: str) -> list[str]:
    return [letter.body["state"] for letter in store.mail.list(mailbox=f"agent:{agent}").items]


def test_requests_are_granted_in_order_with_one_notification(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    held = store.locks.acquire(project.id, "src/", "x")
    y = store.locks.request(project.id, "src/a.py", "y", ttl_ms=MINUTE)
    z = store.locks.request(project.id, "src/", "z")
    assert list_states(store, held, y, z) == ["held", "waiting", "waiting"]
    clock.advance(SECOND)
    store.locks.release(held)
    assert list_states(store, held, y, z) == ["released", "held", "waiting"]
    granted = store.locks.get(y.id)
    assert (granted.held_at, granted.lease_until) == (clock.now(), clock.now() + MINUTE)
    assert (list_notices(store, "y"), list_notices(store, "z")) == (["held"], [])
    store.locks.release(granted)
    assert list_states(store, z) == ["held"]
    assert list_events(store, z.id) == ["lock.request", "lock.grant"]


def test_later_request_waits_behind_conflicts_only(store: Corral, project: Project) -> None:
    store.locks.acquire(project.id, "a", "x", mode="shared")
    writer = store.locks.request(project.id, "a", "y")
    reader = store.locks.request(project.id, "a", "z", mode="shared")
    assert list_states(store, writer, reader) == ["waiting", "waiting"]
    with raises_without_change(store, Held) as caught:
        store.locks.acquire(project.id, "a", "z2", mode="shared")
    assert "queued before you" in caught.value.message
    assert store.locks.request(project.id, "b", "z").state == "held"


def test_compatible_requests_are_granted_together(store: Corral, project: Project) -> None:
    held = store.locks.acquire(project.id, ".", "x")
    waiting = [
        store.locks.request(project.id, "a", "r1", mode="shared"),
        store.locks.request(project.id, "a", "r2", mode="shared"),
        store.locks.request(project.id, "b", "w1"),
        store.locks.request(project.id, "b", "w2"),
    ]
    store.locks.release(held)
    assert list_states(store, *waiting) == ["held", "held", "held", "waiting"]


def test_repeated_request_keeps_its_queue_position(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    store.locks.acquire(project.id, "a", "x", ttl_ms=HOUR)
    request = store.locks.request(project.id, "a", "y", wait_ms=MINUTE)
    clock.advance(30 * SECOND)
    repeated = store.locks.request(project.id, "a", "y", wait_ms=MINUTE)
    assert (repeated.id, repeated.lease_until) == (request.id, clock.now() + MINUTE)
    with raises_without_change(store, Held) as caught:
        store.locks.acquire(project.id, "a", "y")
    assert caught.value.details["owner"] == "agent:x"


def test_withdrawn_request_unblocks_the_next_one(store: Corral, project: Project) -> None:
    reader = store.locks.acquire(project.id, "a", "x", mode="shared")
    writer = store.locks.request(project.id, "a", "y")
    next_reader = store.locks.request(project.id, "a", "z", mode="shared")
    assert store.locks.release(writer).state == "withdrawn"
    assert list_states(store, reader, writer, next_reader) == ["held", "withdrawn", "held"]
    with unchanged(store):
        assert store.locks.release(writer).state == "withdrawn"


@pytest.mark.parametrize(("notify", "letters"), [(True, 1), (False, 0)])
def test_expired_request_notifies_its_owner_if_requested(
    store: Corral, project: Project, clock: ManualClock, notify: bool, letters: int
) -> None:
    store.locks.acquire(project.id, "a", "x", ttl_ms=HOUR)
    expired = store.locks.request(project.id, "a", "y", wait_ms=MINUTE, notify=notify)
    clock.advance(MINUTE)
    assert [lock.id for lock in store.internal.locks.expire_due()] == [expired.id]
    assert list_notices(store, "y") == ["expired"] * letters


def test_queue_position_expires_without_renewal(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    held = store.locks.acquire(project.id, "a", "x", ttl_ms=HOUR)
    expired = store.locks.request(project.id, "a", "y", wait_ms=MINUTE)
    next_request = store.locks.request(project.id, "a", "z", wait_ms=HOUR)
    clock.advance(MINUTE)
    store.locks.release(held)
    assert list_states(store, expired, next_request) == ["expired", "held"]
    assert list_notices(store, "y") == ["expired"]


def test_expiry_sweep_grants_the_next_request_and_notifies_both(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    expiring = store.locks.acquire(project.id, "src/*", "x")
    waiting = store.locks.request(project.id, "./src/a.py", "y")
    clock.advance(5 * MINUTE - 1)
    assert store.internal.locks.expire_due() == []
    clock.advance(1)
    (ended,) = store.internal.locks.expire_due()
    assert (ended.id, ended.state) == (expiring.id, "expired")
    assert list_states(store, waiting) == ["held"]
    assert (list_notices(store, "x"), list_notices(store, "y")) == (["expired"], ["held"])
    with unchanged(store):
        assert store.internal.locks.expire_due() == []
    with raises_without_change(store, Held):
        store.locks.release(expiring)


def test_new_request_does_not_overtake_the_queue_after_an_expiry(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    store.locks.acquire(project.id, "a", "x")
    waiting = store.locks.request(project.id, "a", "y")
    clock.advance(5 * MINUTE)
    with pytest.raises(Held) as caught:
        store.locks.acquire(project.id, "a", "z")
    assert caught.value.details["owner"] == "agent:y"
    assert store.locks.list().items[0].id == waiting.id
    assert list_states(store, waiting) == ["held"]


def test_deadlock_is_detected_and_rejected(store: Corral, project: Project) -> None:
    for name in "abc":
        store.locks.acquire(project.id, name, f"holds-{name}")
    store.locks.request(project.id, "b", "holds-a")
    store.locks.request(project.id, "c", "holds-b")
    with raises_without_change(store, Conflict) as caught:
        store.locks.request(project.id, "a", "holds-c")
    assert "Deadlock" in caught.value.message
    assert store.locks.request(project.id, "a", "waiter").state == "waiting"


def test_timed_out_wait_leaves_the_queue(store: Corral, project: Project) -> None:
    store.locks.acquire(project.id, "a", "x")
    with pytest.raises(Held) as caught:
        store.locks.acquire(project.id, "a", "y", wait=True, timeout_ms=20)
    assert caught.value.details["owner"] == "agent:x"
    assert [lock.owner for lock in store.locks.list().items] == ["agent:x"]
    assert store.locks.acquire(project.id, "b", "y", wait=True).state == "held"


def test_waiting_for_a_lost_request_raises_held(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    store.locks.acquire(project.id, "a", "x", ttl_ms=HOUR)
    waiting = store.locks.request(project.id, "a", "y", wait_ms=MINUTE)
    clock.advance(2 * MINUTE)
    with pytest.raises(Held, match="expired"):
        store.locks.wait(waiting.id)


def test_lock_granted_at_the_end_of_the_timeout_is_returned(
    store: Corral, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = acquisition._wait_until_granted

    def release_after_wait(database: Database, lock: str, timeout_ms: int | None) -> Lock:
        waiting = wait(database, lock, timeout_ms)
        store.locks.release(first)
        return waiting

    monkeypatch.setattr(acquisition, "_wait_until_granted", release_after_wait)
    first = store.locks.acquire(project.id, "a", "x")
    second = store.locks.acquire(project.id, "a", "y", wait=True, timeout_ms=0)
    assert (second.state, second.owner) == ("held", "agent:y")
    first = second
    request = store.locks.request(project.id, "a", "z")
    assert store.locks.wait(request.id, timeout_ms=0).state == "held"


def test_timed_out_wait_behind_an_expired_lock_names_no_owner(
    store: Corral, project: Project, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.locks.acquire(project.id, "a", "x", ttl_ms=SECOND)
    request = store.locks.request(project.id, "a", "y", wait_ms=HOUR)
    clock.advance(MINUTE)
    monkeypatch.setattr(acquisition, "_wait_until_granted", lambda *_: request)
    with pytest.raises(Refused) as caught:
        store.locks.wait(request.id, timeout_ms=0)
    assert (caught.value.details["reason"], caught.value.details["owner"]) == ("locked", None)
