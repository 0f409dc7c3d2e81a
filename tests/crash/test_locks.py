"""Locks after a crash at any commit: no lock is stuck, and no two owners hold the same path."""

from itertools import combinations
from pathlib import Path

from corral.api import Corral
from corral.domain.locks.wait_queue import is_conflict
from corral.kernel.clock import MINUTE
from corral.kernel.errors import Held
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit


def project_of(store: Corral) -> str:
    return store.projects.list().items[0].id


def check_held(store: Corral) -> None:
    """No two live locks that exclude each other are held."""
    held = [lock for lock in store.locks.list().items if lock.state == "held"]
    for one, other in combinations(held, 2):
        assert not is_conflict(one, other), (one, other)


def test_wait_queue_advances_after_a_crash_at_any_commit(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()

    def prepare(store: Corral, world: World) -> None:
        store.projects.register(folder)

    def work(store: Corral, world: World) -> None:
        project = project_of(store)
        first = store.locks.acquire(project, "src/", "a")
        world.note(f"held {first.id}")
        second = store.locks.request(project, "src/x", "b")
        store.locks.request(project, "src/", "c")
        store.locks.renew(first)
        store.locks.release(first)
        world.note(f"released {first.id}")
        store.locks.renew(store.locks.get(second.id))
        store.locks.touch(project, "src/x", "b")
        store.locks.release(store.locks.get(second.id))
        store.locks.revoke(store.locks.list().items[-1].id, reason="enough")
        store.locks.acquire(project, "docs/", "a", run="run_1")
        store.internal.locks.release_for_run("run_1")

    def come_later(store: Corral, world: World) -> None:
        check_held(store)
        store.internal.locks.expire_due()
        check_held(store)
        project = project_of(store)
        lock = store.locks.acquire(project, ".", "late", wait=True, timeout_ms=5_000)
        world.note(f"got {lock.id}")

    def check(store: Corral, world: World) -> None:
        (held,) = store.locks.list().items
        assert world.deeds[-1] == f"got {held.id}"
        for deed in world.deeds:
            verb, id = deed.split()
            found = store.locks.get(id)
            if verb == "released":
                assert found.state == "released"
            letters = store.mail.list(all=True, limit=100).items
            told = [letter.key for letter in letters if letter.key]
            assert len(told) == len({*told}), "told twice"

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(work, prepare=prepare, recover=come_later, check=check)
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
        raise AssertionError("a late release was heard")

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(sweep, prepare=prepare, recover=sweep, check=check, later_ms=1_000),
    )
