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


def project(store: Corral) -> str:
    return store.projects.register(os.sep).id


def work(agent: str, store: Corral, world: World) -> None:
    """A worker: it takes what is ready, does it, and submits; a person accepts."""
    store.tasks.release_due()
    while (task := store.tasks.claim(project(store), agent)) is not None:
        world.note(f"did {task.key} {task.fence}")
        store.tasks.submit(task, f"{task.key} by {agent}")
        world.note(f"submitted {task.key}")
        store.tasks.accept(task)
        world.note(f"accepted {task.key}")


def accept_all(store: Corral, world: World) -> None:
    for task in store.tasks.list(state="submitted", project=project(store)).items:
        store.tasks.accept(task)


def test_declaration_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def declare(store: Corral, world: World) -> None:
        store.tasks.declare(project(store), GRAPH)
        world.note("declared")

    def again(store: Corral, world: World) -> None:
        if board(store, project(store)):
            return
        assert "declared" not in world.deeds
        declare(store, world)

    def check(store: Corral, world: World) -> None:
        assert board(store, project(store)) == {
            "ship": "pending",
            "test": "pending",
            "build": "ready",
        }
        check_counts(store)

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(declare, prepare=prepare, recover=again, check=check)
    )


def test_graph_is_finished_after_a_worker_crashes_at_any_commit(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        store.tasks.declare(project(store), GRAPH)

    def recover(store: Corral, world: World) -> None:
        check_counts(store)
        for key, state in board(store, project(store)).items():
            # What its worker was told is kept, and what it was not is not done.
            if f"accepted {key}" in world.deeds:
                assert state == "done"
            elif f"submitted {key}" in world.deeds:
                assert state in ("submitted", "done")
        accept_all(store, world)
        work("ben", store, world)

    def check(store: Corral, world: World) -> None:
        assert set(board(store, project(store)).values()) == {"done"}
        done = [deed for deed in world.deeds if deed.startswith("did ")]
        assert len(done) == len({*done}), "no taking of a task is given out twice"
        returned = [
            letter.body["event"]
            for letter in store.mail.list(all=True, limit=100).items
            if letter.body.get("event") == "returned"
        ]
        assert len(returned) <= 1, "whoever leads is told once"
        check_counts(store)

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(
            lambda store, world: work("ada", store, world),
            prepare=ready,
            recover=recover,
            check=check,
        ),
    )


def test_dependency_counts_are_correct_after_a_lead_crashes(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        store.tasks.declare(project(store), GRAPH)

    def steer(store: Corral, world: World) -> None:
        tasks = store.tasks
        taken = tasks.claim(project(store), "ada")
        assert taken is not None
        tasks.fail(taken, "no")
        tasks.retry("build")
        tasks.delegate("build", "ben")
        tasks.cancel("build")
        tasks.skip("build")
        tasks.pause("test")
        tasks.reopen("build")
        tasks.resume("test")
        tasks.undepend("ship", ["test"])
        world.note("steered")

    def recover(store: Corral, world: World) -> None:
        check_counts(store)

    def check(store: Corral, world: World) -> None:
        active = store.delegations.list().items
        ended = {task.id for task in store.tasks.list().items if task.ended_at is not None}
        assert not [each for each in active if each.task_id in ended], "an end ends them too"
        if "steered" in world.deeds:
            assert board(store, project(store))["ship"] == "pending"

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(steer, prepare=ready, recover=recover, check=check)
    )


def test_check_of_a_crashed_process_runs_again(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        store.tasks.add(project(store), "A", check="true")
        taken = store.tasks.claim(project(store), "ada")
        assert taken is not None
        store.tasks.submit(taken, "done")

    def examine(store: Corral, world: World) -> None:
        store.tasks.check_next()

    def check(store: Corral, world: World) -> None:
        done = store.tasks.get("A")
        assert done.state == "done"
        assert done.evidence is not None
        assert len(done.evidence.checks) == 1

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(examine, prepare=ready, recover=examine, check=check)
    )
