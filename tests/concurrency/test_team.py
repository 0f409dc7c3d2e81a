"""Agents in processes of their own that take tasks, lock files and post, all on one store."""

from pathlib import Path

import corral
from tests.support import crowd
from tests.support.crowd import Shift
from tests.support.invariants import check_store
from tests.support.processes import at_once
from tests.support.tasks import check_counts

AGENTS = 5
ROUNDS = 10


def test_agents_share_one_store_and_nothing_is_lost_or_given_out_twice(
    url: str, tmp_path: Path
) -> None:
    """The bench measures fifty of them against their bars; here only what no noise explains."""
    witnesses = tmp_path / "witnesses"
    witnesses.mkdir()
    with corral.open(url) as store:
        project = crowd.gather(store, tmp_path / "project", AGENTS)

    def work(name: str) -> Shift:
        with crowd.working(url, project, name, witnesses) as worker:
            for _ in range(ROUNDS):
                worker.round()
            return worker.shift

    shifts = at_once([lambda name=name: work(name) for name in crowd.names(AGENTS)])
    slowest = crowd.longest(shifts)
    print(f"longest wait: {slowest.longest_ms:.0f} ms ({slowest.longest_of})")
    assert crowd.twice(shifts) == 0
    assert sum(shift.locked for shift in shifts) > 0
    with corral.open(url) as store:
        assert crowd.lost(store, shifts) == 0
        check_counts(store)
        check_store(store)
