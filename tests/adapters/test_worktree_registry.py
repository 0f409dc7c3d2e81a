"""The worktree registry with hostile git metadata: a worktree cannot claim the work of another, and
its configuration runs no program."""

import os
from pathlib import Path

import pytest

from corral.adapters import git_history, merges, worktrees
from corral.adapters.worktree_registry import find_checkout, resolve_checkout, sanitize_config
from tests.support.git_repositories import commit, git, new_repository, write

pytestmark = pytest.mark.usefixtures("plain_git")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repository")


def made(repository: Path, name: str) -> Path:
    folder = repository.parent / name
    worktrees.create(str(repository), str(folder), f"corral/{name}")
    return folder


def own_of(tree: Path) -> Path:
    return Path((tree / ".git").read_text().removeprefix("gitdir:").strip())


@pytest.fixture
def trap(repository: Path) -> Path:
    """What is there once a program of an agent's has been run; its worktree's own configuration is
    read by git."""
    git(repository, "config", "extensions.worktreeConfig", "true")
    return repository.parent / "run-by-another"


def bite(trap: Path) -> str:
    return f'[filter "bite"]\n\tclean = "touch {trap}; cat"\n'


def say_it_is_at(tree: Path, folder: Path) -> None:
    """Write down another place for a worktree, as an agent in a sandbox can."""
    (own_of(tree) / "gitdir").write_text(f"{folder}/.git\n")


@pytest.mark.parametrize(("thief", "victim"), [("one", "two"), ("two", "one")])
def test_worktree_that_claims_another_folder_gets_none_of_its_work(
    repository: Path, thief: str, victim: str
) -> None:
    trees = {name: made(repository, name) for name in (thief, victim)}
    own = own_of(trees[victim])
    say_it_is_at(trees[thief], trees[victim])
    found = find_checkout(str(repository), str(trees[victim]))
    assert found is not None
    assert found.own == str(own)
    write(trees[victim], {"mine": "x\n"})
    git_history.commit_all(str(repository), str(trees[victim]), "what it left")
    assert git(repository, "show", f"corral/{victim}:mine") == "x"
    assert git(repository, "rev-parse", f"corral/{thief}") == git(repository, "rev-parse", "main")


def test_conflicting_worktree_claims_are_ignored(
    repository: Path,
) -> None:
    one, two = made(repository, "one"), made(repository, "two")
    say_it_is_at(one, two)
    (two / ".git").write_text("gitdir: /nowhere\n")
    assert find_checkout(str(repository), str(two)) is None


def test_folder_of_the_user_is_not_a_worktree_of_an_agent(repository: Path) -> None:
    say_it_is_at(made(repository, "one"), repository)
    git_dir = str(repository / ".git")
    assert resolve_checkout(git_dir, str(repository)).own == git_dir


@pytest.mark.parametrize("there", [True, False])
def test_merge_never_writes_into_a_folder_named_by_an_agent(repository: Path, there: bool) -> None:
    one, home = made(repository, "one"), repository.parent / "home"
    write(home, {"README": "hello\n"})
    if there:
        worktrees.create(str(repository), str(repository.parent / "users"), "wanted")
    else:
        git(repository, "branch", "wanted")
    work = commit(one, {".profile": "evil\n"})
    (own_of(one) / "HEAD").write_text("ref: refs/heads/wanted\n")
    git(one, "read-tree", "wanted")
    say_it_is_at(one, home)
    assert (
        merges.merge_commit(str(repository), work, "wanted", message="merge it").outcome == "merged"
    )
    assert git(repository, "rev-parse", "wanted") == work
    assert not (home / ".profile").exists()
    if there:
        assert (repository.parent / "users" / ".profile").exists()


def test_merge_moves_only_the_named_branch(repository: Path) -> None:
    one, two = made(repository, "one"), made(repository, "two")
    git(repository, "branch", "wanted")
    work = commit(one, {"new": "x\n"})
    (own_of(one) / "HEAD").write_text("ref: refs/heads/wanted\n")
    say_it_is_at(one, two)
    merges.merge_commit(str(repository), work, "wanted", message="merge it")
    assert git(repository, "rev-parse", "wanted") == work
    assert git(repository, "rev-parse", "corral/two") == git(repository, "rev-parse", "main")
    assert not (two / "new").exists()


def test_named_pipe_does_not_block_worktree_lookup(repository: Path) -> None:
    one, two = made(repository, "one"), made(repository, "two")
    (own_of(one) / "gitdir").unlink()
    os.mkfifo(own_of(one) / "gitdir")
    assert find_checkout(str(repository), str(two)) is not None


# -- its own configuration -------------------------------------------------------------------------


def test_git_config_far_behind_in_a_file_runs_no_program(repository: Path, trap: Path) -> None:
    one = made(repository, "one")
    (own_of(one) / "config.worktree").write_text("\n" * 100_000 + bite(trap))
    write(one, {".gitattributes": "* filter=bite\n", "README": "changed\n"})
    git_history.commit_all(str(repository), str(one), "what it left")
    assert not trap.exists()


def test_git_config_in_a_named_pipe_is_ignored(repository: Path) -> None:
    """It is empty while it is looked at; git would read what somebody says into it then."""
    one = made(repository, "one")
    pipe = own_of(one) / "config.worktree"
    os.mkfifo(pipe)
    sanitize_config(str(own_of(one)))
    assert pipe.is_file()
    assert worktrees.inspect(str(repository), str(one)).clean
