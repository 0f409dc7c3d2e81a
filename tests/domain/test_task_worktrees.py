"""Cleanup of task worktrees never removes uncommitted or unmerged work."""

import shutil
from pathlib import Path

import pytest

from corral.adapters import worktrees
from corral.api import Corral
from corral.services.tasks.autostart import worktrees_folder
from tests.support.git_repositories import commit, git, new_repository, write


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repository")


def begin(store: Corral, repository: Path, *keys: str) -> tuple[str, dict[str, Path]]:
    """A project with tasks, each with a worktree as the task starter creates it."""
    project = store.projects.register(repository).id
    folders = {}
    for task in store.tasks.declare(project, [{"key": key} for key in keys]):
        folder = worktrees_folder() / project / task.id
        branch = worktrees.make_branch_name(task.key, task.id)
        worktrees.create(str(repository), str(folder), branch, own_branch=True)
        folders[task.key] = folder
    return project, folders


def cleaned(store: Corral, project: str, *, confirm: bool) -> dict[str | None, tuple[str, str]]:
    found = store.tasks.clean(project, confirm=confirm)
    return {one.key: (one.action, one.reason) for one in found}


def test_only_worktrees_of_ended_and_merged_tasks_are_removed(
    store: Corral, repository: Path
) -> None:
    project, folders = begin(store, repository, "going", "merged", "unmerged", "dirty", "gone")
    merged = commit(folders["merged"], {"merged": "x"})
    git(repository, "merge", "-q", "--ff-only", merged)
    commit(folders["unmerged"], {"unmerged": "x"})
    write(folders["dirty"], {"work": "x"})
    shutil.rmtree(folders["gone"])
    for key in ("merged", "unmerged", "dirty", "gone"):
        store.tasks.cancel(store.tasks.get(key, project=project).id)
    expected = {
        "going": ("keep", "its task is ready"),
        "merged": ("remove", "all its work exists elsewhere too"),
        "unmerged": ("keep", "1 unmerged commit"),
        "dirty": ("keep", "1 untracked"),
        "gone": ("gone", "it no longer exists"),
    }
    assert cleaned(store, project, confirm=False) == expected
    assert folders["merged"].exists(), "it was only asked"
    done = {
        key: ("keep" if action == "keep" else "removed", reason)
        for key, (action, reason) in expected.items()
    }
    assert cleaned(store, project, confirm=True) == done
    assert [key for key, folder in folders.items() if folder.exists()] == [
        "going",
        "unmerged",
        "dirty",
    ]
    assert len(git(repository, "branch", "--list", "corral/*").split("\n")) == 3
    assert len(cleaned(store, project, confirm=True)) == 3


def test_worktrees_unknown_to_git_or_the_store_are_listed(store: Corral, repository: Path) -> None:
    project, _ = begin(store, repository, "A")
    root = worktrees_folder() / project
    write(root / "stranger", {"file": "x"})
    worktrees.create(str(repository), str(root / "tsk_unknown"), "corral/unknown")
    found = {one.task_id: (one.key, one.action) for one in store.tasks.clean(project)}
    assert found["stranger"] == (None, "keep")
    assert found["tsk_unknown"] == (None, "remove")
    shutil.rmtree(repository)
    assert {one.action for one in store.tasks.clean(project, confirm=True)} == {"keep"}
    assert (root / "stranger/file").exists()
