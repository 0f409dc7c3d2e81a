"""Tasks after a crash at any commit: none is lost, done twice or completed without a submission."""

import os
from pathlib import Path

from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit
from tests.support.task_factories import board, check_counts

GRAPH = [
    {"key": "ship", "depends_on": ["build", "test"]},
    {"key": "test", "depends_on": ["build"]},
    {"key": "build", "files": ["src"]},
]


def prepare(store: Corral, world: World) -> None:
    for name in ("ada", "ben"):
        store.agents.create(name)


def get_project(store: Corral) -> str:
    return store.projects.register(os.sep).id


def work(agent: str, store: Corral, world: World) -> None:
    """Claim, submit and accept all ready tasks, like a worker and a reviewer."""
    store.tasks.release_due()
    while (task := store.tasks.claim(get_project(store), agent)) is not None:
        world.record(f"did {task.key} {task.fence}")
        store.tasks.submit(task, f"{task.key} by {agent}")
        world.record(f"submitted {task.key}")
        store.tasks.accept(task)
        world.record(f"accepted {task.key}")


def accept_all(store: Corral, world: World) -> None:
    for task in store.tasks.list(state="submitted", project=get_project(store)).items:
        store.tasks.accept(task)


def test_declaration_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def declare(store: Corral, world: World) -> None:
        store.tasks.declare(get_project(store), GRAPH)
        world.record("declared")

    def declare_again(store: Corral, world: World) -> None:
        if board(store, get_project(store)):
            return
        assert "declared" not in world.records
        declare(store, world)

    def check(store: Corral, world: World) -> None:
        assert board(store, get_project(store)) == {
            "ship": "pending",
            "test": "pending",
            "build": "ready",
        }
        check_counts(store)

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(declare, prepare=prepare, recover=declare_again, check=check)
    )


def test_graph_is_finished_after_a_worker_crashes_at_any_commit(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def prepare_tasks(store: Corral, world: World) -> None:
        prepare(store, world)
        store.tasks.declare(get_project(store), GRAPH)

    def recover(store: Corral, world: World) -> None:
        check_counts(store)
        for key, state in board(store, get_project(store)).items():
            # Acknowledged changes are kept; others may be missing.
            if f"accepted {key}" in world.records:
                assert state == "done"
            elif f"submitted {key}" in world.records:
                assert state in ("submitted", "done")
        accept_all(store, world)
        work("ben", store, world)

    def check(store: Corral, world: World) -> None:
        assert set(board(store, get_project(store)).values()) == {"done"}
        claims = [record for record in world.records if record.startswith("did ")]
        assert len(claims) == len({*claims}), "no claim is given twice"
        returned = [
            letter.body["event"]
            for letter in store.mail.list(all=True, limit=100).items
            if letter.body.get("event") == "returned"
        ]
        assert len(returned) <= 1, "the lead is notified once"
        check_counts(store)

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(
            lambda store, world: work("ada", store, world),
            prepare=prepare_tasks,
            recover=recover,
            check=check,
        ),
    )


def test_dependency_counts_are_correct_after_a_lead_crashes(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def prepare_tasks(store: Corral, world: World) -> None:
        prepare(store, world)
        store.tasks.declare(get_project(store), GRAPH)

    def manage(store: Corral, world: World) -> None:
        tasks = store.tasks
        claim = tasks.claim(get_project(store), "ada")
        assert claim is not None
        tasks.fail(claim, "no")
        tasks.retry("build")
        tasks.delegate("build", "ben")
        tasks.cancel("build")
        tasks.skip("build")
        tasks.pause("test")
        tasks.reopen("build")
        tasks.resume("test")
        tasks.undepend("ship", ["test"])
        world.record("managed")

    def recover(store: Corral, world: World) -> None:
        check_counts(store)

    def check(store: Corral, world: World) -> None:
        active = store.delegations.list().items
        ended = {task.id for task in store.tasks.list().items if task.ended_at is not None}
        assert not [item for item in active if item.task_id in ended], (
            "the delegations of an ended task end"
        )
        if "managed" in world.records:
            assert board(store, get_project(store))["ship"] == "pending"

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(manage, prepare=prepare_tasks, recover=recover, check=check)
    )


def test_check_of_a_crashed_process_runs_again(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def prepare_tasks(store: Corral, world: World) -> None:
        prepare(store, world)
        store.tasks.add(get_project(store), "A", check="true")
        task = store.tasks.claim(get_project(store), "ada")
        assert task is not None
        store.tasks.submit(task, "done")

    def run_check(store: Corral, world: World) -> None:
        store.tasks.check_next()

    def check(store: Corral, world: World) -> None:
        task = store.tasks.get("A")
        assert task.state == "done"
        assert task.evidence is not None
        assert len(task.evidence.checks) == 1

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(run_check, prepare=prepare_tasks, recover=run_check, check=check),
    )
