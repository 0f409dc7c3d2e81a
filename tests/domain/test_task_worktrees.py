"""Cleanup of task worktrees: uncommitted and unmerged work is never removed."""

import shutil
from pathlib import Path

import pytest

from corral import config
from corral.adapters.worktrees import worktrees
from corral.api import Corral
from tests.support.git_repositories import commit, git, new_repository, write


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repository")


def create_tasks(store: Corral, repository: Path, *keys: str) -> tuple[str, dict[str, Path]]:
    """Create a project with tasks, each with a worktree as the task starter creates it."""
    project = store.projects.register(repository).id
    folders = {}
    for task in store.tasks.declare(project, [{"key": key} for key in keys]):
        folder = config.worktrees_folder() / project / task.id
        branch = worktrees.make_branch_name(task.key, task.id)
        worktrees.create(str(repository), str(folder), branch, own_branch=True)
        folders[task.key] = folder
    return project, folders


def clean_worktrees(
    store: Corral, project: str, *, confirm: bool
) -> dict[str | None, tuple[str, str]]:
    results = store.tasks.clean(project, confirm=confirm)
    return {result.key: (result.action, result.reason) for result in results}


def test_only_worktrees_of_ended_and_merged_tasks_are_removed(
    store: Corral, repository: Path
) -> None:
    project, folders = create_tasks(
        store, repository, "ready", "merged", "unmerged", "dirty", "missing"
    )
    merged = commit(folders["merged"], {"merged": "x"})
    git(repository, "merge", "-q", "--ff-only", merged)
    commit(folders["unmerged"], {"unmerged": "x"})
    write(folders["dirty"], {"work": "x"})
    shutil.rmtree(folders["missing"])
    for key in ("merged", "unmerged", "dirty", "missing"):
        store.tasks.cancel(store.tasks.get(key, project=project).id)
    expected = {
        "ready": ("keep", "its task is ready"),
        "merged": ("remove", "all its work exists elsewhere too"),
        "unmerged": ("keep", "1 unmerged commit"),
        "dirty": ("keep", "1 untracked"),
        "missing": ("gone", "it no longer exists"),
    }
    assert clean_worktrees(store, project, confirm=False) == expected
    assert folders["merged"].exists(), "nothing is removed without confirmation"
    expected_after = {
        key: ("keep" if action == "keep" else "removed", reason)
        for key, (action, reason) in expected.items()
    }
    assert clean_worktrees(store, project, confirm=True) == expected_after
    assert [key for key, folder in folders.items() if folder.exists()] == [
        "ready",
        "unmerged",
        "dirty",
    ]
    assert len(git(repository, "branch", "--list", "corral/*").split("\n")) == 3
    assert len(clean_worktrees(store, project, confirm=True)) == 3


def test_worktrees_unknown_to_git_or_the_store_are_listed(store: Corral, repository: Path) -> None:
    project, _ = create_tasks(store, repository, "A")
    root = config.worktrees_folder() / project
    write(root / "foreign", {"file": "x"})
    worktrees.create(str(repository), str(root / "tsk_unknown"), "corral/unknown")
    results = {result.task_id: (result.key, result.action) for result in store.tasks.clean(project)}
    assert results["foreign"] == (None, "keep")
    assert results["tsk_unknown"] == (None, "remove")
    shutil.rmtree(repository)
    assert {result.action for result in store.tasks.clean(project, confirm=True)} == {"keep"}
    assert (root / "foreign/file").exists()
