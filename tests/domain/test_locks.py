"""Locks: acquire, renew, release, revoke, expiry, lists and file touches."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.locks import ops
from corral.domain.projects.model import Project
from corral.kernel.clock import DAY, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Held, Invalid, NotFound, Refused
from corral.kernel.exit_status import ExitStatus
from tests.support.grouped_cases import each_case
from tests.support.run_factories import running, without_supervisors
from tests.support.store import list_events, raises_without_change, rows, unchanged, walk


@pytest.fixture
def project(store: Corral, tmp_path: Path) -> Project:
    (tmp_path / "project" / "src").mkdir(parents=True)
    return store.projects.register(tmp_path / "project")


def test_lock_is_held_until_its_lease_expires(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    lock = store.locks.acquire(project.id, "./src/a.py", "ada", reason="fix it")
    assert (lock.id, lock.fence, lock.state) == ("lck_1", 1, "held")
    assert (lock.path, lock.mode, lock.owner) == ("src/a.py", "exclusive", "agent:ada")
    assert (lock.reason, lock.lease_until) == ("fix it", clock.now() + 5 * MINUTE)
    assert store.locks.get(lock.id) == lock
    assert store.locks.holders(project.id, "src/a.py") == [lock]
    clock.advance(5 * MINUTE)
    assert store.locks.holders(project.id, "src/a.py") == []
    assert list_events(store, lock.id) == ["lock.acquire"]


def test_conflict_error_names_owner_and_end_of_lease(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    lock = store.locks.acquire(project.id, "src/*", "x", reason="a new parser")
    with raises_without_change(store, Held) as caught:
        store.locks.acquire(project.id, "./src/a.py", "y")
    assert caught.value.details == {
        "path": "src/a.py",
        "lock": lock.id,
        "owner": "agent:x",
        "locked": "src/",
        "mode": "exclusive",
        "until": clock.now() + 5 * MINUTE,
        "reason": "locked",
    }
    for value in ("agent:x", "src/", "a new parser", "2027-01-15 08:05:00 UTC", "5m"):
        assert value in caught.value.message


@each_case("path", ["/", "../x", "/etc", "a\nb", "", "a\0", "src/*/../../x"])
def test_path_outside_the_project_or_invalid_path_is_rejected(
    store: Corral, project: Project, path: str
) -> None:
    with raises_without_change(store, Invalid):
        store.locks.acquire(project.id, path, "ada")


def test_invalid_arguments_are_rejected_before_any_write(store: Corral, project: Project) -> None:
    for options in (
        {"mode": "unknown"},
        {"ttl_ms": 1},
        {"ttl_ms": 2 * DAY},
        {"reason": "x" * 2_000},
    ):
        with raises_without_change(store, Invalid):
            store.locks.acquire(project.id, "a", "ada", **options)
    for owner in ("", "a b", "place:x", "agent:", "x:y"):
        with raises_without_change(store, Invalid):
            store.locks.acquire(project.id, "a", owner)
    with raises_without_change(store, NotFound):
        store.locks.acquire(project.id, "a", "agt_0")
    with raises_without_change(store, NotFound):
        store.locks.acquire("prj_zzz", "a", "ada")


def test_owner_may_be_an_agent_name_an_agent_id_or_a_person(
    store: Corral, project: Project
) -> None:
    ada = store.agents.create("ada")
    lock = store.locks.acquire(project.id, "a", ada.id)
    assert store.locks.acquire(project.id, "a", "ada").id == lock.id
    assert store.locks.acquire(project.id, "b", "user:ben").owner == "user:ben"
    assert store.locks.acquire(project.dir, "c", "ada").project_id == project.id


def test_glob_with_a_hundred_stars_is_matched_quickly(store: Corral, project: Project) -> None:
    store.locks.acquire(project.id, "*a" * 100, "x")
    store.locks.acquire(project.id, "b/" + "*" * 100, "x")
    assert store.locks.acquire(project.id, "b.py", "y").state == "held"
    with pytest.raises(Held):
        store.locks.acquire(project.id, "b/" + "*x" * 100, "y")
    with raises_without_change(store, Invalid):  # matching long globs would make every release slow
        store.locks.acquire(project.id, "*x" * 200, "y")


def test_shared_locks_coexist_and_exclude_an_exclusive_lock(
    store: Corral, project: Project
) -> None:
    store.locks.acquire(project.id, "docs/", "x", mode="shared")
    store.locks.acquire(project.id, "docs/a.md", "y", mode="shared")
    assert len(store.locks.holders(project.id, "docs/a.md")) == 2
    with raises_without_change(store, Held):
        store.locks.acquire(project.id, "docs/a.md", "z")
    with raises_without_change(store, Held):
        store.locks.acquire(project.id, "docs/a.md", "y")  # x still has a shared lock
    assert store.locks.acquire(project.id, "docs/b.md", "x").mode == "exclusive"


def test_acquiring_again_renews_and_own_locks_never_conflict(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    lock = store.locks.acquire(project.id, "src/", "ada")
    clock.advance(MINUTE)
    renewed = store.locks.acquire(project.id, "src", "ada")
    assert (renewed.id, renewed.lease_until) == (lock.id, clock.now() + 5 * MINUTE)
    nested = store.locks.acquire(project.id, "src/a.py", "ada", ttl_ms=MINUTE)
    assert nested.id != lock.id
    shorter = store.locks.acquire(project.id, "src", "ada", ttl_ms=SECOND)
    assert shorter.lease_until == renewed.lease_until  # a renewal never shortens the lease


def test_two_runs_of_one_agent_are_separate_owners(store: Corral, project: Project) -> None:
    store.locks.acquire(project.id, "a", "ada", run="run_1")
    with raises_without_change(store, Held):
        store.locks.acquire(project.id, "a", "ada", run="run_2")
    (conflict,) = store.guard.check(project.id, ["a"], "ada", run="run_2")
    assert conflict.lock.run_id == "run_1"
    assert store.guard.check(project.id, ["a"], "ada", run="run_1") == []
    assert store.guard.check(project.id, ["a"], "ada") == []


def test_released_path_is_free_and_release_is_idempotent(store: Corral, project: Project) -> None:
    lock = store.locks.acquire(project.id, "a", "x")
    released = store.locks.release(lock)
    assert (released.state, released.ended_by) == ("released", "user:tester")
    with unchanged(store):
        assert store.locks.release(lock) == released
    assert store.locks.acquire(project.id, "a", "y").fence == 2
    assert list_events(store, "lck_1") == ["lock.acquire", "lock.release"]


def test_lock_of_another_owner_cannot_be_released_or_renewed(
    store: Corral, project: Project
) -> None:
    lock = store.locks.acquire(project.id, "a", "x")
    for verb in (store.locks.release, store.locks.renew):
        with raises_without_change(store, Held):
            verb(lock.id, agent="y")
        with raises_without_change(store, Invalid):
            verb(lock.id)
        with raises_without_change(store, NotFound):
            verb("lck_99", agent="x")
    assert store.locks.release(lock.id, agent="x").state == "released"


def test_expired_owner_is_rejected_with_the_new_owner(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    expired = store.locks.acquire(project.id, "src/", "x")
    clock.advance(5 * MINUTE)
    for verb in (store.locks.renew, store.locks.release):
        with raises_without_change(store, Held):
            verb(expired)
    new_lock = store.locks.acquire(project.id, "src/a.py", "y")
    assert new_lock.fence > expired.fence
    assert store.locks.get(expired.id).state == "expired"
    for verb in (store.locks.renew, store.locks.release):
        with raises_without_change(store, Held) as caught:
            verb(expired)
        assert caught.value.details["owner"] == "agent:y"
        assert caught.value.details["reason"] == "expired"
    (letter,) = store.mail.list(mailbox="agent:x").items
    assert (letter.body["lock"], letter.body["state"]) == (expired.id, "expired")


def test_renewed_lock_outlives_its_first_lease(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    lock = store.locks.acquire(project.id, "a", "x", ttl_ms=MINUTE)
    for _ in range(5):
        clock.advance(50 * SECOND)
        lock = store.locks.renew(lock)
    assert lock.lease_until == clock.now() + MINUTE
    assert store.locks.renew(lock, ttl_ms=DAY).lease_until == clock.now() + DAY
    with raises_without_change(store, Held):
        store.locks.acquire(project.id, "a", "y")


def test_person_can_revoke_a_lock_with_notification_and_agent_cannot(
    store: Corral, project: Project
) -> None:
    lock = store.locks.acquire(project.id, "a", "x")
    with store.transaction() as tx:
        tx.actor = "agent:y"
        with pytest.raises(Refused):
            ops.revoke(tx, lock.id, reason="take over")
    revoked = store.locks.revoke(lock.id, reason="x crashed")
    assert (revoked.state, revoked.ended_by) == ("revoked", "user:tester")
    (letter,) = store.mail.list(mailbox="agent:x").items
    assert "x crashed" in letter.body["text"]
    with raises_without_change(store, Held) as caught:
        store.locks.release(lock)
    assert caught.value.details["reason"] == "revoked"
    assert store.locks.acquire(project.id, "a", "y").state == "held"


def test_run_heartbeats_renew_its_locks_and_its_end_releases_them(
    store: Corral, project: Project, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_supervisors(monkeypatch)
    run = running(store)
    lock = store.locks.acquire(project.id, "a", "x", run=run.id)
    lock_without_run = store.locks.acquire(project.id, "b", "x")
    for _ in range(8):
        clock.advance(50 * SECOND)
        run = store.internal.runs.heartbeat(run, output_bytes=0)
    assert store.locks.get(lock.id).lease_until == clock.now() + 5 * MINUTE
    assert store.locks.holders(project.id, "b") == []
    request = store.locks.request(project.id, "a", "y")
    store.internal.runs.clean_up(store.internal.runs.record_end(run, ExitStatus(exit_code=0)))
    assert store.locks.get(lock.id).state == "released"
    assert store.locks.get(request.id).state == "held"
    assert store.locks.get(lock_without_run.id).owner == "agent:x"
    with unchanged(store):
        assert store.internal.locks.release_for_run(run.id) == []


def test_heartbeat_does_not_revive_an_expired_lock(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    run = running(store)
    lock = store.locks.acquire(project.id, "a", "x", run=run.id, ttl_ms=SECOND)
    clock.advance(2 * SECOND)
    store.internal.runs.heartbeat(run, output_bytes=0)
    assert store.locks.get(lock.id).lease_until < clock.now()


def test_locks_of_different_projects_do_not_conflict(
    store: Corral, project: Project, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other_project = store.projects.register(tmp_path / "other")
    store.locks.acquire(project.id, ".", "x")
    assert store.locks.acquire(other_project.id, ".", "y").state == "held"
    with raises_without_change(store, Held):
        store.locks.acquire(project.id, "anything", "y")


def test_deleting_a_project_ends_its_locks_and_deletes_file_touches(
    store: Corral, project: Project
) -> None:
    held = store.locks.acquire(project.id, "a", "x")
    store.locks.request(project.id, "a", "y")
    store.locks.touch(project.id, "a", "x")
    store.projects.delete(project.id)
    assert store.locks.list().items == []
    assert store.locks.get(held.id).state == "revoked"
    assert rows(store, "SELECT count(*) FROM file_touches") == [(0,)]


def test_number_of_locks_per_owner_is_limited(
    store: Corral, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MAX_LOCKS", 3)
    for name in "abc":
        store.locks.acquire(project.id, name, "x")
    with raises_without_change(store, Refused):
        store.locks.acquire(project.id, "d", "x")
    assert store.locks.acquire(project.id, "d", "y").state == "held"


def test_lists_are_paginated_by_path_owner_and_age(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    for number, name in enumerate(["d", "b/x", "b/*.py", "a", "c"]):
        store.locks.acquire(project.id, name, "xy"[number % 2])
    held_locks = walk(store.locks.list)
    assert [lock.path for lock in held_locks] == ["a", "b/*.py", "b/x", "c", "d"]
    assert walk(store.locks.list, project=project.id) == held_locks
    assert [lock.path for lock in walk(store.locks.list, agent="y")] == ["b/x", "a"]
    store.locks.release(held_locks[0])
    newest = ["c", "a", "b/*.py", "b/x", "d"]
    assert [lock.path for lock in walk(store.locks.list, all=True)] == newest
    assert [lock.path for lock in walk(store.locks.list, all=True, project=project.id)] == newest
    clock.advance(5 * MINUTE)
    assert store.locks.list().items == []
    states = {lock.state for lock in store.locks.list(all=True).items}
    assert states == {"released", "expired"}
    with raises_without_change(store, Invalid):
        store.locks.list(agent="x", project=project.id)


def test_file_touches_are_counted_and_listed_by_file_folder_and_owner(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    first_at = clock.now()
    for path, owner in [("src/a.py", "x"), ("src/a.py", "y"), ("src-old", "x"), ("src/b.py", "x")]:
        store.locks.touch(project.id, path, owner)
    clock.advance(MINUTE)
    repeated = store.locks.touch(project.id, "./src/a.py", "x")
    assert (repeated.count, repeated.first_at, repeated.last_at) == (2, first_at, clock.now())
    by_file = walk(store.locks.touches, project=project.id, path="src/a.py", limit=1)
    assert [(touch.owner, touch.count) for touch in by_file] == [("agent:x", 2), ("agent:y", 1)]
    in_folder = walk(store.locks.touches, project=project.id, path="src", limit=2)
    assert [touch.path for touch in in_folder] == ["src/a.py", "src/a.py", "src/b.py"]
    of_owner = walk(store.locks.touches, project=project.id, agent="x", limit=1)
    assert [touch.path for touch in of_owner] == ["src-old", "src/a.py", "src/b.py"]


def test_check_of_many_paths_returns_those_locked_by_others(
    store: Corral, project: Project
) -> None:
    lock = store.locks.acquire(project.id, "src/", "x")
    store.locks.acquire(project.id, "docs/", "y")
    for paths in (["src/1", "docs/1"], ["src/1", *(f"docs/{n}" for n in range(9))]):
        (conflict,) = store.guard.check(project.id, paths, "y")
        assert (conflict.path, conflict.lock) == ("src/1", lock)
        assert "agent:x" in conflict.text
    assert store.guard.check(project.id, [], "y") == []


def test_retention_deletes_old_locks_and_file_touches(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    released = store.locks.release(store.locks.acquire(project.id, "a", "x"))
    store.locks.touch(project.id, "a", "x")
    store.locks.touch(project.id, "b", "x")
    clock.advance(366 * DAY)
    store.locks.touch(project.id, "b", "x")
    newest = store.locks.acquire(project.id, "a", "x")
    pruned = {result.table: result.rows for result in store.db.prune()}
    assert (pruned["locks"], pruned["file_touches"]) == (1, 1)
    with pytest.raises(NotFound):
        store.locks.get(released.id)
    assert store.locks.get(newest.id).state == "held"
