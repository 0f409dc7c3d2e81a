"""The worktree pool of races: reuse, size limit and retention."""

import os
from pathlib import Path

import pytest

from corral.adapters.processes import process
from corral.api import Corral
from corral.domain.races.model import Race
from corral.kernel.clock import DAY
from corral.kernel.exit_status import ExitStatus
from corral.services.races.paths import pool_folder
from tests.support.race_helpers import attempts, make_repository, tree_of
from tests.support.run_factories import held, without_supervisors

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_supervisors(monkeypatch)
    return make_repository(tmp_path / "repository", **{".gitignore": "cache\n"})


def run_race(store: Corral, repository: Path, nested: str | None = None) -> Race:
    """Run a race of two attempts and merge the first; `nested` names a repository inside it."""
    if not store.agents.list().items:
        store.agents.create("ada", command="true")
    race = store.races.start("Do it", agents="ada:2", project=str(repository))
    for number, attempt in enumerate(attempts(race), 1):
        (Path(attempt.worktree) / "made").write_text(attempt.id)
        (Path(attempt.worktree) / "cache").write_text("cached")
        if nested is not None and number == 1:
            make_repository(Path(attempt.worktree) / nested)
        supervisor = held(number, host=process.host())
        run = store.internal.runs.launch(
            store.internal.runs.acquire(attempt.run_id or "", supervisor)
        )
        store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    store.races.advance(race.id)
    store.races.select(race.id, "1")
    store.races.merge(race.id)
    return store.races.get(race.id)


def list_pooled(store: Corral, **options: bool) -> list[str]:
    leftovers = store.races.clean(**options)
    return [
        leftover.worktree
        for leftover in leftovers
        if leftover.worktree.startswith(f"{pool_folder()}/")
    ]


def test_next_attempts_reuse_cleaned_worktrees(store: Corral, repository: Path) -> None:
    race = run_race(store, repository)
    store.races.clean(race.id, confirm=True, unmerged=True)
    assert len(list_pooled(store)) == 2
    pooled = [leftover for leftover in store.races.clean() if leftover.race_id is None]
    assert {leftover.action for leftover in pooled} == {"keep"}
    assert all(leftover.bytes > 0 and str(repository) in leftover.reason for leftover in pooled)
    next_round = store.races.next(race.id)
    assert list_pooled(store) == []
    for attempt in attempts(next_round):
        assert tree_of(attempt.worktree) == tree_of(repository), (
            "the worktree equals the merged commit"
        )


def test_pool_size_is_bounded_and_zero_disables_it(store: Corral, repository: Path) -> None:
    store.settings.set("races.worktree_pool_size", 1)
    store.races.clean(run_race(store, repository).id, confirm=True, unmerged=True)
    assert len(list_pooled(store)) == 1
    (removed,) = store.races.clean(pooled=True, confirm=True)
    assert removed.action == "removed"
    assert list_pooled(store) == []
    assert os.listdir(pool_folder()) == []
    store.settings.set("races.worktree_pool_size", 0)
    store.races.clean(run_race(store, repository).id, confirm=True, unmerged=True)
    assert list_pooled(store) == []


def test_unused_pool_entries_are_deleted_after_the_retention_time(
    store: Corral, repository: Path
) -> None:
    store.races.clean(run_race(store, repository).id, confirm=True, unmerged=True)
    expired, recent = list_pooled(store)
    for folder, days in ((expired, 31), (recent, 29)):
        modified_at = (store.now() - days * DAY) / 1_000
        os.utime(folder, (modified_at, modified_at))
    assert [leftover.worktree for leftover in store.races.reclaim()] == [expired]
    assert list_pooled(store) == [recent]
    repository.rename(repository.with_name("moved"))
    assert [leftover.worktree for leftover in store.races.reclaim()] == [recent]


def test_nested_repository_of_an_agent_is_not_mistaken_for_check_output(
    store: Corral, repository: Path
) -> None:
    winner, loser = attempts(run_race(store, repository, nested="inner"))
    leftovers = {
        leftover.worktree: leftover for leftover in store.races.clean(confirm=True, unmerged=True)
    }
    assert (leftovers[winner.worktree].action, leftovers[loser.worktree].action) == (
        "keep",
        "removed",
    )
    assert "inner/" in leftovers[winner.worktree].reason
    assert (Path(winner.worktree) / "inner" / "README").read_text() == "hello\n"
