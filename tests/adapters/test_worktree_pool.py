"""The worktree pool: a reused worktree has no trace of its earlier use."""

import os
import shutil
import signal
import stat
import subprocess
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.git import git as adapter
from corral.adapters.worktrees import worktree_leftovers, worktree_pool, worktrees
from corral.adapters.worktrees.worktree_pool import WorktreePool
from tests.support.git_repositories import commit, git, new_repository, write
from tests.support.processes import Child

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_git")]

NEWLINE = "a\nname"
FILES: dict[str, str | bytes] = {
    "README": "hello\n",
    "src/a.py": "a = 1\n",
    "src/deep/b.py": "b = 1\n",
    NEWLINE: "x\n",
    '"quoted': "x\n",
    "bytes": b"\x00\xff",
    "program": "#!/bin/sh\n",
    ".gitignore": "cache/\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = new_repository(tmp_path / "repository", FILES)
    (top / "program").chmod(0o755)
    (top / "link").symlink_to("src/a.py")
    commit(top, {})
    return top


@pytest.fixture
def pool(repository: Path) -> WorktreePool:
    return worktree_pool.find_pool(str(repository.parent / "pool"), str(repository), 2)


def create_worktree(
    repository: Path, name: str, from_pool: WorktreePool | None = None, base: str = "main"
) -> Path:
    folder = repository.parent / "worktrees" / name
    branch = f"corral/{name}"
    worktrees.create(str(repository), str(folder), branch, base=base, pool=from_pool)
    return folder


def return_to_pool(repository: Path, folder: Path, pool: WorktreePool) -> None:
    git(repository, "branch", "-f", "saved", f"corral/{folder.name}")
    worktrees.remove(str(repository), str(folder), delete_branch=True, despite=["dirty"], pool=pool)
    assert not folder.exists()


def list_pool_folders(pool: WorktreePool) -> list[str]:
    return [entry.folder for entry in worktree_pool.list_entries(str(Path(pool.folder).parent))]


def read_tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file, folder and link with its mode and content."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == ".git":
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            files[name] = (mode, os.fsencode(path.readlink()))
        else:
            files[name] = (mode, path.read_bytes() if stat.S_ISREG(mode) else b"")
    return files


def assert_as_new(repository: Path, folder: Path, base: str = "main") -> None:
    plain = repository.parent / "plain"
    git(repository, "worktree", "add", "-q", "--detach", str(plain), base)
    try:
        assert read_tree(folder) == read_tree(plain)
    finally:
        git(repository, "worktree", "remove", "--force", str(plain))
    assert git(folder, "rev-parse", "HEAD") == git(repository, "rev-parse", base)
    assert git(folder, "status", "--porcelain", "--ignored") == ""
    assert git(folder, "branch", "--show-current") == f"corral/{folder.name}"
    state = worktrees.inspect(str(repository), str(folder))
    assert (state.clean, state.locked) == (True, None)


def test_changes_of_an_agent_are_not_in_the_reused_worktree(
    repository: Path, pool: WorktreePool
) -> None:
    folder = create_worktree(repository, "one")
    before = (folder / "README").stat()
    write(
        folder,
        {"README": "hallo\n", "cache/x": "leftover", "new/y": "leftover", "src/a.py": "a = 2\n"},
    )
    os.utime(folder / "README", ns=(before.st_atime_ns, before.st_mtime_ns))
    git(folder, "update-index", "--assume-unchanged", "src/a.py")
    (folder / "program").chmod(0o644)
    (folder / NEWLINE).chmod(0o755)
    (folder / "bytes").chmod(0o600)
    (folder / "src/deep").chmod(0o700)
    os.link(folder / "src/deep/b.py", repository.parent / "outside")
    (folder / "link").unlink()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    new_repository(folder / "inner")
    return_to_pool(repository, folder, pool)
    (entry,) = list_pool_folders(pool)
    assert not (Path(entry) / "cache").exists(), "untracked files are not kept in the pool"
    two = create_worktree(repository, "two", pool)
    assert list_pool_folders(pool) == []
    assert_as_new(repository, two)
    assert (two / "src/deep/b.py").stat().st_nlink == 1


def test_folders_and_symlinks_that_replaced_files_are_removed(
    repository: Path, pool: WorktreePool
) -> None:
    folder = create_worktree(repository, "one")
    (folder / "README").unlink()
    write(folder, {"README/inside": "x"})
    shutil.rmtree(folder / "src")
    outside = repository.parent / "outside"
    write(outside, {"a.py": "a = 1\n", "deep/b.py": "b = 1\n"})
    (folder / "src").symlink_to(outside)
    return_to_pool(repository, folder, pool)
    assert_as_new(repository, create_worktree(repository, "two", pool))
    assert (outside / "a.py").read_text() == "a = 1\n"


def test_pool_folders_are_private(repository: Path, pool: WorktreePool) -> None:
    return_to_pool(repository, create_worktree(repository, "one"), pool)
    for folder in (Path(pool.folder), Path(pool.folder).parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_reused_worktree_is_at_the_requested_commit(repository: Path, pool: WorktreePool) -> None:
    first = git(repository, "rev-parse", "main")
    return_to_pool(repository, create_worktree(repository, "one"), pool)
    commit(repository, {"src/a.py": "a = 3\n", "later": "x\n"})
    git(repository, "rm", "-q", "src/deep/b.py")
    commit(repository, {})
    two = create_worktree(repository, "two", pool)
    assert_as_new(repository, two)
    return_to_pool(repository, two, pool)
    assert_as_new(repository, create_worktree(repository, "three", pool, first), first)


@pytest.mark.parametrize("attributes", ["* text eol=crlf\n", "* ident\n"])
def test_files_with_git_conversions_are_checked_out_again(
    repository: Path, pool: WorktreePool, attributes: str
) -> None:
    commit(repository, {".gitattributes": attributes, "src/a.py": "# $Id$\n"})
    folder = create_worktree(repository, "one")
    # Git treats both forms as the same content.
    kept_as = subprocess.run(
        ["git", "show", "HEAD:src/a.py"], cwd=folder, capture_output=True, check=True
    )
    (folder / "src/a.py").write_bytes(kept_as.stdout)
    return_to_pool(repository, folder, pool)
    assert_as_new(repository, create_worktree(repository, "two", pool))


def test_gitattributes_of_an_agent_are_ignored(repository: Path, pool: WorktreePool) -> None:
    folder = create_worktree(repository, "one")
    write(folder, {".gitattributes": "* text eol=crlf\n", "README": "hello\r\n"})
    return_to_pool(repository, folder, pool)
    assert_as_new(repository, create_worktree(repository, "two", pool))


@pytest.mark.parametrize("attributes", ["* text=auto\n", "* text\n", "*.py text\n"])
def test_changed_line_endings_are_detected(
    repository: Path, pool: WorktreePool, attributes: str
) -> None:
    commit(repository, {".gitattributes": attributes})
    folder = create_worktree(repository, "one")
    write(folder, {"README": "hello\r\n", "src/a.py": b"a = 1\r\n"})
    return_to_pool(repository, folder, pool)
    assert_as_new(repository, create_worktree(repository, "two", pool))


@pytest.mark.parametrize("location", [".gitattributes", "src/.gitattributes"])
def test_changed_repository_attributes_do_not_hide_changes(
    repository: Path, pool: WorktreePool, location: str
) -> None:
    commit(repository, {location: "# none\n"})
    git(repository, "config", "core.autocrlf", "input")
    folder = create_worktree(repository, "one")
    before = (folder / location).stat()
    write(folder, {location: "* text\n", "README": "hello\r\n", "src/a.py": "a = 1\r\n"})
    os.utime(folder / location, ns=(before.st_atime_ns, before.st_mtime_ns))
    return_to_pool(repository, folder, pool)
    assert_as_new(repository, create_worktree(repository, "two", pool))


def test_clean_filter_of_the_user_does_not_hide_changes(
    repository: Path, pool: WorktreePool
) -> None:
    git(repository, "config", "filter.same.clean", "printf 'hello\\n'")
    # The content equals the filter's output, so git never reports a change.
    commit(repository, {".gitattributes": "src/* filter=same\n", "src/a.py": "hello\n"})
    folder = create_worktree(repository, "one")
    write(folder, {".gitattributes": "* filter=same\n", "README": "local\n"})
    return_to_pool(repository, folder, pool)
    assert_as_new(repository, create_worktree(repository, "two", pool))


def test_pool_is_bounded_and_rejects_submodules(
    repository: Path, pool: WorktreePool, tmp_path: Path
) -> None:
    for folder in [create_worktree(repository, name) for name in ("one", "two", "three")]:
        return_to_pool(repository, folder, pool)
    assert len(list_pool_folders(pool)) == 2
    assert worktree_leftovers.find_interrupted_removals(str(repository.parent)) == []
    return_to_pool(repository, create_worktree(repository, "four"), WorktreePool(pool.folder, 0))
    assert len(list_pool_folders(pool)) == 2
    for entry in list_pool_folders(pool):
        worktree_pool.delete_entry(entry)
    assert not Path(pool.folder).exists()
    inner = new_repository(tmp_path / "inner")
    allow = ("-c", "protocol.file.allow=always")
    git(repository, *allow, "submodule", "--quiet", "add", str(inner), "deps")
    commit(repository, {})
    return_to_pool(repository, create_worktree(repository, "five"), pool)
    assert list_pool_folders(pool) == []


def test_repository_with_conversions_does_not_use_the_pool(
    repository: Path, pool: WorktreePool
) -> None:
    return_to_pool(repository, create_worktree(repository, "one"), pool)
    git(repository, "config", "core.autocrlf", "true")
    create_worktree(repository, "two", pool)
    assert len(list_pool_folders(pool)) == 1


def test_pool_entry_is_taken_once(repository: Path, pool: WorktreePool) -> None:
    for folder in [create_worktree(repository, name) for name in ("one", "two")]:
        return_to_pool(repository, folder, pool)
    with ThreadPoolExecutor(4) as threads:
        folders = [
            *threads.map(lambda name: create_worktree(repository, f"n{name}", pool), range(4))
        ]
    for folder in folders:
        assert_as_new(repository, folder)
    assert list_pool_folders(pool) == []
    assert os.listdir(pool.folder) == [worktree_pool.REPOSITORY_FILE]


def test_too_deep_folder_does_not_block_the_pool(repository: Path, pool: WorktreePool) -> None:
    folder = create_worktree(repository, "one")
    deep = folder
    original_folder = os.getcwd()
    try:
        os.chdir(deep)
        for _ in range(1_500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(original_folder)
    write(folder, {".gitignore": "d\n"})
    return_to_pool(repository, folder, pool)
    assert_as_new(repository, create_worktree(repository, "two", pool))


STEPS = ("rename", "chmod", "unlink", "rmdir", "utime", "mkdir")
STRIDE = 1 if os.environ.get("CORRAL_CRASH") == "all" else 3


def run_and_kill_at_step(number: int, action: Callable[[], object]) -> bool:
    """Run an action in a process that is killed before so many git commands and file operations.

    Return whether it was killed; False: the action finished first.
    """
    remaining = number

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    def act() -> None:
        adapter._start = dying(adapter._start)
        for name in STEPS:
            setattr(os, name, dying(getattr(os, name)))
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os.abort()

    with Child(act) as child:
        ended = child.ended_by()
    assert ended in (None, signal.SIGKILL), "the action failed"
    return ended is not None


def test_crash_while_taking_leaves_a_complete_or_recreated_worktree(
    repository: Path, pool: WorktreePool
) -> None:
    folder = repository.parent / "worktrees" / "two"

    def make() -> None:
        worktrees.create(str(repository), str(folder), "corral/two", base="main", pool=pool)

    for last in range(1, 200, STRIDE):
        return_to_pool(repository, create_worktree(repository, "one"), pool)
        killed = run_and_kill_at_step(last, make)
        create_worktree(repository, "two", pool)
        assert_as_new(repository, folder)
        worktree_pool.delete_abandoned(str(Path(pool.folder).parent))
        assert not [
            name for name in os.listdir(pool.folder) if name.startswith(worktree_pool.CLAIM_PREFIX)
        ]
        return_to_pool(repository, folder, pool)
        for entry in list_pool_folders(pool):
            worktree_pool.delete_entry(entry)
        if not killed:
            break
    assert not killed
    assert last > 10


def test_crash_while_pooling_loses_nothing_and_leaves_no_orphan(
    repository: Path, pool: WorktreePool
) -> None:
    root = str(repository.parent / "worktrees")
    folder = repository.parent / "worktrees" / "one"

    def remove() -> None:
        worktrees.remove(
            str(repository), str(folder), delete_branch=True, despite=["dirty"], pool=pool
        )

    for last in range(1, 200, STRIDE):
        create_worktree(repository, "one")
        write(folder, {"cache/x": "leftover", "README": "changed\n"})
        killed = run_and_kill_at_step(last, remove)
        listed = worktree_leftovers.find_orphans([str(repository)], root, [])
        if folder.exists():
            assert [entry.folder for entry in listed] == [str(folder)]
            assert (folder / "README").read_text() == "changed\n"
        remove()
        worktree_leftovers.finish_removals(root)
        assert git(repository, "branch", "--list", "corral/one") == "", "the branch is deleted too"
        assert worktree_leftovers.find_orphans([str(repository)], root, []) == []
        assert_as_new(repository, create_worktree(repository, "two", pool))
        worktrees.remove(str(repository), str(folder.with_name("two")), delete_branch=True)
        if not killed:
            break
    assert not killed
    assert last > 10
