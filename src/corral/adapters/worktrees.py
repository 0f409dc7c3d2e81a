"""Git worktrees: a place of its own for each piece of work, on a branch of its own.

A repository is named by any folder of it, by its own worktree or by its git folder (a bare one, a
private one). What was left in a worktree is found there again: nothing that would lose work is done
unless the loss is named.
"""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Literal
from uuid import uuid4

import msgspec

from corral.adapters import git, submodules
from corral.adapters import pool as pools
from corral.adapters.checkouts import (
    STATUS,
    Checkout,
    checkout_in,
    checkout_of,
    common_dir,
    index_to_read,
    real,
    resolve,
)
from corral.adapters.leftovers import REMOVED, delete, drop_branch
from corral.adapters.pool import Pool
from corral.kernel.errors import Conflict, Refused

Loss = Literal["dirty", "unmerged", "locked"]
"""What a removal may do away with, when it is told so by name."""

HALF_MADE = "initializing"  # git's own lock on a worktree that it is still writing
TRIES = 6


class State(msgspec.Struct, frozen=True):
    """What is in a worktree, and what would be lost with it."""

    folder: str
    missing: bool
    """The folder is gone, or git does not know it as a worktree of the repository."""
    head: str | None
    branch: str | None
    uncommitted: list[str]
    """Files that are known to git and differ from the last commit."""
    untracked: list[str]
    """Files that are new; ignored ones are not counted. A name that ends with / is a repository
    of its own inside, or a submodule with work that is nowhere else."""
    unmerged: int
    """Commits that no branch and no tag but its own branch has, and no `keep` (see history)."""
    locked: str | None

    @property
    def changed(self) -> list[str]:
        """All files that are in no commit as they are."""
        return self.uncommitted + self.untracked

    @property
    def dirty(self) -> bool:
        return bool(self.changed)

    @property
    def clean(self) -> bool:
        """Whether nothing is lost when folder and branch are removed."""
        return not (self.dirty or self.unmerged or self.locked is not None)

    @property
    def why_kept(self) -> str | None:
        """In a few words for a person, why it is not removed; None when it may be."""
        found = []
        if self.uncommitted:
            found.append(f"{len(self.uncommitted)} uncommitted")
        if self.untracked:
            found.append(f"{len(self.untracked)} untracked")
        if self.unmerged:
            found.append(f"{self.unmerged} unmerged commit{'s' * (self.unmerged > 1)}")
        if self.locked is not None:
            found.append(f"locked ({self.locked})" if self.locked else "locked")
        return ", ".join(found) or None


# -- what there is ---------------------------------------------------------------------------------


def state(repository: str, folder: str) -> State:
    """What is in a worktree. It only looks, and runs no program that was left in there."""
    return _state(checkout_of(repository, folder), folder)


def _state(found: Checkout | None, folder: str) -> State:
    if found is None:
        return State(folder, True, None, None, [], [], 0, None)
    missing = not os.path.isdir(folder)
    branch = found.branch
    done = found.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    head = done.out.decode().strip() or None
    uncommitted, untracked = ([], []) if missing else changed_files(found)
    return State(
        folder,
        missing,
        head,
        branch,
        uncommitted,
        untracked,
        _unmerged(found, branch) if head else 0,
        _locked(found),
    )


def changed_files(found: Checkout) -> tuple[list[str], list[str]]:
    """The files of a worktree that are not committed as they are, and those that are new."""
    with index_to_read(found) as index:
        told = found.told(*STATUS, "--ignore-submodules=dirty", GIT_INDEX_FILE=index)
        inside = submodules.with_work(found, index)
    entries = git.names_in(told)
    uncommitted = [entry[3:] for entry in entries if entry[:2] != "??"]
    untracked = [entry[3:] for entry in entries if entry[:2] == "??"]
    return uncommitted, untracked + [f"{name}/" for name in inside]


def _unmerged(found: Checkout, branch: str | None) -> int:
    kept = ("--branches", "--tags", "--remotes", "--glob=refs/corral/*")
    own = [f"--exclude={branch}"] if branch else []
    return int(found.line("rev-list", "--count", "HEAD", "--not", *own, *kept))


def _locked(found: Checkout) -> str | None:
    try:
        with open(os.path.join(found.own, "locked"), encoding="utf-8", errors="replace") as file:
            return file.read(8_192).strip()
    except FileNotFoundError:
        return None


# -- making ----------------------------------------------------------------------------------------


def make(
    repository: str,
    folder: str,
    branch: str,
    *,
    base: str = "HEAD",
    own_branch: bool = False,
    pool: Pool | None = None,
) -> str:
    """A worktree in `folder` on a new `branch` at the commit `base`; the directory in it that
    stands for `repository` (which may be a folder inside of its worktree) comes back.

    To call it again with the same words does no harm: what is there already is taken as it is, with
    all that was left in it, and what a crash left half-made is made whole. Submodules that the
    repository has are filled without a network. Files that a `pool` has are taken from there, and
    the worktree is the same, byte for byte. Several processes may call it at once. Refused
    when `branch` is there and stands elsewhere (unless it is known to be the worktree's
    `own_branch`, left by an earlier one), when `folder` holds anything else, when there is no such
    commit or none at all.
    """
    common = common_dir(repository)
    inside = os.fsdecode(git.told(repository, "rev-parse", "--show-prefix")).rstrip("\n")
    commit = resolve(repository, base)
    folder = real(folder)
    with _folder_held(folder) as lock:
        found = checkout_in(common, folder)
        if found is not None and _locked(found) == HALF_MADE:
            _empty(found)
            found = None
        if not os.path.lexists(os.path.join(folder, ".git")):
            _add(repository, folder, branch, commit, found, own_branch, lock, pool)
        elif found is None:
            raise Refused(
                f"{folder} is no worktree of {repository}; choose another folder, or repair it "
                "with `git worktree repair`.",
                dir=folder,
                reason="not_a_worktree",
            )
    return os.path.join(folder, inside) if inside else folder


@contextmanager
def _folder_held(folder: str) -> Iterator[int]:
    """A folder, made when it is not there, that no other process makes a worktree in."""
    before = os.path.lexists(folder)
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(folder)):
                    try:
                        yield lock
                    except BaseException:
                        if not before:
                            with suppress(OSError):  # git may have removed it; or it is not empty
                                os.rmdir(folder)
                        raise
                    return
        finally:
            os.close(lock)


def _add(
    repository: str,
    folder: str,
    branch: str,
    commit: str,
    before: Checkout | None,
    own_branch: bool,
    lock: int,
    pool: Pool | None,
) -> None:
    if os.listdir(folder):
        raise Refused(
            f"{folder} holds other things; choose another folder.",
            dir=folder,
            reason="folder_not_empty",
        )
    at = _branch_at(repository, branch)
    ours = own_branch or (before is not None and before.branch == branch)
    if at is not None and at != commit and not ours:
        raise Refused(
            f"The branch {branch} is there already, at {at[:12]}; choose another name, or remove "
            "it first.",
            branch=branch,
            commit=at,
            reason="branch_exists",
        )
    if pool is not None and before is None:
        if _refill(repository, folder, branch, commit, lock, pool, is_new=at is None):
            return
        at = _branch_at(repository, branch)
    force = ("--force", "--force") if before is not None else ()
    start = _on_branch(folder, branch, commit, is_new=at is None)
    workers = git.on_all_cores(repository)
    for left in reversed(range(TRIES)):
        words = (*workers, "worktree", "add", "--quiet", *force, *start)
        done = git.run(repository, *words, seconds=git.LONG_SECONDS, keeps=(lock,))
        if done.code == 0:
            break
        if not left or not _in_the_way(done):
            raise _not_made(repository, done, None if at else branch)
        time.sleep(0.05 * (TRIES - left))
        if at is None and _branch_at(repository, branch) == commit:
            start = (folder, branch)
        force = ("--force", "--force")
    if os.path.exists(os.path.join(folder, ".gitmodules")):
        made = checkout_of(repository, folder)
        assert made is not None
        submodules.fill(made)


def _not_made(repository: str, done: git.Done, branch: str | None) -> Refused:
    """What to raise; a branch that git made first, for nothing, is taken back."""
    if branch is not None:
        drop_branch(repository, branch)
    return git.failed(repository, "worktree add", done)


def _on_branch(folder: str, branch: str, commit: str, *, is_new: bool) -> tuple[str, ...]:
    return ("--no-track", "-b", branch, folder, commit) if is_new else (folder, branch)


def _refill(
    repository: str, folder: str, branch: str, commit: str, lock: int, pool: Pool, *, is_new: bool
) -> bool:
    """Make a worktree of files from the pool; False: nothing of it was made, but for its branch.

    Until it is whole it is locked in the way of one that git is still writing.
    """
    if not pools.can_fill(repository):
        return False
    with pools.taken(pool) as entry:
        if entry is None:
            return False
        start = _on_branch(folder, branch, commit, is_new=is_new)
        locked = ("--no-checkout", "--lock", "--reason", HALF_MADE)
        done = git.run(repository, "worktree", "add", "--quiet", *locked, *start, keeps=(lock,))
        found = checkout_of(repository, folder)
        if done.code or found is None:
            return False
        try:
            whole = pools.fill(found, resolve(repository, f"refs/heads/{branch}"), entry)
        except (Refused, OSError, RecursionError):
            whole = False
        if whole:
            os.unlink(os.path.join(found.own, "locked"))
        else:
            _empty(found)
        return whole


def _in_the_way(done: git.Done) -> bool:
    """Whether a call failed only because another process was adding its own worktree."""
    return bool(re.search(rb"commondir|[Uu]nable to create|cannot lock|File exists", done.err))


def _branch_at(repository: str, branch: str) -> str | None:
    if git.run(repository, "check-ref-format", "--branch", branch).code or branch.startswith("-"):
        raise Refused(f"{branch} is no name for a branch.", branch=branch, reason="bad_branch_name")
    done = git.run(repository, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
    return done.out.decode().strip() or None


# -- removing --------------------------------------------------------------------------------------


def _refuse_loss(now: State, despite: Collection[Loss], *, with_branch: bool) -> None:
    lost: dict[Loss, bool] = {
        "dirty": now.dirty,
        "unmerged": bool(now.unmerged) and (with_branch or now.branch is None),
        "locked": now.locked is not None,
    }
    found = [what for what, it_is in lost.items() if it_is and what not in despite]
    if found:
        raise Refused(
            f"{now.folder} is kept: {now.why_kept}. Commit or merge it, or name what may be lost.",
            dir=now.folder,
            loses=found,
            files=[git.storable(name) for name in now.changed[:100]],
            reason="would_lose_work",
        )


def remove(
    repository: str,
    folder: str,
    *,
    delete_branch: bool = False,
    despite: Collection[Loss] = (),
    pool: Pool | None = None,
) -> State:
    """Remove a worktree, and what git has written down of it; what was in it comes back. Where a
    `pool` has room, its files go there.

    Refused when it is dirty, when it is locked, or when commits would be lost: those of no other
    branch, with `delete_branch`, and those of no branch at all without. Each is done all the same
    when `despite` names it. One that is gone already is only forgotten by git. Whatever a crash in
    the middle leaves is told by `leftovers.orphans`, and no folder is ever half there.
    """
    found = checkout_of(repository, folder)
    if found is None:
        if os.path.lexists(folder):
            raise Refused(
                f"{folder} is no worktree of {repository}.", dir=folder, reason="not_a_worktree"
            )
        return _state(None, folder)
    now = _state(found, folder)
    _refuse_loss(now, despite, with_branch=delete_branch)
    names = pools.files_of(found) if pool is not None and not now.missing else None
    apart = _set_aside(found)
    try:
        # Before git forgets the worktree: nobody would find a branch that is left then.
        moved = delete_branch and not _delete_branch(found, now)
    except Refused:
        with suppress(FileNotFoundError):
            os.rename(apart, found.folder)
        raise
    _unregister(found)
    if pool is None or names is None or not pools.keep(apart, names, repository, pool):
        delete(apart)
    if moved:
        raise Conflict(
            f"The branch {now.branch} has moved in the meantime, and is kept.", branch=now.branch
        )
    return now


def _delete_branch(found: Checkout, now: State) -> bool:
    """False when it is not where it was any more, and stays; Refused when it cannot be deleted."""
    if now.branch is None or now.head is None:
        return True
    ref = f"refs/heads/{now.branch}"
    done = git.run(found.common, "update-ref", "-d", ref, now.head)
    if not done.code:
        return True
    at = git.run(found.common, "rev-parse", "--quiet", "--verify", ref).out.decode().strip()
    if at == now.head:
        raise git.failed(found.common, "update-ref", done)
    return not at


def _set_aside(found: Checkout) -> str:
    """Give a worktree's folder another name, so that none is ever half there."""
    apart = os.path.join(os.path.dirname(found.folder), f"{REMOVED}{uuid4().hex}")
    with suppress(FileNotFoundError):
        os.rename(found.folder, apart)
    return apart


def _unregister(found: Checkout) -> None:
    """Not by git, which wants to see the folder, and has nothing else written down but this."""
    shutil.rmtree(found.own)
    with suppress(OSError):
        os.rmdir(os.path.dirname(found.own))  # as git does when it was the last one


def _empty(found: Checkout) -> None:
    """Forget a worktree that was never whole; its folder stays, without anything in it."""
    for name in os.listdir(found.folder):
        delete(os.path.join(found.folder, name))
    shutil.rmtree(found.own)


def branch_name(key: str, unique: str) -> str:
    """A branch for a task: git takes the name, and no other task has it."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", key).strip("-") or "task"
    return f"corral/{plain[:60]}-{unique[-6:]}"
