"""What is left where worktrees are: those that nobody answers for, removals that a crash cut short,
and how much room they take."""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from corral.adapters import git
from corral.adapters.checkouts import Checkout, common_dir, real, registrations
from corral.kernel.errors import Refused

REMOVED = ".corral-removed-"  # the start of a name of what is being removed


class Orphan(msgspec.Struct, frozen=True):
    """A folder or a registration that nobody answers for."""

    folder: str
    repository: str | None
    """None for a folder that git does not know."""
    branch: str | None
    exists: bool


def orphans(repositories: Sequence[str], root: str, known: Collection[str]) -> list[Orphan]:
    """Folders below `root` (each a worktree, or the remains of one) and registrations of the
    repositories' worktrees there, whose folder is none of `known`. It only looks."""
    root, spared = real(root), {real(folder) for folder in known}
    found: dict[str, Orphan] = {}
    for repository in repositories:
        with suppress(Refused):  # one that is gone has no registrations
            common = common_dir(repository)
            for own, folder in registrations(common):
                if folder.startswith(root + os.sep) and folder not in spared:
                    branch = Checkout(folder, common, own).branch
                    there = os.path.isdir(folder)
                    found[folder] = Orphan(folder, repository, branch, there)
    for folder in _folders(root, spared | {*found}):
        found[folder] = Orphan(folder, None, None, True)
    return [found[folder] for folder in sorted(found)]


def _folders(root: str, spared: Collection[str]) -> Iterator[str]:
    """Folders below a root that are none of these, nor above one; not what is inside of them."""
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


def drop_branch(repository: str, branch: str) -> bool:
    """Delete a branch that no worktree is on and that alone has no commit, as a worktree that was
    never whole leaves it; whether it was there."""
    with suppress(Refused):
        common = common_dir(repository)
        ref = f"refs/heads/{branch}"
        at = git.run(common, "rev-parse", "--verify", "--quiet", ref).out.decode().strip()
        kept = ("--branches", "--tags", "--remotes", "--glob=refs/corral/*")
        words = ("rev-list", "--count", at, "--not", f"--exclude={branch}", *kept)
        main = os.fsdecode(git.run(common, "symbolic-ref", "--quiet", "HEAD").out).strip()
        linked = {Checkout(folder, common, own).branch for own, folder in registrations(common)}
        if at and ref != main and branch not in linked:
            alone = git.run(common, *words).out.strip() == b"0"
            return alone and not git.run(common, "update-ref", "-d", ref, at).code
    return False


def cut_short(root: str) -> list[str]:
    """The removals below `root` that a crash cut short, or that another process is just at."""
    found = []
    for folder, names, _ in os.walk(root):
        gone = [name for name in names if name.startswith(REMOVED)]
        found += [os.path.join(folder, name) for name in gone]
        names[:] = [] if os.path.lexists(os.path.join(folder, ".git")) else {*names} - {*gone}
    return found


def sweep(root: str) -> list[str]:
    """Finish the removals below `root` that a crash cut short; gives the folders that are gone."""
    found = cut_short(root)
    for path in found:
        delete(path)
    return found


def disk_use(folder: str) -> int:
    """The bytes that a folder takes on disk; 0 when it is gone. It follows no link."""
    total, seen = 0, set()
    for where, names, files in os.walk(folder):
        for name in (".", *files, *names):
            with suppress(OSError):
                facts = os.lstat(os.path.join(where, name))
                if name != "." and name in names and not os.path.islink(os.path.join(where, name)):
                    continue  # counted when it is walked through
                if (facts.st_dev, facts.st_ino) not in seen:
                    seen.add((facts.st_dev, facts.st_ino))
                    total += facts.st_blocks * 512
    return total


def delete(path: str) -> None:
    """Delete what is there, also what its owner has made read-only, and while another one does."""

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
        except RecursionError:  # folders in folders in folders, on purpose
            subprocess.run(["rm", "-rf", "--", path], check=True, capture_output=True)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)
