"""Concurrent drivers and selections of one race: each step happens once."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import corral
from corral.adapters.processes import process
from corral.api import Corral
from corral.domain.races import round_steps
from corral.kernel.errors import Conflict
from corral.kernel.exit_status import ExitStatus
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.race_helpers import attempts, git, make_repository, states
from tests.support.run_factories import held, without_supervisors

DRIVERS = 4


@pytest.fixture(autouse=True)
def _no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


def start_race(store: Corral, folder: Path, checks: Sequence[str] = ()) -> str:
    make_repository(folder)
    store.agents.create("ada", command="true")
    race = store.races.start("Do it", agents="ada:2", checks=[*checks], project=str(folder))
    for number, attempt in enumerate(attempts(race), 1):
        (Path(attempt.worktree) / "made").write_text(attempt.id)
        assert attempt.run_id is not None
        supervisor = held(number, host=process.host())
        store.internal.runs.record_end(
            store.internal.runs.launch(store.internal.runs.acquire(attempt.run_id, supervisor)),
            ExitStatus(exit_code=0),
        )
    return race.id


def test_concurrent_drivers_do_each_step_once(url: str, tmp_path: Path) -> None:
    with corral.open(url) as store:
        id = start_race(store, tmp_path / "repository", ["true"])

    def drive(number: int) -> str:
        with corral.open(url) as store:
            return str(store.races.wait(id, timeout_ms=600_000).latest.state)

    assert (
        run_concurrently([lambda n=n: drive(n) for n in range(DRIVERS)]) == ["selecting"] * DRIVERS
    )
    with corral.open(url) as store:
        race = store.races.get(id)
        assert states(race) == ["completed", "completed"]
        for attempt in attempts(race):
            span = f"{race.base_commit}..{attempt.commit}"
            assert git(tmp_path / "repository", "rev-list", "--count", span) == "1"
        check_store(store)


def test_one_of_many_concurrent_selections_succeeds(url: str, tmp_path: Path) -> None:
    with corral.open(url) as store:
        id = start_race(store, tmp_path / "repository")
        store.races.wait(id, timeout_ms=600_000)

    def select_winner(number: int) -> str | None:
        with corral.open(url, actor=f"user:{number}") as store:
            try:
                return store.races.select(id, str(number % 2 + 1)).latest.decided_by
            except Conflict:
                return None

    actors = run_concurrently([lambda n=n: select_winner(n) for n in range(DRIVERS)])
    (winner,) = [actor for actor in actors if actor is not None]
    with corral.open(url) as store:
        latest = store.races.get(id).latest
        assert (latest.state, latest.decided_by) == ("completed", winner)
        assert len(latest.selections) == 1
        check_store(store)


def test_concurrent_reports_of_a_run_end_are_idempotent(url: str, tmp_path: Path) -> None:
    with corral.open(url) as store:
        race = store.races.get(start_race(store, tmp_path / "repository"))
        runs = [store.runs.get(attempt.run_id or "") for attempt in attempts(race)]

    def report(number: int) -> None:
        with corral.open(url) as store:
            for run in runs:
                with store.transaction() as tx:
                    round_steps.record_run_end(tx, run)

    run_concurrently([lambda n=n: report(n) for n in range(DRIVERS)])
    with corral.open(url) as store:
        assert states(store.races.get(race.id)) == ["checking", "checking"]
        check_store(store)
