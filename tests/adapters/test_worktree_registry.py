"""The worktree registry with hostile git metadata: no false claims, and no program runs."""

import os
from pathlib import Path

import pytest

from corral.adapters.git import git_history, merges
from corral.adapters.worktrees import worktrees
from corral.adapters.worktrees.worktree_registry import (
    find_checkout,
    resolve_checkout,
    sanitize_config,
)
from tests.support.git_repositories import commit, git, new_repository, write

pytestmark = pytest.mark.usefixtures("plain_git")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repository")


def create_worktree(repository: Path, name: str) -> Path:
    folder = repository.parent / name
    worktrees.create(str(repository), str(folder), f"corral/{name}")
    return folder


def read_git_dir(tree: Path) -> Path:
    return Path((tree / ".git").read_text().removeprefix("gitdir:").strip())


@pytest.fixture
def trap(repository: Path) -> Path:
    """The file that a forged git setting would create. Git reads per-worktree settings here."""
    git(repository, "config", "extensions.worktreeConfig", "true")
    return repository.parent / "run-by-another"


def make_setting(trap: Path) -> str:
    return f'[filter "bite"]\n\tclean = "touch {trap}; cat"\n'


def register_folder(tree: Path, folder: Path) -> None:
    """Register another folder for a worktree, which a sandboxed agent can do."""
    (read_git_dir(tree) / "gitdir").write_text(f"{folder}/.git\n")


@pytest.mark.parametrize(("thief", "victim"), [("one", "two"), ("two", "one")])
def test_worktree_that_claims_another_folder_gets_none_of_its_work(
    repository: Path, thief: str, victim: str
) -> None:
    trees = {name: create_worktree(repository, name) for name in (thief, victim)}
    git_dir = read_git_dir(trees[victim])
    register_folder(trees[thief], trees[victim])
    checkout = find_checkout(str(repository), str(trees[victim]))
    assert checkout is not None
    assert checkout.own == str(git_dir)
    write(trees[victim], {"mine": "x\n"})
    git_history.commit_all(str(repository), str(trees[victim]), "leftovers")
    assert git(repository, "show", f"corral/{victim}:mine") == "x"
    assert git(repository, "rev-parse", f"corral/{thief}") == git(repository, "rev-parse", "main")


def test_conflicting_worktree_claims_are_ignored(
    repository: Path,
) -> None:
    first, second = create_worktree(repository, "one"), create_worktree(repository, "two")
    register_folder(first, second)
    (second / ".git").write_text("gitdir: /nowhere\n")
    assert find_checkout(str(repository), str(second)) is None


def test_folder_of_the_user_is_not_a_worktree_of_an_agent(repository: Path) -> None:
    register_folder(create_worktree(repository, "one"), repository)
    git_dir = str(repository / ".git")
    assert resolve_checkout(git_dir, str(repository)).own == git_dir


@pytest.mark.parametrize("is_checked_out", [True, False])
def test_merge_never_writes_into_a_folder_named_by_an_agent(
    repository: Path, is_checked_out: bool
) -> None:
    worktree, home = create_worktree(repository, "one"), repository.parent / "home"
    write(home, {"README": "hello\n"})
    if is_checked_out:
        worktrees.create(str(repository), str(repository.parent / "users"), "wanted")
    else:
        git(repository, "branch", "wanted")
    work = commit(worktree, {".profile": "evil\n"})
    (read_git_dir(worktree) / "HEAD").write_text("ref: refs/heads/wanted\n")
    git(worktree, "read-tree", "wanted")
    register_folder(worktree, home)
    assert (
        merges.merge_commit(str(repository), work, "wanted", message="merge it").outcome == "merged"
    )
    assert git(repository, "rev-parse", "wanted") == work
    assert not (home / ".profile").exists()
    if is_checked_out:
        assert (repository.parent / "users" / ".profile").exists()


def test_merge_moves_only_the_named_branch(repository: Path) -> None:
    first, second = create_worktree(repository, "one"), create_worktree(repository, "two")
    git(repository, "branch", "wanted")
    work = commit(first, {"new": "x\n"})
    (read_git_dir(first) / "HEAD").write_text("ref: refs/heads/wanted\n")
    register_folder(first, second)
    merges.merge_commit(str(repository), work, "wanted", message="merge it")
    assert git(repository, "rev-parse", "wanted") == work
    assert git(repository, "rev-parse", "corral/two") == git(repository, "rev-parse", "main")
    assert not (second / "new").exists()


def test_named_pipe_does_not_block_worktree_lookup(repository: Path) -> None:
    first, second = create_worktree(repository, "one"), create_worktree(repository, "two")
    (read_git_dir(first) / "gitdir").unlink()
    os.mkfifo(read_git_dir(first) / "gitdir")
    assert find_checkout(str(repository), str(second)) is not None


# -- hostile configuration -------------------------------------------------------------------------


def test_git_config_far_behind_in_a_file_runs_no_program(repository: Path, trap: Path) -> None:
    worktree = create_worktree(repository, "one")
    (read_git_dir(worktree) / "config.worktree").write_text("\n" * 100_000 + make_setting(trap))
    write(worktree, {".gitattributes": "* filter=bite\n", "README": "changed\n"})
    git_history.commit_all(str(repository), str(worktree), "leftovers")
    assert not trap.exists()


def test_git_config_in_a_named_pipe_is_ignored(repository: Path) -> None:
    """The pipe is empty during the check; git could read other content later."""
    worktree = create_worktree(repository, "one")
    pipe = read_git_dir(worktree) / "config.worktree"
    os.mkfifo(pipe)
    sanitize_config(str(read_git_dir(worktree)))
    assert pipe.is_file()
    assert worktrees.inspect(str(repository), str(worktree)).clean
