"""A project's board as it was at a moment."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.clock import MINUTE, ManualClock
from corral.kernel.errors import Invalid, NotFound
from tests.support.task_factories import fail, finish, project_with

STEP = MINUTE


def states(store: Corral, project: str, at: int) -> dict[str, str | None]:
    return {task.key: task.state for task in store.insights.board_at(project, at).tasks}


def test_future_time_and_an_unknown_project_are_rejected(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path)
    for at in (clock.now() + 1, 0, -5):
        with pytest.raises(Invalid, match="must be in the past"):
            store.insights.board_at(project, at)
    with pytest.raises(NotFound):
        store.insights.board_at("prj_00000000000000000000000000", clock.now())


def test_board_is_reconstructed_for_any_time(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    before = clock.now()
    clock.advance(STEP)
    project = project_with(store, tmp_path, "A", "B:A", "C:B", agents=("ada", "ben"))
    seen: dict[int, dict[str, str | None]] = {before: {}}

    def look() -> None:
        seen[clock.now()] = {task.key: task.state for task in store.tasks.list(limit=50).items}
        clock.advance(STEP)

    look()
    store.tasks.claim(project, "ada", key="A")
    look()
    store.tasks.fail("A", "no way", agent="ada")
    look()
    store.tasks.retry("A")
    look()
    finish(store, project, "A", "ben")
    look()
    store.tasks.pause("B")
    look()
    store.tasks.resume("B")
    store.tasks.skip("B")
    look()
    assert seen[clock.now() - 5 * STEP] == {"A": "failed", "B": "blocked", "C": "blocked"}
    for at, board in seen.items():
        assert states(store, project, at) == board
        if board:  # until the next change it stays so
            assert states(store, project, at + STEP - 1) == board


def test_past_board_has_agent_and_actor_of_each_task(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", agents=("ada", "ben"))
    clock.advance(STEP)
    store.tasks.claim(project, "ada", key="A")
    taken = clock.now()
    clock.advance(STEP)
    store.tasks.release("A", agent="ada")
    given_back = clock.now()
    clock.advance(STEP)
    finish(store, project, "A", "ben")
    found = [
        store.insights.board_at(project, at).tasks[0] for at in (taken, given_back, clock.now())
    ]
    assert [(task.state, task.agent) for task in found] == [
        ("running", "ada"),
        ("ready", None),
        ("done", "ben"),
    ]
    assert (found[0].verb, found[0].actor, found[0].since) == ("claim", "user:tester", taken)
    assert found[2].verb == "accept"


def test_past_board_has_the_locks_held_then(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, agents=("ada", "ben"))
    first = store.locks.acquire(project, "a.py", "ada", ttl_ms=10 * STEP)
    waits = store.locks.request(project, "a.py", "ben")
    store.locks.acquire(project, "b.py", "ben", ttl_ms=STEP)
    start = clock.now()
    clock.advance(2 * STEP)
    store.locks.release(first)
    clock.advance(STEP)

    def held(at: int) -> set[tuple[str, str]]:
        return {(lock.path, lock.owner) for lock in store.insights.board_at(project, at).locks}

    assert held(start - 1) == set()
    assert held(start) == {("a.py", "agent:ada"), ("b.py", "agent:ben")}
    assert held(start + STEP) == {("a.py", "agent:ada")}  # the other one had run out
    assert held(start + 2 * STEP) == {("a.py", "agent:ben")}
    assert store.insights.board_at(project, clock.now()).locks[0].id == waits.id


def test_past_board_includes_archived_tasks_once_across_pages(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, *"ABCDE")
    for key in "ABC":
        finish(store, project, key)
    at = clock.now()
    for key in "BA":
        clock.advance(STEP)
        store.tasks.archive(key)
    clock.advance(STEP)
    assert list(states(store, project, at)) == ["C", "D", "E", "B", "A"]
    assert list(states(store, project, at + STEP)) == ["C", "D", "E", "A"]
    assert list(states(store, project, clock.now())) == ["C", "D", "E"]
    for limit in range(1, 6):
        seen, after = [], None
        while True:
            page = store.insights.board_at(project, at, after=after, limit=limit)
            seen += [task.key for task in page.tasks]
            after = page.next
            if after is None:
                break
        assert seen == ["C", "D", "E", "B", "A"]


def test_state_before_the_stored_events_is_unknown(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", "B")
    start = clock.now()
    retention_ms = int(store.settings.get("events.retention_ms").value)
    clock.advance(retention_ms + MINUTE)
    fail(store, project, "A")
    store.db.prune()
    assert states(store, project, start) == {"A": None, "B": None}
    assert states(store, project, clock.now()) == {"A": "failed", "B": None}
