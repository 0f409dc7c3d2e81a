"""Agents in several processes claim tasks, lock files and post on one store."""

from pathlib import Path

import corral
from tests.support import team_workload
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.task_factories import check_counts
from tests.support.team_workload import WorkloadResult

AGENTS = 5
ROUNDS = 10


def test_agents_sharing_a_store_lose_and_duplicate_nothing(url: str, tmp_path: Path) -> None:
    """The benchmark measures fifty agents; this test checks only the results."""
    witnesses = tmp_path / "witnesses"
    witnesses.mkdir()
    with corral.open(url) as store:
        project = team_workload.create_team(store, tmp_path / "project", AGENTS)

    def work(name: str) -> WorkloadResult:
        with team_workload.run_worker(url, project, name, witnesses) as worker:
            for _ in range(ROUNDS):
                worker.round()
            return worker.result

    results = run_concurrently(
        [lambda name=name: work(name) for name in team_workload.names(AGENTS)]
    )
    slowest = team_workload.find_slowest(results)
    print(f"longest wait: {slowest.longest_ms:.0f} ms ({slowest.longest_of})")
    assert team_workload.count_double_holds(results) == 0
    assert sum(result.locked for result in results) > 0
    with corral.open(url) as store:
        assert team_workload.count_lost(store, results) == 0
        check_counts(store)
        check_store(store)
