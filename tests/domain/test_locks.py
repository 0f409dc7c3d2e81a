"""Locks: who holds a path, until when, and what others are told."""

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
from tests.support.store import record, refuses, rows, unchanged, walk


@pytest.fixture
def project(store: Corral, tmp_path: Path) -> Project:
    (tmp_path / "project" / "src").mkdir(parents=True)
    return store.projects.register(tmp_path / "project")


def test_a_lock_is_held_until_its_time_is_over(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    lock = store.locks.acquire(project.id, "./src/a.py", "ada", reason="mend it")
    assert (lock.id, lock.fence, lock.state) == ("lck_1", 1, "held")
    assert (lock.path, lock.mode, lock.owner) == ("src/a.py", "exclusive", "agent:ada")
    assert (lock.reason, lock.lease_until) == ("mend it", clock.now() + 5 * MINUTE)
    assert store.locks.get(lock.id) == lock
    assert store.locks.holders(project.id, "src/a.py") == [lock]
    clock.advance(5 * MINUTE)
    assert store.locks.holders(project.id, "src/a.py") == []
    assert record(store, lock.id) == ["lock.acquire"]


def test_what_another_holds_is_refused_with_who_and_until_when(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    lock = store.locks.acquire(project.id, "src/*", "x", reason="a new parser")
    with refuses(store, Held) as caught:
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
def test_a_path_outside_of_the_project_or_without_sense_is_refused(
    store: Corral, project: Project, path: str
) -> None:
    with refuses(store, Invalid):
        store.locks.acquire(project.id, path, "ada")


def test_what_cannot_be_is_refused_before_anything_is_written(
    store: Corral, project: Project
) -> None:
    for wrong in ({"mode": "mine"}, {"ttl_ms": 1}, {"ttl_ms": 2 * DAY}, {"reason": "x" * 2_000}):
        with refuses(store, Invalid):
            store.locks.acquire(project.id, "a", "ada", **wrong)
    for who in ("", "a b", "place:x", "agent:", "x:y"):
        with refuses(store, Invalid):
            store.locks.acquire(project.id, "a", who)
    with refuses(store, NotFound):
        store.locks.acquire(project.id, "a", "agt_0")
    with refuses(store, NotFound):
        store.locks.acquire("prj_zzz", "a", "ada")


def test_an_agent_is_known_by_name_and_id_alike_and_people_hold_locks_too(
    store: Corral, project: Project
) -> None:
    ada = store.agents.create("ada")
    first = store.locks.acquire(project.id, "a", ada.id)
    assert store.locks.acquire(project.id, "a", "ada").id == first.id
    assert store.locks.acquire(project.id, "b", "user:ben").owner == "user:ben"
    assert store.locks.acquire(project.dir, "c", "ada").project_id == project.id


def test_a_glob_of_a_hundred_stars_is_harmless(store: Corral, project: Project) -> None:
    store.locks.acquire(project.id, "*a" * 100, "x")
    store.locks.acquire(project.id, "b/" + "*" * 100, "x")
    assert store.locks.acquire(project.id, "b.py", "y").state == "held"
    with pytest.raises(Held):
        store.locks.acquire(project.id, "b/" + "*x" * 100, "y")
    with refuses(store, Invalid):  # a line of such would take its time at every release
        store.locks.acquire(project.id, "*x" * 200, "y")


def test_shared_locks_are_held_together_and_keep_an_exclusive_one_away(
    store: Corral, project: Project
) -> None:
    store.locks.acquire(project.id, "docs/", "x", mode="shared")
    store.locks.acquire(project.id, "docs/a.md", "y", mode="shared")
    assert len(store.locks.holders(project.id, "docs/a.md")) == 2
    with refuses(store, Held):
        store.locks.acquire(project.id, "docs/a.md", "z")
    with refuses(store, Held):
        store.locks.acquire(project.id, "docs/a.md", "y")  # x reads it still
    assert store.locks.acquire(project.id, "docs/b.md", "x").mode == "exclusive"


def test_the_same_again_renews_and_ones_own_are_never_in_the_way(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    first = store.locks.acquire(project.id, "src/", "ada")
    clock.advance(MINUTE)
    again = store.locks.acquire(project.id, "src", "ada")
    assert (again.id, again.lease_until) == (first.id, clock.now() + 5 * MINUTE)
    inner = store.locks.acquire(project.id, "src/a.py", "ada", ttl_ms=MINUTE)
    assert inner.id != first.id
    shorter = store.locks.acquire(project.id, "src", "ada", ttl_ms=SECOND)
    assert shorter.lease_until == again.lease_until  # a renewal never takes time away


def test_two_runs_of_one_agent_are_two_owners(store: Corral, project: Project) -> None:
    store.locks.acquire(project.id, "a", "ada", run="run_1")
    with refuses(store, Held):
        store.locks.acquire(project.id, "a", "ada", run="run_2")
    (found,) = store.guard.check(project.id, ["a"], "ada", run="run_2")
    assert found.lock.run_id == "run_1"
    assert store.guard.check(project.id, ["a"], "ada", run="run_1") == []
    assert store.guard.check(project.id, ["a"], "ada") == []


def test_a_released_path_is_free_and_releasing_twice_is_fine(
    store: Corral, project: Project
) -> None:
    lock = store.locks.acquire(project.id, "a", "x")
    released = store.locks.release(lock)
    assert (released.state, released.ended_by) == ("released", "user:tester")
    with unchanged(store):
        assert store.locks.release(lock) == released
    assert store.locks.acquire(project.id, "a", "y").fence == 2
    assert record(store, "lck_1") == ["lock.acquire", "lock.release"]


def test_nobody_gives_back_or_renews_what_is_anothers(store: Corral, project: Project) -> None:
    lock = store.locks.acquire(project.id, "a", "x")
    for verb in (store.locks.release, store.locks.renew):
        with refuses(store, Held):
            verb(lock.id, agent="y")
        with refuses(store, Invalid):
            verb(lock.id)
        with refuses(store, NotFound):
            verb("lck_99", agent="x")
    assert store.locks.release(lock.id, agent="x").state == "released"


def test_a_late_owner_is_refused_and_told_who_has_it_now(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    late = store.locks.acquire(project.id, "src/", "x")
    clock.advance(5 * MINUTE)
    for verb in (store.locks.renew, store.locks.release):
        with refuses(store, Held):
            verb(late)
    now = store.locks.acquire(project.id, "src/a.py", "y")
    assert now.fence > late.fence
    assert store.locks.get(late.id).state == "expired"
    for verb in (store.locks.renew, store.locks.release):
        with refuses(store, Held) as caught:
            verb(late)
        assert "agent:y" in caught.value.message
        assert "expired" in caught.value.message
    (letter,) = store.mail.list(mailbox="agent:x").items
    assert (letter.body["lock"], letter.body["state"]) == (late.id, "expired")


def test_a_lock_that_is_renewed_outlives_its_time(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    lock = store.locks.acquire(project.id, "a", "x", ttl_ms=MINUTE)
    for _ in range(5):
        clock.advance(50 * SECOND)
        lock = store.locks.renew(lock)
    assert lock.lease_until == clock.now() + MINUTE
    assert store.locks.renew(lock, ttl_ms=DAY).lease_until == clock.now() + DAY
    with refuses(store, Held):
        store.locks.acquire(project.id, "a", "y")


def test_a_person_takes_a_lock_away_and_its_owner_is_told_but_an_agent_cannot(
    store: Corral, project: Project
) -> None:
    lock = store.locks.acquire(project.id, "a", "x")
    with store.transaction() as tx:
        tx.actor = "agent:y"
        with pytest.raises(Refused):
            ops.revoke(tx, lock.id, reason="mine")
    revoked = store.locks.revoke(lock.id, reason="x is gone")
    assert (revoked.state, revoked.ended_by) == ("revoked", "user:tester")
    (letter,) = store.mail.list(mailbox="agent:x").items
    assert "x is gone" in letter.body["text"]
    with refuses(store, Held):
        store.locks.release(lock)
    assert store.locks.acquire(project.id, "a", "y").state == "held"


def test_the_heartbeats_of_a_run_keep_its_locks_and_its_end_gives_them_back(
    store: Corral, project: Project, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_supervisors(monkeypatch)
    run = running(store)
    lock = store.locks.acquire(project.id, "a", "x", run=run.id)
    other = store.locks.acquire(project.id, "b", "x")
    for _ in range(8):
        clock.advance(50 * SECOND)
        run = store.runs.heartbeat(run, output_bytes=0)
    assert store.locks.get(lock.id).lease_until == clock.now() + 5 * MINUTE
    assert store.locks.holders(project.id, "b") == []
    waiting = store.locks.request(project.id, "a", "y")
    store.runs.clean_up(store.runs.end(run, ExitStatus(exit_code=0)))
    assert store.locks.get(lock.id).state == "released"
    assert store.locks.get(waiting.id).state == "held"
    assert store.locks.get(other.id).owner == "agent:x"
    with unchanged(store):
        assert store.locks.release_for_run(run.id) == []


def test_a_heartbeat_does_not_bring_back_what_had_run_out(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    run = running(store)
    lock = store.locks.acquire(project.id, "a", "x", run=run.id, ttl_ms=SECOND)
    clock.advance(2 * SECOND)
    store.runs.heartbeat(run, output_bytes=0)
    assert store.locks.get(lock.id).lease_until < clock.now()


def test_the_projects_do_not_see_each_others_locks(
    store: Corral, project: Project, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = store.projects.register(tmp_path / "other")
    store.locks.acquire(project.id, ".", "x")
    assert store.locks.acquire(other.id, ".", "y").state == "held"
    with refuses(store, Held):
        store.locks.acquire(project.id, "anything", "y")


def test_a_deleted_project_leaves_no_live_lock_and_no_touch(
    store: Corral, project: Project
) -> None:
    held = store.locks.acquire(project.id, "a", "x")
    store.locks.request(project.id, "a", "y")
    store.locks.touch(project.id, "a", "x")
    store.projects.delete(project.id)
    assert store.locks.list().items == []
    assert store.locks.get(held.id).state == "revoked"
    assert rows(store, "SELECT count(*) FROM file_touches") == [(0,)]


def test_one_owner_cannot_have_locks_without_end(
    store: Corral, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MAX_LOCKS", 3)
    for name in "abc":
        store.locks.acquire(project.id, name, "x")
    with refuses(store, Refused):
        store.locks.acquire(project.id, "d", "x")
    assert store.locks.acquire(project.id, "d", "y").state == "held"


def test_lists_are_paged_by_path_by_owner_and_by_age(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    for number, name in enumerate(["d", "b/x", "b/*.py", "a", "c"]):
        store.locks.acquire(project.id, name, "xy"[number % 2])
    live = walk(store.locks.list)
    assert [lock.path for lock in live] == ["a", "b/*.py", "b/x", "c", "d"]
    assert walk(store.locks.list, project=project.id) == live
    assert [lock.path for lock in walk(store.locks.list, agent="y")] == ["b/x", "a"]
    store.locks.release(live[0])
    newest = ["c", "a", "b/*.py", "b/x", "d"]
    assert [lock.path for lock in walk(store.locks.list, all=True)] == newest
    assert [lock.path for lock in walk(store.locks.list, all=True, project=project.id)] == newest
    clock.advance(5 * MINUTE)
    assert store.locks.list().items == []
    states = {lock.state for lock in store.locks.list(all=True).items}
    assert states == {"released", "expired"}
    with refuses(store, Invalid):
        store.locks.list(agent="x", project=project.id)


def test_who_touched_a_file_is_counted_and_found_by_file_folder_and_owner(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    began = clock.now()
    for path, who in [("src/a.py", "x"), ("src/a.py", "y"), ("src-old", "x"), ("src/b.py", "x")]:
        store.locks.touch(project.id, path, who)
    clock.advance(MINUTE)
    again = store.locks.touch(project.id, "./src/a.py", "x")
    assert (again.count, again.first_at, again.last_at) == (2, began, clock.now())
    by_file = walk(store.locks.touches, project=project.id, path="src/a.py", limit=1)
    assert [(touch.owner, touch.count) for touch in by_file] == [("agent:x", 2), ("agent:y", 1)]
    below = walk(store.locks.touches, project=project.id, path="src", limit=2)
    assert [touch.path for touch in below] == ["src/a.py", "src/a.py", "src/b.py"]
    mine = walk(store.locks.touches, project=project.id, agent="x", limit=1)
    assert [touch.path for touch in mine] == ["src-old", "src/a.py", "src/b.py"]


def test_of_many_paths_those_are_named_that_others_hold(store: Corral, project: Project) -> None:
    lock = store.locks.acquire(project.id, "src/", "x")
    store.locks.acquire(project.id, "docs/", "y")
    for paths in (["src/1", "docs/1"], ["src/1", *(f"docs/{n}" for n in range(9))]):
        (found,) = store.guard.check(project.id, paths, "y")
        assert (found.path, found.lock) == ("src/1", lock)
        assert "agent:x" in found.text
    assert store.guard.check(project.id, [], "y") == []


def test_old_locks_and_touches_are_forgotten(
    store: Corral, project: Project, clock: ManualClock
) -> None:
    old = store.locks.release(store.locks.acquire(project.id, "a", "x"))
    store.locks.touch(project.id, "a", "x")
    store.locks.touch(project.id, "b", "x")
    clock.advance(366 * DAY)
    store.locks.touch(project.id, "b", "x")
    newest = store.locks.acquire(project.id, "a", "x")
    forgotten = {each.table: each.rows for each in store.db.prune()}
    assert (forgotten["locks"], forgotten["file_touches"]) == (1, 1)
    with pytest.raises(NotFound):
        store.locks.get(old.id)
    assert store.locks.get(newest.id).state == "held"
