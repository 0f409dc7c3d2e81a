"""The board of a project at a time in the past."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.clock import MINUTE, ManualClock
from corral.kernel.errors import Invalid, NotFound
from tests.support.task_factories import fail, finish, project_with

STEP = MINUTE


def board_states(store: Corral, project: str, at: int) -> dict[str, str | None]:
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
    start = clock.now()
    clock.advance(STEP)
    project = project_with(store, tmp_path, "A", "B:A", "C:B", agents=("ada", "ben"))
    boards: dict[int, dict[str, str | None]] = {start: {}}

    def record_board() -> None:
        boards[clock.now()] = {task.key: task.state for task in store.tasks.list(limit=50).items}
        clock.advance(STEP)

    record_board()
    store.tasks.claim(project, "ada", key="A")
    record_board()
    store.tasks.fail("A", "no way", agent="ada")
    record_board()
    store.tasks.retry("A")
    record_board()
    finish(store, project, "A", "ben")
    record_board()
    store.tasks.pause("B")
    record_board()
    store.tasks.resume("B")
    store.tasks.skip("B")
    record_board()
    assert boards[clock.now() - 5 * STEP] == {"A": "failed", "B": "blocked", "C": "blocked"}
    for at, board in boards.items():
        assert board_states(store, project, at) == board
        if board:  # the board is unchanged until the next step
            assert board_states(store, project, at + STEP - 1) == board


def test_past_board_has_agent_and_actor_of_each_task(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", agents=("ada", "ben"))
    clock.advance(STEP)
    store.tasks.claim(project, "ada", key="A")
    claimed_at = clock.now()
    clock.advance(STEP)
    store.tasks.release("A", agent="ada")
    released_at = clock.now()
    clock.advance(STEP)
    finish(store, project, "A", "ben")
    tasks = [
        store.insights.board_at(project, at).tasks[0]
        for at in (claimed_at, released_at, clock.now())
    ]
    assert [(task.state, task.agent) for task in tasks] == [
        ("running", "ada"),
        ("ready", None),
        ("done", "ben"),
    ]
    assert (tasks[0].verb, tasks[0].actor, tasks[0].since) == ("claim", "user:tester", claimed_at)
    assert tasks[2].verb == "accept"


def test_past_board_has_the_locks_held_at_that_time(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, agents=("ada", "ben"))
    released = store.locks.acquire(project, "a.py", "ada", ttl_ms=10 * STEP)
    request = store.locks.request(project, "a.py", "ben")
    store.locks.acquire(project, "b.py", "ben", ttl_ms=STEP)
    start = clock.now()
    clock.advance(2 * STEP)
    store.locks.release(released)
    clock.advance(STEP)

    def list_held(at: int) -> set[tuple[str, str]]:
        return {(lock.path, lock.owner) for lock in store.insights.board_at(project, at).locks}

    assert list_held(start - 1) == set()
    assert list_held(start) == {("a.py", "agent:ada"), ("b.py", "agent:ben")}
    assert list_held(start + STEP) == {("a.py", "agent:ada")}  # the other lock had expired
    assert list_held(start + 2 * STEP) == {("a.py", "agent:ben")}
    assert store.insights.board_at(project, clock.now()).locks[0].id == request.id


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
    assert list(board_states(store, project, at)) == ["C", "D", "E", "B", "A"]
    assert list(board_states(store, project, at + STEP)) == ["C", "D", "E", "A"]
    assert list(board_states(store, project, clock.now())) == ["C", "D", "E"]
    for limit in range(1, 6):
        keys, after = [], None
        while True:
            page = store.insights.board_at(project, at, after=after, limit=limit)
            keys += [task.key for task in page.tasks]
            after = page.next
            if after is None:
                break
        assert keys == ["C", "D", "E", "B", "A"]


def test_state_before_the_stored_events_is_unknown(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", "B")
    start = clock.now()
    retention_ms = int(store.settings.get("events.retention_ms").value)
    clock.advance(retention_ms + MINUTE)
    fail(store, project, "A")
    store.db.prune()
    assert board_states(store, project, start) == {"A": None, "B": None}
    assert board_states(store, project, clock.now()) == {"A": "failed", "B": None}
