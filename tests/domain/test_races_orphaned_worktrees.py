"""Orphaned race worktrees and pinned commits: listing, removal, and protection of work."""

import os
import shutil
from pathlib import Path

import pytest

import corral
from corral import config
from corral.adapters.git import git_history
from corral.adapters.worktrees import worktree_leftovers, worktrees
from corral.api import Corral
from corral.domain.races.model import Race
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Refused
from corral.services.races.paths import create_race_folder, pin_commit, sample_folder
from tests.support.errors import because
from tests.support.git_repositories import git
from tests.support.race_factory import BAD, RaceFactory


@pytest.fixture
def race_factory(store: Corral) -> RaceFactory:
    return RaceFactory(store, config.home(), worktrees=config.races_folder())


def create_orphan(
    race_factory: RaceFactory, race: Race, name: str, *, days: int = 31, **files: str
) -> Path:
    """Create a worktree with uncommitted files whose last change is `days` days old."""
    create_race_folder(race_factory.store._database, race)
    folder = config.races_folder() / race.id / name
    worktrees.create(str(race_factory.repository), str(folder), f"corral/{name}")
    for file, text in files.items():
        (folder / file).write_text(text)
    set_age(race_factory.store, folder, days)
    return folder


def set_age(store: Corral, folder: Path, days: int) -> None:
    modified_at = (store.now() - days * DAY) / 1_000
    for path in (folder / ".git", folder):
        os.utime(path, (modified_at, modified_at))


def clean_orphans(store: Corral, **options: bool) -> dict[str, str]:
    return {
        leftover.worktree: leftover.action
        for leftover in store.races.clean(orphans=True, **options)
    }


def test_orphan_is_removed_after_its_retention_time(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    old_worktree = create_orphan(race_factory, race, "old")
    recent_worktree = create_orphan(race_factory, race, "young", days=29)
    with_work = create_orphan(race_factory, race, "work", notes="manual\n")
    (removed,) = store.races.reclaim()
    assert (removed.worktree, removed.action, removed.race_id) == (
        str(old_worktree),
        "removed",
        race.id,
    )
    assert not old_worktree.exists()
    assert recent_worktree.exists()
    assert (with_work / "notes").read_text() == "manual\n"
    assert store.races.reclaim() == []
    store.settings.set("races.worktree_retention_ms", 28 * DAY)
    assert [leftover.worktree for leftover in store.races.reclaim()] == [str(recent_worktree)]
    assert with_work.exists()


def test_confirmed_clean_removes_orphans_without_work(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    empty_worktree = create_orphan(race_factory, race, "empty", days=0)
    with_work = create_orphan(race_factory, race, "work", notes="manual\n")
    assert clean_orphans(store)[str(empty_worktree)] == "remove"
    assert empty_worktree.exists(), "nothing is removed without confirmation"
    assert clean_orphans(store, confirm=True)[str(empty_worktree)] == "removed"
    assert clean_orphans(store, confirm=True)[str(with_work)] == "keep"
    assert (with_work / "notes").read_text() == "manual\n"


def test_diffs_for_a_judge_are_removed_after_their_retention_time(store: Corral) -> None:
    """Their race may have been deleted before the verdict was recorded."""
    old, recent = (sample_folder(f"rac_{name}", 1, 1) for name in ("old", "recent"))
    for sample, days in ((old, 31), (recent, 29)):
        sample.mkdir(parents=True)
        (sample / "A-1.diff").touch()
        modified_at = (store.now() - days * DAY) / 1_000
        os.utime(sample.parent, (modified_at, modified_at))
    store.races.reclaim()
    assert (old.parent.exists(), recent.exists()) == (False, True)


def test_orphan_of_a_deleted_race_is_found(store: Corral, race_factory: RaceFactory) -> None:
    race = race_factory.start("ada")
    folder = create_orphan(race_factory, race, "round-1-1")
    store.projects.delete(race_factory.project)
    assert store.races.list().items == []
    (leftover,) = store.races.clean(orphans=True)
    assert (leftover.worktree, leftover.action, leftover.race_id) == (
        str(folder),
        "remove",
        race.id,
    )
    assert len(store.races.reclaim()) == 1
    assert not (config.races_folder() / race.id).exists(), "the folder of the race is removed too"


def test_recreated_worktree_is_attributed_to_its_attempt(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada", "ada")
    race_factory.end(race, 1)
    race_factory.end(race, 2)
    race_factory.settle(race)
    store.races.clean(race.id, confirm=True)
    folder = create_orphan(race_factory, race, "round-1-2", notes="manual\n")
    (leftover,) = store.races.clean(orphans=True)
    assert (leftover.worktree, leftover.attempt_id) == (str(folder), race.latest.attempts[1].id)
    assert (leftover.action, leftover.uncommitted) == ("keep", 1)


def test_worktrees_of_another_store_are_not_orphans(
    store: Corral, race_factory: RaceFactory, tmp_path: Path
) -> None:
    with corral.open(f"sqlite:///{tmp_path}/other.db", actor="user:other") as other_store:
        other_factory = RaceFactory(
            other_store, config.home() / "other", worktrees=config.races_folder()
        )
        race = other_factory.start("ada")
        (attempt,) = race.latest.attempts
        create_race_folder(other_store._database, race)
        worktrees.create(str(other_factory.repository), attempt.worktree, attempt.branch)
        set_age(store, Path(attempt.worktree), 400)
        # A race of this store in the same repository makes the repository known to it.
        race_factory.repository = other_factory.repository
        race_factory.start("ada")
        assert attempt.worktree not in clean_orphans(store, confirm=True)
        assert store.races.reclaim() == []
        assert Path(attempt.worktree).exists()
        assert other_store.races.reclaim() == [], (
            "the worktree belongs to an attempt of the other store"
        )


def test_folder_without_a_marker_is_listed_and_kept(
    store: Corral, race_factory: RaceFactory
) -> None:
    race_factory.start("ada")
    folder = config.races_folder() / "rac_unknown" / "round-1-1"
    worktrees.create(str(race_factory.repository), str(folder), "corral/unknown")
    set_age(store, folder, 400)
    assert store.races.reclaim() == []
    assert [*clean_orphans(store, confirm=True).values()][-1] == "keep"
    assert folder.exists()


def test_interrupted_removal_is_listed_and_completed(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    create_race_folder(store._database, race)
    partial = config.races_folder() / race.id / f"{worktree_leftovers.REMOVAL_PREFIX}1"
    partial.mkdir()
    (partial / "file").write_text("partial")
    leftovers = {leftover.worktree: leftover for leftover in store.races.clean()}
    assert (leftovers[str(partial)].action, leftovers[str(partial)].race_id) == ("remove", race.id)
    assert leftovers[str(partial)].bytes > 0
    actions = {
        leftover.worktree: leftover.action for leftover in store.races.clean(race.id, confirm=True)
    }
    assert actions[str(partial)] == "removed"
    assert not partial.exists()


def test_old_worktree_of_an_attempt_is_not_an_orphan(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    (attempt,) = race.latest.attempts
    create_race_folder(store._database, race)
    folder = Path(attempt.worktree)
    worktrees.create(str(race_factory.repository), str(folder), attempt.branch)
    set_age(store, folder, 400)
    assert store.races.reclaim() == []
    assert folder.exists()


def test_worktrees_of_a_missing_repository_are_kept(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada")
    folder = create_orphan(race_factory, race, "lost")
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
    store: Corral,
    race_factory: RaceFactory,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merged_race, unmerged_race = race_factory.start("ada"), race_factory.start("ada")
    for race in (merged_race, unmerged_race):
        race_factory.end(race, 1, {"made": f"for {race.id}\n"})
        race_factory.settle(race)
        store.races.select(race.id, "1")
    store.races.merge(merged_race.id)
    for race in (merged_race, unmerged_race):
        store.races.finish(race.id)
        store.races.clean(race.id, confirm=True)
    assert list_pinned_races(race_factory) == {merged_race.id, unmerged_race.id}
    assert store.races.reclaim() == [], "the store still has both races"
    clock.advance(366 * DAY)
    store.db.prune()
    assert store.races.list().items == []
    leftovers = {leftover.race_id: leftover for leftover in store.races.clean(orphans=True)}
    assert (leftovers[merged_race.id].action, leftovers[unmerged_race.id].action) == (
        "remove",
        "keep",
    )
    assert (leftovers[unmerged_race.id].unmerged, list_pinned_races(race_factory)) == (
        1,
        {merged_race.id, unmerged_race.id},
    )
    assert "git branch NAME" in leftovers[unmerged_race.id].reason
    (removed,) = store.races.reclaim()
    assert (removed.race_id, removed.action) == (merged_race.id, "removed")
    assert list_pinned_races(race_factory) == {unmerged_race.id}, (
        "the unmerged commit exists nowhere else"
    )
    assert [folder.name for folder in config.races_folder().iterdir()] == [unmerged_race.id]
    ref = git(race_factory.repository, "for-each-ref", "--format=%(refname)", "refs/corral")
    git(race_factory.repository, "branch", "saved", ref)
    unrelated = tmp_path / os.path.dirname(ref)
    unrelated.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert [leftover.action for leftover in store.races.clean(orphans=True, confirm=True)] == [
        "removed"
    ]
    assert unrelated.is_dir(), "a ref is not the path of a folder"
    assert list_pinned_races(race_factory) == set()
    assert [*config.races_folder().iterdir()] == []


def test_commits_pinned_by_another_store_are_kept(
    store: Corral, race_factory: RaceFactory, tmp_path: Path
) -> None:
    with corral.open(f"sqlite:///{tmp_path}/other.db", actor="user:other") as other_store:
        factory = RaceFactory(other_store, config.home() / "other", worktrees=config.races_folder())
        race = factory.start("ada")
        pin_commit(other_store._database, race, "1-1", "main")
        assert store.races.reclaim() == []
        assert git_history.list_kept(race.repository, race.id) == [f"{race.id}/1-1"]


def list_pinned_races(race_factory: RaceFactory) -> set[str]:
    """Return the races whose commits the repository pins."""
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
    empty_branch, own_branch = (
        attempt.branch for attempt in store.races.get(race.id).latest.attempts
    )
    git(race_factory.repository, "branch", empty_branch, "main")
    git(race_factory.repository, "branch", own_branch, race_factory.commit({"notes": "manual\n"}))
    store.races.clean(race.id, confirm=True)
    branches = git(race_factory.repository, "branch", "--format=%(refname:short)").split("\n")
    assert empty_branch not in branches
    assert own_branch in branches, "only this branch has the commit"
