"""Worktrees in which no attempt works: each is found, goes in its time, and nothing is lost."""

import os
import shutil
from pathlib import Path

import pytest

import corral
from corral import config
from corral.adapters import git_history, worktree_leftovers, worktrees
from corral.api import Corral
from corral.domain.races.model import Race
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Refused
from corral.services.races.paths import create_race_folder, pin_commit, races_folder
from tests.support.errors import because
from tests.support.git_repositories import git
from tests.support.race_factory import BAD, RaceFactory


@pytest.fixture
def race_factory(store: Corral) -> RaceFactory:
    return RaceFactory(store, config.home(), worktrees=races_folder())


def orphan(
    race_factory: RaceFactory, race: Race, name: str, *, days: int = 31, **files: str
) -> Path:
    """A worktree with files in no commit, which nobody has touched for so many days."""
    create_race_folder(race_factory.store._database, race)
    folder = races_folder() / race.id / name
    worktrees.create(str(race_factory.repository), str(folder), f"corral/{name}")
    for file, text in files.items():
        (folder / file).write_text(text)
    untouched(race_factory.store, folder, days)
    return folder


def untouched(store: Corral, folder: Path, days: int) -> None:
    at = (store.now() - days * DAY) / 1_000
    for path in (folder / ".git", folder):
        os.utime(path, (at, at))


def clean_orphans(store: Corral, **how: bool) -> dict[str, str]:
    return {each.worktree: each.action for each in store.races.clean(orphans=True, **how)}


def test_orphan_is_removed_after_its_retention_time(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    old = orphan(race_factory, race, "old")
    young = orphan(race_factory, race, "young", days=29)
    with_work = orphan(race_factory, race, "work", made="by hand\n")
    (gone,) = store.races.reclaim()
    assert (gone.worktree, gone.action, gone.race_id) == (str(old), "removed", race.id)
    assert not old.exists()
    assert young.exists()
    assert (with_work / "made").read_text() == "by hand\n"
    assert store.races.reclaim() == []
    store.settings.set("races.worktree_retention_ms", 28 * DAY)
    assert [left.worktree for left in store.races.reclaim()] == [str(young)]
    assert with_work.exists()


def test_confirmed_clean_removes_orphans_without_work(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    empty = orphan(race_factory, race, "empty", days=0)
    with_work = orphan(race_factory, race, "work", made="by hand\n")
    assert clean_orphans(store)[str(empty)] == "remove"
    assert empty.exists(), "it was only asked"
    assert clean_orphans(store, confirm=True)[str(empty)] == "removed"
    assert clean_orphans(store, confirm=True)[str(with_work)] == "keep"
    assert (with_work / "made").read_text() == "by hand\n"


def test_orphan_of_a_deleted_race_is_found(store: Corral, race_factory: RaceFactory) -> None:
    race = race_factory.start("ada")
    folder = orphan(race_factory, race, "round-1-1")
    store.projects.delete(race_factory.project)
    assert store.races.list().items == []
    (left,) = store.races.clean(orphans=True)
    assert (left.worktree, left.action, left.race_id) == (str(folder), "remove", race.id)
    assert len(store.races.reclaim()) == 1
    assert not (races_folder() / race.id).exists(), "its race's folder is gone too"


def test_recreated_worktree_is_attributed_to_its_attempt(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada", "ada")
    race_factory.end(race, 1)
    race_factory.end(race, 2)
    race_factory.settle(race)
    store.races.clean(race.id, confirm=True)
    folder = orphan(race_factory, race, "round-1-2", made="by hand\n")
    (left,) = store.races.clean(orphans=True)
    assert (left.worktree, left.attempt_id) == (str(folder), race.latest.attempts[1].id)
    assert (left.action, left.uncommitted) == ("keep", 1)


def test_worktrees_of_another_store_are_not_orphans(
    store: Corral, race_factory: RaceFactory, tmp_path: Path
) -> None:
    with corral.open(f"sqlite:///{tmp_path}/other.db", actor="user:other") as other:
        theirs = RaceFactory(other, config.home() / "other", worktrees=races_folder())
        race = theirs.start("ada")
        (attempt,) = race.latest.attempts
        create_race_folder(other._database, race)
        worktrees.create(str(theirs.repository), attempt.worktree, attempt.branch)
        untouched(store, Path(attempt.worktree), 400)
        # A race of this store in the same repository, which so is known to it.
        race_factory.repository = theirs.repository
        race_factory.start("ada")
        assert attempt.worktree not in clean_orphans(store, confirm=True)
        assert store.races.reclaim() == []
        assert Path(attempt.worktree).exists()
        assert other.races.reclaim() == [], "it is no orphan there either"


def test_folder_without_a_marker_is_listed_and_kept(
    store: Corral, race_factory: RaceFactory
) -> None:
    race_factory.start("ada")
    folder = races_folder() / "rac_unknown" / "round-1-1"
    worktrees.create(str(race_factory.repository), str(folder), "corral/unknown")
    untouched(store, folder, 400)
    assert store.races.reclaim() == []
    assert [*clean_orphans(store, confirm=True).values()][-1] == "keep"
    assert folder.exists()


def test_interrupted_removal_is_listed_and_completed(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    create_race_folder(store._database, race)
    cut = races_folder() / race.id / f"{worktree_leftovers.REMOVAL_PREFIX}1"
    cut.mkdir()
    (cut / "half").write_text("of it")
    found = {left.worktree: left for left in store.races.clean()}
    assert (found[str(cut)].action, found[str(cut)].race_id) == ("remove", race.id)
    assert found[str(cut)].bytes > 0
    done = {left.worktree: left.action for left in store.races.clean(race.id, confirm=True)}
    assert done[str(cut)] == "removed"
    assert not cut.exists()


def test_old_worktree_of_an_attempt_is_not_an_orphan(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    (attempt,) = race.latest.attempts
    create_race_folder(store._database, race)
    folder = Path(attempt.worktree)
    worktrees.create(str(race_factory.repository), str(folder), attempt.branch)
    untouched(store, folder, 400)
    assert store.races.reclaim() == []
    assert folder.exists()


def test_worktrees_of_a_missing_repository_are_kept(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    folder = orphan(race_factory, race, "lost")
    shutil.rmtree(race_factory.repository)
    assert clean_orphans(store, confirm=True)[str(folder)] == "keep"
    assert store.races.reclaim() == []
    assert folder.exists()


def test_rejected_selection_pins_no_commit(store: Corral, race_factory: RaceFactory) -> None:
    race = race_factory.start("ada", "ben")
    race_factory.end(race, 1)
    race_factory.end(race, 2, {"made": "badly\n"}, checks=[BAD])
    race_factory.settle(race)
    with pytest.raises(Refused, check=because("checks_failed")):
        store.races.select(race.id, "2")
    assert git(race_factory.repository, "for-each-ref", "refs/corral") == ""
    store.races.select(race.id, "2", overrule=True)
    assert git(race_factory.repository, "for-each-ref", "refs/corral") != ""


def test_merged_commits_of_an_ended_race_are_unpinned(
    store: Corral, race_factory: RaceFactory, clock: ManualClock
) -> None:
    merged, alone = race_factory.start("ada"), race_factory.start("ada")
    for race in (merged, alone):
        race_factory.end(race, 1, {"made": f"for {race.id}\n"})
        race_factory.settle(race)
        store.races.select(race.id, "1")
    store.races.merge(merged.id)
    for race in (merged, alone):
        store.races.finish(race.id)
        store.races.clean(race.id, confirm=True)
    assert kept(race_factory) == {merged.id, alone.id}
    assert store.races.reclaim() == [], "the store still knows both"
    clock.advance(366 * DAY)
    store.db.prune()
    assert store.races.list().items == []
    listed = {each.race_id: each for each in store.races.clean(orphans=True)}
    assert (listed[merged.id].action, listed[alone.id].action) == ("remove", "keep")
    assert (listed[alone.id].unmerged, kept(race_factory)) == (1, {merged.id, alone.id})
    assert "git branch NAME" in listed[alone.id].reason
    (gone,) = store.races.reclaim()
    assert (gone.race_id, gone.action) == (merged.id, "removed")
    assert kept(race_factory) == {alone.id}, "nobody else has what that one made"
    assert [folder.name for folder in races_folder().iterdir()] == [alone.id]
    ref = git(race_factory.repository, "for-each-ref", "--format=%(refname)", "refs/corral")
    git(race_factory.repository, "branch", "by-hand", ref)
    assert [left.action for left in store.races.clean(orphans=True, confirm=True)] == ["removed"]
    assert kept(race_factory) == set()
    assert [*races_folder().iterdir()] == []


def test_commits_pinned_by_another_store_are_kept(
    store: Corral, race_factory: RaceFactory, tmp_path: Path
) -> None:
    with corral.open(f"sqlite:///{tmp_path}/other.db", actor="user:other") as other:
        race = RaceFactory(other, config.home() / "other", worktrees=races_folder()).start("ada")
        pin_commit(other._database, race, "1-1", "main")
        assert store.races.reclaim() == []
        assert git_history.list_kept(race.repository, race.id) == [f"{race.id}/1-1"]


def kept(race_factory: RaceFactory) -> set[str]:
    """The races that the repository keeps commits for."""
    names = git(
        race_factory.repository, "for-each-ref", "--format=%(refname)", "refs/corral"
    ).split()
    return {name.split("/")[2] for name in names}


def test_unused_branch_of_an_incomplete_worktree_is_deleted(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada", "ben")
    race_factory.end(race, 1, state="failed")
    race_factory.end(race, 2, state="failed")
    race_factory.settle(race)
    empty, own = (attempt.branch for attempt in store.races.get(race.id).latest.attempts)
    git(race_factory.repository, "branch", empty, "main")
    git(race_factory.repository, "branch", own, race_factory.commit({"made": "by hand\n"}))
    store.races.clean(race.id, confirm=True)
    listed = git(race_factory.repository, "branch", "--format=%(refname:short)").split("\n")
    assert empty not in listed
    assert own in listed, "it alone has a commit"
