"""Private repositories for folders without git."""

import os
import stat
from pathlib import Path

import pytest

from corral.adapters.git import git_history, snapshot_repositories
from corral.adapters.worktrees import worktrees
from corral.kernel.errors import Refused
from tests.support.errors import because
from tests.support.git_repositories import git, new_repository, write

pytestmark = pytest.mark.usefixtures("plain_git")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(
        folder,
        {
            "main.py": "print()\n",
            "node_modules/big/index.js": "x",
            "sub/node_modules/y": "x",
            ".gitignore": "secret\n",
            "secret": "key",
            "venv": "a file, no folder",
            os.fsdecode(b"odd\n\xff"): "odd",
        },
    )
    (folder / "link").symlink_to("main.py")
    return folder


def list_files(folder: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (os.path.join(parent, name), info.st_mtime_ns, info.st_size)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
        for info in [os.lstat(os.path.join(parent, name))]
    )


def test_snapshot_commits_a_folder_without_changing_it(folder: Path, tmp_path: Path) -> None:
    private = tmp_path / "home" / "private" / "one.git"
    before = list_files(folder)
    first = snapshot_repositories.snapshot_folder(str(folder), str(private), message="as it is")
    assert list_files(folder) == before
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    names = git(private, "ls-tree", "-r", "-z", "--name-only", first.commit).split("\0")[:-1]
    assert names == [".gitignore", "link", "main.py", os.fsdecode(b"odd\n\xff"), "venv"]
    assert first.made
    unchanged = snapshot_repositories.snapshot_folder(str(folder), str(private), message="second")
    assert (unchanged.made, unchanged.commit) == (False, first.commit)
    (folder / "main.py").unlink()
    write(folder, {"new": "x"})
    second = snapshot_repositories.snapshot_folder(str(folder), str(private), message="later")
    changes = git_history.list_changes(str(private), first.commit, second.commit)
    assert sorted(change.name for change in changes) == ["main.py", "new"]
    assert git(private, "rev-parse", "main", "main^") == f"{second.commit}\n{first.commit}"


def test_worktree_of_a_snapshot_repository_works(folder: Path, tmp_path: Path) -> None:
    private = str(tmp_path / "one.git")
    base = snapshot_repositories.snapshot_folder(str(folder), private, message="as it is").commit
    tree = tmp_path / "tree"
    worktrees.create(private, str(tree), "corral/one", base=base)
    assert (tree / "main.py").read_text() == "print()\n"
    write(tree, {"made": "x", "node_modules/x": "y"})
    saved = git_history.commit_all(private, str(tree), "done")
    assert [change.name for change in git_history.list_changes(private, base, saved.commit)] == [
        "made"
    ]
    assert worktrees.inspect(private, str(tree)).unmerged == 1


def test_nested_repositories_are_reported(folder: Path, tmp_path: Path) -> None:
    new_repository(folder / "inner")
    snapshot = snapshot_repositories.snapshot_folder(
        str(folder), str(tmp_path / "one.git"), message="x"
    )
    assert snapshot.left_out == ["inner/"]
    assert "inner" not in git(tmp_path / "one.git", "ls-tree", "--name-only", "main")


def test_snapshot_of_an_unsuitable_folder_is_rejected(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, check=because("contains_data")):
        snapshot_repositories.snapshot_folder(str(folder), str(folder / ".corral"), message="x")
    known = new_repository(tmp_path / "known")
    assert snapshot_repositories.is_in_git(str(known))
    assert not snapshot_repositories.is_in_git(str(folder))
    with pytest.raises(Refused, check=because("already_a_repository")):
        snapshot_repositories.snapshot_folder(str(known), str(tmp_path / "x.git"), message="x")
    with pytest.raises(Refused, check=because("not_a_folder")):
        snapshot_repositories.snapshot_folder(
            str(tmp_path / "nowhere"), str(tmp_path / "x.git"), message="x"
        )
    assert not (tmp_path / "x.git").exists()
