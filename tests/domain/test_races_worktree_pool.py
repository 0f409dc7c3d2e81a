"""Cleaned worktrees are pooled, and later attempts reuse their files."""

import os
from pathlib import Path

import pytest

from corral.adapters import process
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


def decided(store: Corral, repository: Path, inside: str | None = None) -> Race:
    """A race of two, of which the first one won and is merged; `inside`, the first one made a
    repository."""
    if not store.agents.list().items:
        store.agents.create("ada", command="true")
    race = store.races.start("Do it", agents="ada:2", project=str(repository))
    for number, attempt in enumerate(attempts(race), 1):
        (Path(attempt.worktree) / "made").write_text(attempt.id)
        (Path(attempt.worktree) / "cache").write_text("of no worth")
        if inside is not None and number == 1:
            make_repository(Path(attempt.worktree) / inside)
        supervisor = held(number, host=process.host())
        run = store.internal.runs.launch(
            store.internal.runs.acquire(attempt.run_id or "", supervisor)
        )
        store.internal.runs.end(run, ExitStatus(exit_code=0))
    store.races.advance(race.id)
    store.races.select(race.id, "1")
    store.races.merge(race.id)
    return store.races.get(race.id)


def pooled(store: Corral, **how: bool) -> list[str]:
    found = store.races.clean(**how)
    return [left.worktree for left in found if left.worktree.startswith(f"{pool_folder()}/")]


def test_next_attempts_reuse_cleaned_worktrees(store: Corral, repository: Path) -> None:
    race = decided(store, repository)
    store.races.clean(race.id, confirm=True, unmerged=True)
    assert len(pooled(store)) == 2
    told = [left for left in store.races.clean() if left.race_id is None]
    assert {left.action for left in told} == {"keep"}
    assert all(left.bytes > 0 and str(repository) in left.reason for left in told)
    again = store.races.next(race.id)
    assert pooled(store) == []
    for attempt in attempts(again):
        assert tree_of(attempt.worktree) == tree_of(repository), "byte for byte as the winner's"


def test_pool_size_is_bounded_and_zero_disables_it(store: Corral, repository: Path) -> None:
    store.settings.set("races.worktree_pool_size", 1)
    store.races.clean(decided(store, repository).id, confirm=True, unmerged=True)
    assert len(pooled(store)) == 1
    (gone,) = store.races.clean(pooled=True, confirm=True)
    assert gone.action == "removed"
    assert pooled(store) == []
    assert os.listdir(pool_folder()) == []
    store.settings.set("races.worktree_pool_size", 0)
    store.races.clean(decided(store, repository).id, confirm=True, unmerged=True)
    assert pooled(store) == []


def test_unused_pool_entries_are_deleted_after_the_retention_time(
    store: Corral, repository: Path
) -> None:
    store.races.clean(decided(store, repository).id, confirm=True, unmerged=True)
    old, young = pooled(store)
    for folder, days in ((old, 31), (young, 29)):
        at = (store.now() - days * DAY) / 1_000
        os.utime(folder, (at, at))
    assert [left.worktree for left in store.races.reclaim()] == [old]
    assert pooled(store) == [young]
    repository.rename(repository.with_name("elsewhere"))
    assert [left.worktree for left in store.races.reclaim()] == [young]


def test_nested_repository_of_an_agent_is_not_mistaken_for_check_output(
    store: Corral, repository: Path
) -> None:
    winner, loser = attempts(decided(store, repository, inside="inner"))
    found = {left.worktree: left for left in store.races.clean(confirm=True, unmerged=True)}
    assert (found[winner.worktree].action, found[loser.worktree].action) == ("keep", "removed")
    assert "inner/" in found[winner.worktree].reason
    assert (Path(winner.worktree) / "inner" / "README").read_text() == "hello\n"
