"""Git worktrees: create, inspect and remove them.

Each piece of work gets its own worktree on its own branch. A repository is named by any folder in
it, by its worktree or by its git folder (bare and private repositories). `create` is idempotent and
keeps existing work. `remove` refuses to lose work unless the caller names the loss.

See also `worktree_registry` (looking worktrees up), `worktree_leftovers` (clean-up of orphans and
interrupted removals) and `worktree_pool` (reuse of files).
"""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Literal, NamedTuple
from uuid import uuid4

import msgspec

from corral.adapters.git import git, submodules
from corral.adapters.worktrees import worktree_pool as pools
from corral.adapters.worktrees.worktree_leftovers import (
    REMOVAL_PREFIX,
    delete_tree,
    delete_unused_branch,
)
from corral.adapters.worktrees.worktree_pool import WorktreePool
from corral.adapters.worktrees.worktree_registry import (
    STATUS_COMMAND,
    Checkout,
    find_checkout,
    find_common_dir,
    find_registered,
    normalize_path,
    readable_index,
    resolve_commit,
)
from corral.kernel.errors import Conflict, Refused

RemovalLoss = Literal["dirty", "unmerged", "locked"]
"""Losses that a caller of `remove` may accept by name."""

INITIALIZING = "initializing"  # the lock reason that git uses while it creates a worktree
MAX_ATTEMPTS = 6


class WorktreeState(msgspec.Struct, frozen=True):
    """The content of a worktree, and the work that would be lost with it."""

    folder: str
    missing: bool
    """The folder does not exist, or git does not list it as a worktree of the repository."""
    head: str | None
    branch: str | None
    uncommitted: list[str]
    """Tracked files that differ from the last commit."""
    untracked: list[str]
    """Untracked files, without ignored ones. A name that ends with / is a nested repository, or a
    submodule with work that exists nowhere else."""
    unmerged: int
    """Commits that are reachable only from the worktree's own branch: from no other branch, tag or
    kept ref (see `git_history.keep_commit`)."""
    locked: str | None
    """The reason of the lock, which may be empty; None: not locked."""

    @property
    def changed(self) -> list[str]:
        """All files whose content is in no commit."""
        return self.uncommitted + self.untracked

    @property
    def dirty(self) -> bool:
        return bool(self.changed)

    @property
    def clean(self) -> bool:
        """Whether removing the folder and the branch loses nothing."""
        return not (self.dirty or self.unmerged or self.locked is not None)

    @property
    def removal_blockers(self) -> str | None:
        """A short description of the work that prevents a removal; None: it can be removed."""
        blockers = []
        if self.uncommitted:
            blockers.append(f"{len(self.uncommitted)} uncommitted")
        if self.untracked:
            blockers.append(f"{len(self.untracked)} untracked")
        if self.unmerged:
            blockers.append(f"{self.unmerged} unmerged commit{'s' * (self.unmerged > 1)}")
        if self.locked is not None:
            blockers.append(f"locked ({self.locked})" if self.locked else "locked")
        return ", ".join(blockers) or None


# -- state ----------------------------------------------------------------------------------------


def inspect(repository: str, folder: str) -> WorktreeState:
    """Inspect a worktree without changing it.

    Runs no hook, filter or other program that an agent may have configured there.
    """
    return _build_state(find_checkout(repository, folder), folder)


def fingerprint(state: WorktreeState) -> str | None:
    """Return a hash of the uncommitted changes in a worktree; None when there are none.

    Equal fingerprints mean that the same files have the same size, modification time and mode.
    """
    if not state.dirty:
        return None
    digest = sha256()
    for name in sorted(state.changed):
        digest.update(os.fsencode(name) + b"\0")
        with suppress(OSError):
            stat = os.lstat(os.path.join(state.folder, name))
            digest.update(f"{stat.st_size} {stat.st_mtime_ns} {stat.st_mode}\0".encode())
    return digest.hexdigest()


def _build_state(checkout: Checkout | None, folder: str) -> WorktreeState:
    if checkout is None:
        return WorktreeState(
            folder,
            missing=True,
            head=None,
            branch=None,
            uncommitted=[],
            untracked=[],
            unmerged=0,
            locked=None,
        )
    missing = not os.path.isdir(folder)
    branch = checkout.branch
    result = checkout.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    head = result.out.decode().strip() or None
    uncommitted, untracked = ([], []) if missing else list_changed_files(checkout)
    return WorktreeState(
        folder,
        missing=missing,
        head=head,
        branch=branch,
        uncommitted=uncommitted,
        untracked=untracked,
        unmerged=_count_unmerged(checkout, branch) if head else 0,
        locked=_read_lock_reason(checkout),
    )


def list_changed_files(checkout: Checkout) -> tuple[list[str], list[str]]:
    """List the tracked files that differ from the last commit, and the untracked ones."""
    with readable_index(checkout) as index:
        listing = checkout.check_output(
            *STATUS_COMMAND, "--ignore-submodules=dirty", GIT_INDEX_FILE=index
        )
        modified_submodules = submodules.list_modified(checkout, index)
    entries = git.split_names(listing)
    uncommitted = [entry[3:] for entry in entries if entry[:2] != "??"]
    untracked = [entry[3:] for entry in entries if entry[:2] == "??"]
    return uncommitted, untracked + [f"{name}/" for name in modified_submodules]


def _count_unmerged(checkout: Checkout, branch: str | None) -> int:
    other_refs = ("--branches", "--tags", "--remotes", "--glob=refs/corral/*")
    exclude = [f"--exclude={branch}"] if branch else []
    return int(checkout.read_line("rev-list", "--count", "HEAD", "--not", *exclude, *other_refs))


def _read_lock_reason(checkout: Checkout) -> str | None:
    try:
        with open(os.path.join(checkout.own, "locked"), encoding="utf-8", errors="replace") as file:
            return file.read(8_192).strip()
    except FileNotFoundError:
        return None


# -- creation --------------------------------------------------------------------------------------


def create(
    repository: str,
    folder: str,
    branch: str,
    *,
    base: str = "HEAD",
    own_branch: bool = False,
    pool: WorktreePool | None = None,
) -> str:
    """Create a worktree in `folder` on a new `branch` at the commit `base`.

    Returns the directory in it that corresponds to `repository`, which may be a subdirectory of its
    worktree.

    Idempotent: an existing worktree is returned as it is, with all uncommitted work, and one that a
    crash left incomplete is created again. Safe to call from several processes at once. Submodules
    are filled from the repository, without network access. With a `pool`, files are reused from
    there; the result is byte for byte the same.

    Raises Refused when `branch` exists at another commit (unless `own_branch` says that it is left
    from an earlier worktree of this caller), when `folder` contains anything else, and when the
    commit does not exist.
    """
    common = find_common_dir(repository)
    subdirectory = os.fsdecode(git.check_output(repository, "rev-parse", "--show-prefix")).rstrip(
        "\n"
    )
    commit = resolve_commit(repository, base)
    folder = normalize_path(folder)
    with _lock_folder(folder) as lock:
        checkout = find_registered(common, folder)
        if checkout is not None and _read_lock_reason(checkout) == INITIALIZING:
            _discard_incomplete(checkout)
            checkout = None
        if not os.path.lexists(os.path.join(folder, ".git")):
            new = NewWorktree(repository, folder, branch, commit, own_branch)
            _add_worktree(new, checkout, lock, pool)
        elif checkout is None:
            raise Refused(
                f"{folder} is not a worktree of {repository}. Choose another directory, or repair "
                "it with `git worktree repair`.",
                dir=folder,
                reason="not_a_worktree",
            )
    return os.path.join(folder, subdirectory) if subdirectory else folder


@contextmanager
def _lock_folder(folder: str) -> Iterator[int]:
    """Create `folder` if needed and hold an exclusive flock on it."""
    existed = os.path.lexists(folder)
    lock = _open_locked(folder)
    try:
        yield lock
    except BaseException:
        if not existed:
            with suppress(OSError):  # git has removed it, or it is not empty
                os.rmdir(folder)
        raise
    finally:
        os.close(lock)


def _open_locked(folder: str) -> int:
    """Return a locked descriptor of `folder`; retry while other processes remove the folder."""
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        is_current = False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                is_current = os.path.samestat(os.fstat(lock), os.stat(folder))
        finally:
            if not is_current:
                os.close(lock)
        if is_current:
            return lock


class NewWorktree(NamedTuple):
    """A worktree that is to be created."""

    repository: str
    folder: str
    branch: str
    commit: str
    own_branch: bool
    """Whether the branch belongs to this worktree, so that it may exist at another commit."""

    def build_branch_arguments(self, *, creates_branch: bool) -> tuple[str, ...]:
        """Return the arguments of `git worktree add` that name folder and branch."""
        if creates_branch:
            return ("--no-track", "-b", self.branch, self.folder, self.commit)
        return (self.folder, self.branch)


def _add_worktree(
    new: NewWorktree, old_checkout: Checkout | None, lock: int, pool: WorktreePool | None
) -> None:
    if os.listdir(new.folder):
        raise Refused(
            f"{new.folder} is not empty. Choose another directory.",
            dir=new.folder,
            reason="folder_not_empty",
        )
    creates_branch = _require_usable_branch(new, old_checkout) is None
    if pool is not None and old_checkout is None:
        if _create_from_pool(new, lock, pool, creates_branch=creates_branch):
            return
        creates_branch = _find_branch_commit(new.repository, new.branch) is None
    _add_with_retries(
        new, lock, creates_branch=creates_branch, replaces_checkout=old_checkout is not None
    )
    _populate_submodules(new)


def _require_usable_branch(new: NewWorktree, old_checkout: Checkout | None) -> str | None:
    """Return the commit of the branch; None if the branch must be created.

    Raises Refused if the branch is at another commit and belongs to another worktree or person.
    """
    commit = _find_branch_commit(new.repository, new.branch)
    is_own = new.own_branch or (old_checkout is not None and old_checkout.branch == new.branch)
    if commit is not None and commit != new.commit and not is_own:
        raise Refused(
            f"The branch {new.branch} already exists at {commit[:12]}. Choose another name, or "
            "delete it first.",
            branch=new.branch,
            commit=commit,
            reason="branch_exists",
        )
    return commit


def _add_with_retries(
    new: NewWorktree, lock: int, *, creates_branch: bool, replaces_checkout: bool
) -> None:
    """Run `git worktree add`, again if a concurrent one made it fail.

    Git locks the list of worktrees and the branch, and does not wait for these locks. A branch that
    only a failed call created is deleted.
    """
    workers = git.parallel_checkout_options(new.repository)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        is_retry = attempt > 1
        # The call that failed may have created the branch and registered the folder.
        has_branch = is_retry and _find_branch_commit(new.repository, new.branch) == new.commit
        force = ("--force", "--force") if replaces_checkout or is_retry else ()
        result = git.run(
            new.repository,
            *(*workers, "worktree", "add", "--quiet", *force),
            *new.build_branch_arguments(creates_branch=creates_branch and not has_branch),
            seconds=git.LONG_SECONDS,
            pass_fds=(lock,),
        )
        if result.code == 0:
            return
        if attempt == MAX_ATTEMPTS or not _is_concurrent_add(result):
            created_branch = new.branch if creates_branch else None
            raise _undo_failed_add(new.repository, result, created_branch)
        time.sleep(0.05 * attempt)


def _populate_submodules(new: NewWorktree) -> None:
    if os.path.exists(os.path.join(new.folder, ".gitmodules")):
        checkout = find_checkout(new.repository, new.folder)
        assert checkout is not None
        submodules.populate(checkout)


def _undo_failed_add(repository: str, result: git.GitResult, branch: str | None) -> Refused:
    """Delete the branch that a failed `git worktree add` created; return the error to raise."""
    if branch is not None:
        delete_unused_branch(repository, branch)
    return git.git_error(repository, "worktree add", result)


def _create_from_pool(
    new: NewWorktree, lock: int, pool: WorktreePool, *, creates_branch: bool
) -> bool:
    """Create a worktree from the files of the pool. False: only the branch was created.

    Until it is complete, the worktree carries the lock that git itself uses during creation.
    """
    if not pools.can_reuse_files(new.repository):
        return False
    with pools.claim_newest(pool) as entry:
        if entry is None:
            return False
        lock_options = ("--no-checkout", "--lock", "--reason", INITIALIZING)
        result = git.run(
            new.repository,
            "worktree",
            "add",
            "--quiet",
            *lock_options,
            *new.build_branch_arguments(creates_branch=creates_branch),
            pass_fds=(lock,),
        )
        checkout = find_checkout(new.repository, new.folder)
        if result.code or checkout is None:
            return False
        try:
            is_complete = pools.fill_worktree(
                checkout, resolve_commit(new.repository, f"refs/heads/{new.branch}"), entry
            )
        except (Refused, OSError, RecursionError):
            is_complete = False
        if is_complete:
            os.unlink(os.path.join(checkout.own, "locked"))
        else:
            _discard_incomplete(checkout)
        return is_complete


def _is_concurrent_add(result: git.GitResult) -> bool:
    """Whether git failed only because another process was adding a worktree."""
    return bool(re.search(rb"commondir|[Uu]nable to create|cannot lock|File exists", result.err))


def _find_branch_commit(repository: str, branch: str) -> str | None:
    if git.run(repository, "check-ref-format", "--branch", branch).code or branch.startswith("-"):
        raise Refused(f"Invalid branch name: {branch}.", branch=branch, reason="bad_branch_name")
    result = git.run(repository, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
    return result.out.decode().strip() or None


# -- removal ---------------------------------------------------------------------------------------


def _check_losses(
    state: WorktreeState, despite: Collection[RemovalLoss], *, with_branch: bool
) -> None:
    losses: dict[RemovalLoss, bool] = {
        "dirty": state.dirty,
        "unmerged": bool(state.unmerged) and (with_branch or state.branch is None),
        "locked": state.locked is not None,
    }
    refused = [loss for loss, is_lost in losses.items() if is_lost and loss not in despite]
    if refused:
        raise Refused(
            f"{state.folder} is kept: {state.removal_blockers}. Commit or merge the work, or name "
            "what may be lost.",
            dir=state.folder,
            loses=refused,
            files=[git.decode_name(name) for name in state.changed[:100]],
            reason="would_lose_work",
        )


def remove(
    repository: str,
    folder: str,
    *,
    delete_branch: bool = False,
    despite: Collection[RemovalLoss] = (),
    pool: WorktreePool | None = None,
) -> WorktreeState:
    """Remove a worktree and its registration; return its state before the removal.

    With a `pool` that has room, its files are kept there for reuse.

    Raises Refused when the worktree is dirty or locked, or when commits would be lost: with
    `delete_branch` those of no other branch, otherwise those of no branch at all. `despite` names
    the losses to accept. If the folder is already gone, only the registration is removed. After a
    crash, `worktree_leftovers.find_orphans` reports what remains; the folder is never left partly
    deleted. Raises Conflict when the branch moved during the removal; the branch is kept then.
    """
    checkout = find_checkout(repository, folder)
    if checkout is None:
        if os.path.lexists(folder):
            raise Refused(
                f"{folder} is not a worktree of {repository}.", dir=folder, reason="not_a_worktree"
            )
        return _build_state(None, folder)
    state = _build_state(checkout, folder)
    _check_losses(state, despite, with_branch=delete_branch)
    committed_files = (
        pools.list_committed_files(checkout) if pool is not None and not state.missing else None
    )
    removed_folder = _rename_aside(checkout)
    try:
        # Before unregistering: after a crash, the branch is found through the registration.
        has_moved = delete_branch and not _delete_branch(checkout, state)
    except Refused:
        with suppress(FileNotFoundError):
            os.rename(removed_folder, checkout.folder)
        raise
    _unregister(checkout)
    if (
        pool is None
        or committed_files is None
        or not pools.add_entry(removed_folder, committed_files, repository, pool)
    ):
        delete_tree(removed_folder)
    if has_moved:
        raise Conflict(
            f"The branch {state.branch} moved during the removal and was kept.", branch=state.branch
        )
    return state


def _delete_branch(checkout: Checkout, state: WorktreeState) -> bool:
    """Delete the branch if it has not moved.

    False: it moved and is kept. Raises Refused when git fails.
    """
    if state.branch is None or state.head is None:
        return True
    ref = f"refs/heads/{state.branch}"
    result = git.run(checkout.common, "update-ref", "-d", ref, state.head)
    if not result.code:
        return True
    current = git.run(checkout.common, "rev-parse", "--quiet", "--verify", ref).out.decode().strip()
    if current == state.head:
        raise git.git_error(checkout.common, "update-ref", result)
    return not current


def _rename_aside(checkout: Checkout) -> str:
    """Rename the folder, so that a crash during the deletion leaves no partial worktree."""
    target = os.path.join(os.path.dirname(checkout.folder), f"{REMOVAL_PREFIX}{uuid4().hex}")
    with suppress(FileNotFoundError):
        os.rename(checkout.folder, target)
    return target


def _unregister(checkout: Checkout) -> None:
    """Delete the registration directly.

    `git worktree remove` needs the folder, which is renamed already; git stores nothing else.
    """
    shutil.rmtree(checkout.own)
    with suppress(OSError):
        os.rmdir(os.path.dirname(checkout.own))  # git does the same after the last worktree


def _discard_incomplete(checkout: Checkout) -> None:
    """Unregister an incomplete worktree and empty its folder."""
    for name in os.listdir(checkout.folder):
        delete_tree(os.path.join(checkout.folder, name))
    shutil.rmtree(checkout.own)


def make_branch_name(key: str, unique: str) -> str:
    """Return a valid and unique branch name for a task."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", key).strip("-") or "task"
    return f"corral/{plain[:60]}-{unique[-6:]}"
