"""The task graph: how a change of one task affects its dependents."""

from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.domain.tasks.model import MAX_PATH
from corral.kernel.errors import Conflict, IllegalMove, Invalid, Refused
from corral.kernel.validation import MAX_NAME
from tests.support.store import raises_without_change
from tests.support.task_factories import (
    board,
    check_counts,
    fail,
    finish,
    project_with,
    task_notices,
)


@pytest.fixture
def chain(store: Corral, tmp_path: Path) -> str:
    """Declare the tasks A, B and C: B depends on A, and C depends on B."""
    return project_with(store, tmp_path, "A", "B:A", "C:B")


def test_done_task_promotes_its_dependents(store: Corral, chain: str) -> None:
    finish(store, chain, "A")
    assert board(store, chain) == {"A": "done", "B": "ready", "C": "pending"}


def test_failure_blocks_all_dependents_with_the_root_cause(store: Corral, chain: str) -> None:
    failed = fail(store, chain, "A", "the compiler is broken")
    assert board(store, chain) == {"A": "failed", "B": "blocked", "C": "blocked"}
    for key in "BC":
        blocked = store.tasks.get(key)
        assert blocked.blocked_by_id == failed.id
        assert blocked.reason == "A failed: the compiler is broken"
    check_counts(store)


def test_retried_task_unblocks_its_dependents(store: Corral, chain: str) -> None:
    fail(store, chain, "A")
    store.tasks.retry("A")
    assert board(store, chain) == {"A": "ready", "B": "pending", "C": "pending"}
    assert store.tasks.get("C").reason is None
    finish(store, chain, "A")
    assert board(store, chain) == {"A": "done", "B": "ready", "C": "pending"}
    check_counts(store)


def test_cancelled_is_not_satisfied_and_skipped_is(store: Corral, chain: str) -> None:
    store.tasks.cancel("A", reason="not wanted")
    assert board(store, chain) == {"A": "cancelled", "B": "blocked", "C": "blocked"}
    assert store.tasks.get("C").reason == "A was cancelled: not wanted"
    store.tasks.skip("A")
    assert board(store, chain) == {"A": "skipped", "B": "ready", "C": "pending"}
    check_counts(store)


def test_removing_the_dependency_unblocks_a_task(store: Corral, chain: str) -> None:
    store.tasks.cancel("A")
    unblocked = store.tasks.undepend("B", ["A"])
    assert (unblocked.state, unblocked.depends_on) == ("ready", [])
    assert board(store, chain) == {"A": "cancelled", "B": "ready", "C": "pending"}
    check_counts(store)


def test_replacing_the_dependency_unblocks_a_task(store: Corral, chain: str) -> None:
    store.tasks.cancel("A")
    store.tasks.add(chain, "A2")
    store.tasks.depend("B", ["A2"])
    store.tasks.undepend("B", ["A"])
    assert board(store, chain)["B"] == "pending"
    finish(store, chain, "A2")
    assert board(store, chain)["B"] == "ready"
    check_counts(store)


def test_task_with_two_failed_dependencies_stays_blocked(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A", "B", "X:A", "Y:B", "D:X,Y", "E:D", "F:E,X")
    fail(store, project, "A", "first")
    fail(store, project, "B", "second")
    assert store.tasks.get("E").reason == "A failed: first"
    store.tasks.retry("A")
    assert board(store, project) == {
        "A": "ready",
        "B": "failed",
        "X": "pending",
        "Y": "blocked",
        "D": "blocked",
        "E": "blocked",
        "F": "blocked",
    }
    assert {store.tasks.get(key).reason for key in "YDEF"} == {"B failed: second"}
    check_counts(store)
    store.tasks.retry("B")
    assert "blocked" not in board(store, project).values()
    check_counts(store)


def test_skipping_one_dependency_keeps_the_other_cause(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A", "B", "X:A", "Y:B", "D:X,Y")
    fail(store, project, "A", "first")
    fail(store, project, "B", "second")
    store.tasks.skip("X")
    assert store.tasks.get("D").reason == "B failed: second"
    check_counts(store)


def test_reopened_task_blocks_ready_but_not_running_dependents(
    store: Corral, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", "B:A", "C:A", agents=("ada", "bob"))
    finish(store, project, "A")
    running = store.tasks.claim(project, "bob", key="B")
    assert running is not None
    store.tasks.reopen("A", reason="incomplete")
    assert board(store, project) == {"A": "ready", "B": "running", "C": "pending"}
    store.tasks.release(running)
    assert board(store, project)["B"] == "pending", (
        "the released task waits for its dependency again"
    )
    check_counts(store)
    finish(store, project, "A")
    assert board(store, project) == {"A": "done", "B": "ready", "C": "ready"}
    check_counts(store)


def test_paused_task_stays_paused_when_dependencies_change(store: Corral, chain: str) -> None:
    store.tasks.pause("B", reason="later")
    fail(store, chain, "A")
    assert board(store, chain) == {"A": "failed", "B": "paused", "C": "blocked"}
    resumed = store.tasks.resume("B")
    assert (resumed.state, resumed.reason) == ("blocked", "A failed: no way")
    check_counts(store)
    store.tasks.retry("A")
    store.tasks.pause("B")
    finish(store, chain, "A")
    assert board(store, chain) == {"A": "done", "B": "paused", "C": "pending"}
    assert store.tasks.resume("B").state == "ready"
    check_counts(store)


def test_dependency_cannot_be_added_to_a_running_task(store: Corral, chain: str) -> None:
    store.tasks.add(chain, "N")
    claimed = store.tasks.claim(chain, "ada", key="A")
    with raises_without_change(store, Conflict) as caught:
        store.tasks.depend("A", ["N"])
    assert "running" in str(caught.value)
    assert claimed is not None
    pending = store.tasks.depend("B", ["N"])
    assert pending.depends_on == ["A", "N"]
    assert store.tasks.depend("B", ["N"]) == pending, "adding a dependency is idempotent"
    check_counts(store)


def test_ready_task_with_a_new_dependency_is_pending(store: Corral, chain: str) -> None:
    store.tasks.add(chain, "N")
    assert store.tasks.depend("A", ["N"]).state == "pending"
    fail(store, chain, "N")
    assert board(store, chain) == {"A": "blocked", "B": "blocked", "C": "blocked", "N": "failed"}
    check_counts(store)


def test_dependency_cycle_is_rejected(store: Corral, chain: str) -> None:
    for key, dependency in (("A", "C"), ("A", "B"), ("B", "B")):
        with raises_without_change(store, Invalid) as caught:
            store.tasks.depend(key, [dependency])
        assert "cycle" in str(caught.value)


def test_dependency_on_another_project_is_rejected(
    store: Corral, chain: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    foreign_task = store.tasks.add(store.projects.register(tmp_path / "other").id, "Z")
    with raises_without_change(store, Invalid):
        store.tasks.depend("A", [foreign_task.id])


def test_illegal_transition_names_state_and_allowed_verbs(store: Corral, chain: str) -> None:
    with raises_without_change(store, IllegalMove) as caught:
        store.tasks.retry("A")
    assert caught.value.details["state"] == "ready"
    assert "claim" in caught.value.details["allowed"]
    for verb in ("reopen", "resume", "accept"):
        with raises_without_change(store, IllegalMove):
            getattr(store.tasks, verb)("A")


def test_ten_thousand_dependents_are_blocked_and_freed_in_one_call(
    store: Corral, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path)
    store.tasks.declare(
        project,
        [{"key": "root"}]
        + [
            {"key": f"k{n}", "depends_on": ["root" if n < 100 else f"k{n // 3}"]}
            for n in range(9_999)
        ],
    )
    fail(store, project, "root")
    assert store.tasks.counts(project) == {"failed": 1, "blocked": 9_999}
    store.tasks.retry("root")
    assert store.tasks.counts(project) == {"ready": 1, "pending": 9_999}
    check_counts(store)


def test_ended_task_can_be_archived_and_its_key_reused(store: Corral, chain: str) -> None:
    with raises_without_change(store, Conflict):
        store.tasks.archive("A")
    finish(store, chain, "A")
    archived = store.tasks.archive("A")
    assert archived.archived_at is not None
    assert [task.key for task in store.tasks.list(project=chain).items] == ["B", "C"]
    assert [task.key for task in store.tasks.list(project=chain, archived=True).items] == ["A"]
    assert store.tasks.add(chain, "A").id != archived.id
    store.tasks.cancel("B")
    with raises_without_change(store, Conflict) as caught:
        store.tasks.archive("B")
    assert "C depends on B" in str(caught.value)
    store.tasks.cancel("C")
    assert store.tasks.archive_ended(chain) == 2


def test_agent_manages_only_tasks_that_it_leads(url: str, tmp_path: Path) -> None:
    with corral.open(url, actor="user:tester") as store:
        project = project_with(store, tmp_path, "A", agents=("ada", "lea"))
    with corral.open(url, actor="agent:ada") as ada:
        for verb in ("cancel", "skip", "pause"):
            with raises_without_change(ada, Refused) as caught:
                getattr(ada.tasks, verb)("A")
            assert "user:tester" in str(caught.value)
        ada.tasks.add(project, "own")
        assert ada.tasks.cancel("own").state == "cancelled"
        with raises_without_change(ada, Refused):
            ada.tasks.archive("A", agent="lea")


def test_edit_keeps_omitted_fields(store: Corral, chain: str) -> None:
    changed = store.tasks.edit("A", title="Better", priority=5, files=["./src//a.py"])
    assert (changed.title, changed.priority, changed.files) == ("Better", 5, ["src/a.py"])
    assert store.tasks.edit("A", role="builder").title == "Better"
    assert store.tasks.edit("A", role=None).role is None
    with raises_without_change(store, Invalid):
        store.tasks.edit("A", files=["/etc"])


def test_edit_has_the_bounds_of_declare(store: Corral, chain: str) -> None:
    longest = "x" * MAX_PATH
    assert store.tasks.edit("A", files=[longest], role="x" * MAX_NAME).files == [longest]
    with raises_without_change(store, Invalid):
        store.tasks.edit("A", files=[longest + "x"])
    with raises_without_change(store, Invalid):
        store.tasks.edit("A", role="x" * (MAX_NAME + 1))


def test_claimant_is_notified_when_a_task_is_cancelled(store: Corral, chain: str) -> None:
    store.tasks.claim(chain, "ada", key="A")
    store.tasks.cancel("A", reason="not wanted")
    assert task_notices(store, "agent:ada") == [("stop: cancelled", "A", "not wanted")]


def test_cancelled_dependency_becomes_the_blocking_cause(store: Corral, tmp_path: Path) -> None:
    project = project_with(
        store,
        tmp_path,
        {"key": "a"},
        {"key": "b", "depends_on": ["a"]},
        {"key": "c", "depends_on": ["b"]},
    )
    claimed = store.tasks.claim(project, "ada")
    assert claimed is not None
    store.tasks.fail(claimed, "no")
    store.tasks.cancel("b")
    store.tasks.retry("a")
    assert store.tasks.get("c").blocked_by_id == store.tasks.get("b").id
    store.tasks.fail(store.tasks.claim(project, "ada") or "a", "again")
    store.tasks.reopen("b")
    assert store.tasks.get("c").blocked_by_id == store.tasks.get("a").id
    check_counts(store)
