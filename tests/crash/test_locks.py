"""Locks after a crash at any commit: no lock is stuck, and no two owners hold the same path."""

from itertools import combinations
from pathlib import Path

from corral.api import Corral
from corral.domain.locks.wait_queue import is_conflict
from corral.kernel.clock import MINUTE
from corral.kernel.errors import Held
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit


def get_project(store: Corral) -> str:
    return store.projects.list().items[0].id


def check_no_conflicts(store: Corral) -> None:
    """Check that no two held locks conflict."""
    locks = [lock for lock in store.locks.list().items if lock.state == "held"]
    for lock, other in combinations(locks, 2):
        assert not is_conflict(lock, other), (lock, other)


def test_wait_queue_advances_after_a_crash_at_any_commit(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()

    def prepare(store: Corral, world: World) -> None:
        store.projects.register(folder)

    def work(store: Corral, world: World) -> None:
        project = get_project(store)
        first = store.locks.acquire(project, "src/", "a")
        world.record(f"held {first.id}")
        second = store.locks.request(project, "src/x", "b")
        store.locks.request(project, "src/", "c")
        store.locks.renew(first)
        store.locks.release(first)
        world.record(f"released {first.id}")
        store.locks.renew(store.locks.get(second.id))
        store.locks.touch(project, "src/x", "b")
        store.locks.release(store.locks.get(second.id))
        store.locks.revoke(store.locks.list().items[-1].id, reason="not needed")
        store.locks.acquire(project, "docs/", "a", run="run_1")
        store.internal.locks.release_for_run("run_1")

    def acquire_later(store: Corral, world: World) -> None:
        check_no_conflicts(store)
        store.internal.locks.expire_due()
        check_no_conflicts(store)
        project = get_project(store)
        lock = store.locks.acquire(project, ".", "late", wait=True, timeout_ms=5_000)
        world.record(f"acquired {lock.id}")

    def check(store: Corral, world: World) -> None:
        (lock,) = store.locks.list().items
        assert world.records[-1] == f"acquired {lock.id}"
        for record in world.records:
            verb, id = record.split()
            state = store.locks.get(id).state
            if verb == "released":
                assert state == "released"
        letters = store.mail.list(all=True, limit=100).items
        keys = [letter.key for letter in letters if letter.key]
        assert len(keys) == len({*keys}), "notified twice"

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(work, prepare=prepare, recover=acquire_later, check=check)
    )


def test_crashed_expiry_sweep_is_completed_with_one_notification(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()

    def prepare(store: Corral, world: World) -> None:
        project = store.projects.register(folder).id
        store.locks.acquire(project, "a", "x", ttl_ms=MINUTE)
        store.locks.request(project, "a", "y", ttl_ms=10 * MINUTE)
        store.locks.request(project, "a", "z")
        world.clock.advance(MINUTE)

    def sweep(store: Corral, world: World) -> None:
        store.internal.locks.expire_due()

    def check(store: Corral, world: World) -> None:
        states = {lock.owner: lock.state for lock in store.locks.list(all=True).items}
        assert states == {"agent:x": "expired", "agent:y": "held", "agent:z": "waiting"}
        for agent, count in (("x", 1), ("y", 1), ("z", 0)):
            assert len(store.mail.list(mailbox=f"agent:{agent}").items) == count
        try:
            store.locks.release("lck_1", agent="x")
        except Held:
            return
        raise AssertionError("a late release was accepted")

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(sweep, prepare=prepare, recover=sweep, check=check, later_ms=1_000),
    )
