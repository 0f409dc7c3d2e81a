"""Clean-up of worktrees: orphans, interrupted removals, and disk usage.

`services/races/cleanup.py` and `services/tasks/cleanup.py` decide what may be removed;
`worktrees.remove` removes a single worktree.
"""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from corral.adapters.git import git
from corral.adapters.worktrees.worktree_registry import (
    Checkout,
    find_common_dir,
    list_registrations,
    normalize_path,
)
from corral.kernel.errors import Refused

REMOVAL_PREFIX = ".corral-removed-"  # folders that are being removed


class OrphanWorktree(msgspec.Struct, frozen=True):
    """A folder or registration of a worktree that no task, race or session owns."""

    folder: str
    repository: str | None
    """None for a folder that git does not list."""
    branch: str | None
    exists: bool


def find_orphans(
    repositories: Sequence[str], root: str, known: Collection[str]
) -> list[OrphanWorktree]:
    """Find worktrees below `root` whose folder is not in `known`, without changing them.

    These are folders (a worktree or the remains of one) and registrations in the given
    repositories.
    """
    root, spared = normalize_path(root), {normalize_path(folder) for folder in known}
    orphans: dict[str, OrphanWorktree] = {}
    for repository in repositories:
        with suppress(Refused):  # a repository that no longer exists
            common = find_common_dir(repository)
            for own, folder in list_registrations(common):
                if folder.startswith(root + os.sep) and folder not in spared:
                    branch = Checkout(folder, common, own).branch
                    exists = os.path.isdir(folder)
                    orphans[folder] = OrphanWorktree(folder, repository, branch, exists)
    for folder in _list_unowned(root, spared | {*orphans}):
        orphans[folder] = OrphanWorktree(folder, None, None, True)
    return [orphans[folder] for folder in sorted(orphans)]


def _list_unowned(root: str, spared: Collection[str]) -> Iterator[str]:
    """Yield the folders below `root` that neither are nor contain a spared one.

    Does not descend into them.
    """
    above = {os.path.dirname(folder) for folder in spared}
    for folder in tuple(above):
        while len(folder) > len(root):
            folder = os.path.dirname(folder)
            above.add(folder)
    waiting = [root]
    while waiting:
        with suppress(FileNotFoundError):
            folder = waiting.pop()
            for path in (os.path.join(folder, name) for name in os.listdir(folder)):
                if path in spared or os.path.islink(path) or not os.path.isdir(path):
                    continue
                if path in above:
                    waiting.append(path)
                else:
                    yield path


def delete_unused_branch(repository: str, branch: str) -> bool:
    """Delete a branch that an incomplete worktree left behind; return whether it was deleted.

    The branch is kept if a worktree has it checked out, or if it has commits that no other ref
    reaches.
    """
    with suppress(Refused):
        common = find_common_dir(repository)
        ref = f"refs/heads/{branch}"
        commit = git.run(common, "rev-parse", "--verify", "--quiet", ref).out.decode().strip()
        other_refs = ("--branches", "--tags", "--remotes", "--glob=refs/corral/*")
        arguments = ("rev-list", "--count", commit, "--not", f"--exclude={branch}", *other_refs)
        main = os.fsdecode(git.run(common, "symbolic-ref", "--quiet", "HEAD").out).strip()
        checked_out = {
            Checkout(folder, common, own).branch for own, folder in list_registrations(common)
        }
        if commit and ref != main and branch not in checked_out:
            is_unused = git.run(common, *arguments).out.strip() == b"0"
            return is_unused and not git.run(common, "update-ref", "-d", ref, commit).code
    return False


def find_interrupted_removals(root: str) -> list[str]:
    """List the interrupted removals below `root`.

    Includes removals that another process is performing.
    """
    interrupted = []
    for folder, names, _ in os.walk(root):
        removed = [name for name in names if name.startswith(REMOVAL_PREFIX)]
        interrupted += [os.path.join(folder, name) for name in removed]
        names[:] = [] if os.path.lexists(os.path.join(folder, ".git")) else {*names} - {*removed}
    return interrupted


def finish_removals(root: str) -> list[str]:
    """Finish the interrupted removals below `root`; return the deleted folders."""
    interrupted = find_interrupted_removals(root)
    for path in interrupted:
        delete_tree(path)
    return interrupted


def measure_disk_usage(*folders: str, limit: int | None = None) -> int:
    """Return the bytes that folders use on disk; a missing folder uses none.

    Does not follow symlinks; counts hard links once. Stops counting above `limit`.
    """
    total, seen = 0, set()
    for folder in folders:
        for parent, names, files in os.walk(folder):
            if limit is not None and total > limit:
                return total
            for name in (".", *files, *names):
                with suppress(OSError):
                    path = os.path.join(parent, name)
                    status = os.lstat(path)
                    if name != "." and name in names and not os.path.islink(path):
                        continue  # counted when os.walk enters it
                    if (status.st_dev, status.st_ino) not in seen:
                        seen.add((status.st_dev, status.st_ino))
                        total += status.st_blocks * 512
    return total


def delete_tree(path: str) -> None:
    """Delete a file or a folder, including read-only content.

    Idempotent, also while another process deletes the same path.
    """

    def allow(function: object, name: str, error: Any) -> None:
        if isinstance(error[1], FileNotFoundError):
            return
        above = os.path.dirname(name)
        os.chmod(above, 0o700)
        with suppress(OSError):
            if not os.path.islink(name):
                os.chmod(name, 0o700)
        if os.path.isdir(name) and not os.path.islink(name):
            shutil.rmtree(name)
        else:
            with suppress(FileNotFoundError):
                os.unlink(name)

    if os.path.isdir(path) and not os.path.islink(path):
        try:
            shutil.rmtree(path, onerror=allow)
        except RecursionError:  # an agent can nest folders deeper than the recursion limit
            subprocess.run(["rm", "-rf", "--", path], check=True, capture_output=True)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)
