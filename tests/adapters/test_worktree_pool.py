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

from corral.adapters import git as adapter
from corral.adapters import worktree_leftovers, worktree_pool, worktrees
from corral.adapters.worktree_pool import WorktreePool
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
def kept(repository: Path) -> WorktreePool:
    return worktree_pool.find_pool(str(repository.parent / "pool"), str(repository), 2)


def made(
    repository: Path, name: str, from_pool: WorktreePool | None = None, base: str = "main"
) -> Path:
    folder = repository.parent / "worktrees" / name
    branch = f"corral/{name}"
    worktrees.create(str(repository), str(folder), branch, base=base, pool=from_pool)
    return folder


def put(repository: Path, folder: Path, kept: WorktreePool) -> None:
    git(repository, "branch", "-f", "saved", f"corral/{folder.name}")
    worktrees.remove(str(repository), str(folder), delete_branch=True, despite=["dirty"], pool=kept)
    assert not folder.exists()


def entries(kept: WorktreePool) -> list[str]:
    return [each.folder for each in worktree_pool.list_entries(str(Path(kept.folder).parent))]


def whole(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file, folder and link, with its mode and what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == ".git":
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[name] = (mode, os.fsencode(path.readlink()))
        else:
            found[name] = (mode, path.read_bytes() if stat.S_ISREG(mode) else b"")
    return found


def assert_as_new(repository: Path, folder: Path, base: str = "main") -> None:
    plain = repository.parent / "plain"
    git(repository, "worktree", "add", "-q", "--detach", str(plain), base)
    try:
        assert whole(folder) == whole(plain)
    finally:
        git(repository, "worktree", "remove", "--force", str(plain))
    assert git(folder, "rev-parse", "HEAD") == git(repository, "rev-parse", base)
    assert git(folder, "status", "--porcelain", "--ignored") == ""
    assert git(folder, "branch", "--show-current") == f"corral/{folder.name}"
    state = worktrees.inspect(str(repository), str(folder))
    assert (state.clean, state.locked) == (True, None)


def test_changes_of_an_agent_are_not_in_the_reused_worktree(
    repository: Path, kept: WorktreePool
) -> None:
    folder = made(repository, "one")
    before = (folder / "README").stat()
    write(folder, {"README": "hallo\n", "cache/x": "left", "new/y": "left", "src/a.py": "a = 2\n"})
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
    put(repository, folder, kept)
    (entry,) = entries(kept)
    assert not (Path(entry) / "cache").exists(), "what no commit has takes no room"
    two = made(repository, "two", kept)
    assert entries(kept) == []
    assert_as_new(repository, two)
    assert (two / "src/deep/b.py").stat().st_nlink == 1


def test_folders_and_symlinks_that_replaced_files_are_removed(
    repository: Path, kept: WorktreePool
) -> None:
    folder = made(repository, "one")
    (folder / "README").unlink()
    write(folder, {"README/inside": "x"})
    shutil.rmtree(folder / "src")
    outside = repository.parent / "outside"
    write(outside, {"a.py": "a = 1\n", "deep/b.py": "b = 1\n"})
    (folder / "src").symlink_to(outside)
    put(repository, folder, kept)
    assert_as_new(repository, made(repository, "two", kept))
    assert (outside / "a.py").read_text() == "a = 1\n"


def test_pool_folders_are_private(repository: Path, kept: WorktreePool) -> None:
    put(repository, made(repository, "one"), kept)
    for folder in (Path(kept.folder), Path(kept.folder).parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_reused_worktree_is_at_the_requested_commit(repository: Path, kept: WorktreePool) -> None:
    first = git(repository, "rev-parse", "main")
    put(repository, made(repository, "one"), kept)
    commit(repository, {"src/a.py": "a = 3\n", "later": "x\n"})
    git(repository, "rm", "-q", "src/deep/b.py")
    commit(repository, {})
    two = made(repository, "two", kept)
    assert_as_new(repository, two)
    put(repository, two, kept)
    assert_as_new(repository, made(repository, "three", kept, first), first)


@pytest.mark.parametrize("attributes", ["* text eol=crlf\n", "* ident\n"])
def test_files_with_git_conversions_are_checked_out_again(
    repository: Path, kept: WorktreePool, attributes: str
) -> None:
    commit(repository, {".gitattributes": attributes, "src/a.py": "# $Id$\n"})
    folder = made(repository, "one")
    # For git both ways are the same content.
    kept_as = subprocess.run(
        ["git", "show", "HEAD:src/a.py"], cwd=folder, capture_output=True, check=True
    )
    (folder / "src/a.py").write_bytes(kept_as.stdout)
    put(repository, folder, kept)
    assert_as_new(repository, made(repository, "two", kept))


def test_gitattributes_of_an_agent_are_ignored(repository: Path, kept: WorktreePool) -> None:
    folder = made(repository, "one")
    write(folder, {".gitattributes": "* text eol=crlf\n", "README": "hello\r\n"})
    put(repository, folder, kept)
    assert_as_new(repository, made(repository, "two", kept))


@pytest.mark.parametrize("attributes", ["* text=auto\n", "* text\n", "*.py text\n"])
def test_changed_line_endings_are_detected(
    repository: Path, kept: WorktreePool, attributes: str
) -> None:
    commit(repository, {".gitattributes": attributes})
    folder = made(repository, "one")
    write(folder, {"README": "hello\r\n", "src/a.py": b"a = 1\r\n"})
    put(repository, folder, kept)
    assert_as_new(repository, made(repository, "two", kept))


@pytest.mark.parametrize("where", [".gitattributes", "src/.gitattributes"])
def test_changed_repository_attributes_do_not_hide_changes(
    repository: Path, kept: WorktreePool, where: str
) -> None:
    commit(repository, {where: "# none\n"})
    git(repository, "config", "core.autocrlf", "input")
    folder = made(repository, "one")
    before = (folder / where).stat()
    write(folder, {where: "* text\n", "README": "hello\r\n", "src/a.py": "a = 1\r\n"})
    os.utime(folder / where, ns=(before.st_atime_ns, before.st_mtime_ns))
    put(repository, folder, kept)
    assert_as_new(repository, made(repository, "two", kept))


def test_clean_filter_of_the_user_does_not_hide_changes(
    repository: Path, kept: WorktreePool
) -> None:
    git(repository, "config", "filter.same.clean", "printf 'hello\\n'")
    # What it holds is what the filter makes of it, so that git never takes it for changed.
    commit(repository, {".gitattributes": "src/* filter=same\n", "src/a.py": "hello\n"})
    folder = made(repository, "one")
    write(folder, {".gitattributes": "* filter=same\n", "README": "mine!\n"})
    put(repository, folder, kept)
    assert_as_new(repository, made(repository, "two", kept))


def test_pool_is_bounded_and_rejects_submodules(
    repository: Path, kept: WorktreePool, tmp_path: Path
) -> None:
    for folder in [made(repository, name) for name in ("one", "two", "three")]:
        put(repository, folder, kept)
    assert len(entries(kept)) == 2
    assert worktree_leftovers.find_interrupted_removals(str(repository.parent)) == []
    put(repository, made(repository, "four"), WorktreePool(kept.folder, 0))
    assert len(entries(kept)) == 2
    for entry in entries(kept):
        worktree_pool.delete_entry(entry)
    assert not Path(kept.folder).exists()
    inner = new_repository(tmp_path / "inner")
    allow = ("-c", "protocol.file.allow=always")
    git(repository, *allow, "submodule", "--quiet", "add", str(inner), "deps")
    commit(repository, {})
    put(repository, made(repository, "five"), kept)
    assert entries(kept) == []


def test_repository_with_conversions_does_not_use_the_pool(
    repository: Path, kept: WorktreePool
) -> None:
    put(repository, made(repository, "one"), kept)
    git(repository, "config", "core.autocrlf", "true")
    made(repository, "two", kept)
    assert len(entries(kept)) == 1


def test_pool_entry_is_taken_once(repository: Path, kept: WorktreePool) -> None:
    for folder in [made(repository, name) for name in ("one", "two")]:
        put(repository, folder, kept)
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda name: made(repository, f"n{name}", kept), range(4))]
    for folder in found:
        assert_as_new(repository, folder)
    assert entries(kept) == []
    assert os.listdir(kept.folder) == [worktree_pool.REPOSITORY_FILE]


def test_too_deep_folder_does_not_block_the_pool(repository: Path, kept: WorktreePool) -> None:
    folder = made(repository, "one")
    deep = folder
    here = os.getcwd()
    try:
        os.chdir(deep)
        for _ in range(1_500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    write(folder, {".gitignore": "d\n"})
    put(repository, folder, kept)
    assert_as_new(repository, made(repository, "two", kept))


STEPS = ("rename", "chmod", "unlink", "rmdir", "utime", "mkdir")
STRIDE = 1 if os.environ.get("CORRAL_CRASH") == "all" else 3


def killed_at_step(number: int, action: Callable[[], object]) -> bool:
    """Run an action in a process that is killed before so many git commands and file operations.

    Return whether it was killed; False: the action finished first.
    """
    left = number

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: object, **more: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*words, **more)

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
    repository: Path, kept: WorktreePool
) -> None:
    folder = repository.parent / "worktrees" / "two"

    def make() -> None:
        worktrees.create(str(repository), str(folder), "corral/two", base="main", pool=kept)

    for last in range(1, 200, STRIDE):
        put(repository, made(repository, "one"), kept)
        killed = killed_at_step(last, make)
        made(repository, "two", kept)
        assert_as_new(repository, folder)
        worktree_pool.delete_abandoned(str(Path(kept.folder).parent))
        assert not [
            name for name in os.listdir(kept.folder) if name.startswith(worktree_pool.CLAIM_PREFIX)
        ]
        put(repository, folder, kept)
        for entry in entries(kept):
            worktree_pool.delete_entry(entry)
        if not killed:
            break
    assert not killed
    assert last > 10


def test_crash_while_pooling_loses_nothing_and_leaves_no_orphan(
    repository: Path, kept: WorktreePool
) -> None:
    root = str(repository.parent / "worktrees")
    folder = repository.parent / "worktrees" / "one"

    def remove() -> None:
        worktrees.remove(
            str(repository), str(folder), delete_branch=True, despite=["dirty"], pool=kept
        )

    for last in range(1, 200, STRIDE):
        made(repository, "one")
        write(folder, {"cache/x": "left", "README": "changed\n"})
        killed = killed_at_step(last, remove)
        listed = worktree_leftovers.find_orphans([str(repository)], root, [])
        if folder.exists():
            assert [each.folder for each in listed] == [str(folder)]
            assert (folder / "README").read_text() == "changed\n"
        remove()
        worktree_leftovers.finish_removals(root)
        assert git(repository, "branch", "--list", "corral/one") == "", "its branch is found, too"
        assert worktree_leftovers.find_orphans([str(repository)], root, []) == []
        assert_as_new(repository, made(repository, "two", kept))
        worktrees.remove(str(repository), str(folder.with_name("two")), delete_branch=True)
        if not killed:
            break
    assert not killed
    assert last > 10
