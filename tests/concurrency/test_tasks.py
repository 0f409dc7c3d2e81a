"""Concurrent claims: each task is claimed once, and the dependency counts stay correct."""

import os
from contextlib import suppress
from pathlib import Path

import corral
from corral.api import Corral
from corral.kernel.errors import Conflict, CorralError
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.store import rows
from tests.support.task_factories import board, check_counts, project_with
from tests.support.threads import race

TASKS = 30


def test_one_of_two_concurrent_claims_wins_the_last_task(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A", agents=("ada", "ben"))
    racers = race([lambda name=name: store.tasks.claim(project, name) for name in ("ada", "ben")])
    assert [racer.result() is None for racer in racers].count(False) == 1
    racers = race(
        [lambda name=name: store.tasks.claim(project, name, key="A") for name in ("ada", "ben")]
    )
    assert all(isinstance(racer.error, Conflict) for racer in racers)


def test_concurrent_workers_finish_a_graph_without_duplicate_claims(
    url: str, tmp_path: Path
) -> None:
    names = [f"a{n}" for n in range(4)]
    with corral.open(url) as store:
        layers = [
            {"key": f"k{n}", "depends_on": [f"k{m}" for m in range(max(0, n - 9), n - 5)]}
            for n in range(TASKS)
        ]
        project = project_with(store, tmp_path, *layers, agents=tuple(names))

    def run_worker(name: str) -> list[tuple[str, int]]:
        claims = []
        with (
            corral.open(url, actor=f"agent:{name}") as store,
            corral.open(url, actor="user:reviewer") as person,
        ):
            while person.tasks.counts(project).get("done", 0) < TASKS:
                task = store.tasks.claim(project, name)
                if task is None:
                    continue
                claims.append((task.key, task.fence))
                store.tasks.submit(task, f"by {os.getpid()}")
                person.tasks.accept(task)
        return claims

    results = run_concurrently([lambda name=name: run_worker(name) for name in names])
    claims = [claim for worker_claims in results for claim in worker_claims]
    assert sorted(key for key, _ in claims) == sorted(f"k{n}" for n in range(TASKS))
    assert {fence for _, fence in claims} == {1}
    with corral.open(url) as store:
        check_counts(store)
        check_store(store)


def test_concurrent_random_management_keeps_dependency_counts_correct(
    url: str, tmp_path: Path
) -> None:
    with corral.open(url) as store:
        wanted = [
            {"key": f"k{n}", "depends_on": [f"k{n // 2}"] if n > 1 else []} for n in range(1, 40)
        ]
        project = project_with(store, tmp_path, *wanted)

    def manage(seed: int) -> int:
        import random

        rng = random.Random(seed)
        count = 0
        with corral.open(url) as store:
            for _ in range(30):
                key = f"k{rng.randint(1, 39)}"
                verb = rng.choice(
                    ["skip", "cancel", "reopen", "retry", "pause", "resume", "claim", "depend"]
                )
                with suppress(CorralError):
                    if verb == "claim":
                        task = store.tasks.claim(project, "ada")
                        if task is not None:
                            store.tasks.fail(task, "no")
                    elif verb == "depend":
                        store.tasks.depend(key, [f"k{rng.randint(1, 39)}"])
                    else:
                        getattr(store.tasks, verb)(key)
                    count += 1
        return count

    count = run_concurrently([lambda seed=seed: manage(seed) for seed in range(4)])
    print("operations of each process:", count)
    with corral.open(url) as store:
        check_counts(store)
        check_store(store)
        assert len(board(store, project)) == 39


def test_one_of_many_concurrent_declarations_of_a_key_wins(url: str, tmp_path: Path) -> None:
    with corral.open(url) as store:
        project = project_with(store, tmp_path)

    def declare() -> bool:
        with corral.open(url) as store, suppress(Conflict):
            store.tasks.declare(project, [{"key": "A"}, {"key": "B", "depends_on": ["A"]}])
            return True
        return False

    assert sum(run_concurrently([declare] * 4)) == 1
    with corral.open(url) as store:
        assert rows(store, "SELECT count(*) FROM tasks") == [(2,)]
        assert rows(store, "SELECT count(*) FROM task_dependencies") == [(1,)]
