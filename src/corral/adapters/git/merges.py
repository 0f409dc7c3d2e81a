"""Merge a commit into a branch, or graft parts of it onto a worktree.

The merge is computed without touching files first. Conflicts are reported per file, and nothing is
changed then.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from corral.adapters.git import git, git_history
from corral.adapters.git.commits import FileConflict, merge_tree
from corral.adapters.worktrees.worktree_registry import (
    DIFF_FILES_COMMAND,
    STAGE_COMMAND,
    Checkout,
    find_common_dir,
    get_checkout,
    is_linked_back,
    list_worktrees,
    resolve_checkout,
    resolve_commit,
    scratch_index,
)
from corral.adapters.worktrees.worktrees import list_changed_files
from corral.kernel.errors import Conflict, Invalid, Refused


class MergeResult(msgspec.Struct, frozen=True):
    """The outcome of a merge."""

    outcome: Literal["merged", "already", "conflicts"]
    """`already`: the branch contains the commit."""
    commit: str | None
    """The tip of the branch afterwards; None with conflicts."""
    before: str
    """The tip of the branch before."""
    conflicts: list[FileConflict]
    forward: bool
    """The branch was fast-forwarded; no merge commit was created."""


class GraftResult(msgspec.Struct, frozen=True):
    """The outcome of a graft."""

    commit: str | None
    """The new commit on the worktree's branch; None with conflicts."""
    before: str
    files: list[str]
    """The changed files; empty, with `commit` equal to `before`, if the worktree had all of it."""
    conflicts: list[FileConflict]


def find_merge_base(repository: str, one: str, other: str) -> str:
    """Return the merge base of two commits; raises Refused when they have none."""
    result = git.run(
        repository, "merge-base", resolve_commit(repository, one), resolve_commit(repository, other)
    )
    if result.code or not result.out:
        raise Refused(
            f"{one} and {other} have no common ancestor, so they cannot be merged.",
            dir=repository,
            reason="no_merge_base",
        )
    return result.out.decode().split()[0]


# -- merge -----------------------------------------------------------------------------------------


def _compute_merge(
    repository: str, commit: str, branch: str, *, forward: bool
) -> tuple[MergeResult, str]:
    """Compute a merge; return its result and tree id."""
    result = git.run(
        repository, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}"
    )
    before = result.out.decode().strip()
    if result.code:
        raise Refused(
            f"{repository} has no branch {branch}.", branch=branch, reason="unknown_branch"
        )
    commit = resolve_commit(repository, commit)
    if git_history.is_ancestor(repository, commit, before):
        return MergeResult("already", before, before, conflicts=[], forward=False), ""
    if forward and git_history.is_ancestor(repository, before, commit):
        tree = git_history.resolve_tree(repository, commit)
        return MergeResult("merged", commit, before, conflicts=[], forward=True), tree
    find_merge_base(repository, before, commit)
    tree, conflicts = merge_tree(repository, before, commit)
    if conflicts:
        return MergeResult("conflicts", None, before, conflicts=conflicts, forward=False), ""
    return MergeResult("merged", None, before, conflicts=[], forward=False), tree


def merge_commit(
    repository: str, commit: str, branch: str, *, message: str, forward: bool = True
) -> MergeResult:
    """Merge a commit into a branch of the user, or report the conflicts. Never forces.

    If the branch is checked out, its files are updated and uncommitted work stays. Raises Refused
    when that work is in files that the merge changes, and Conflict when the branch moves during the
    call. Runs no hook. After a crash, the same call completes the merge. With `forward`, a
    fast-forward is used where possible.
    """
    result, tree = _compute_merge(repository, commit, branch, forward=forward)
    if result.outcome != "merged":
        return result
    new = result.commit or _create_commit(
        repository, tree, [result.before, resolve_commit(repository, commit)], message
    )
    if checkout := _find_checkout(repository, branch):
        _update_checkout(checkout, result.before, new)
    else:
        arguments = ("update-ref", f"refs/heads/{branch}", new, result.before)
        _check_moved(git.run(repository, *arguments), repository, branch)
    return msgspec.structs.replace(result, commit=new)


def _create_commit(repository: str, tree: str, parents: Sequence[str], message: str) -> str:
    """Create a commit with the identity of the user, or of Corral if git knows none."""
    identity = git.run(repository, "-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT")
    environment = git.CORRAL_IDENTITY if identity.code else None
    return git.commit_tree(repository, tree, parents, message, environment=environment)


def _find_checkout(repository: str, branch: str) -> Checkout | None:
    """Return the worktree that has a branch checked out, if any.

    An agent may have checked the branch out, or forged a registration for a folder that is not its
    own. A forged one is ignored, so that nothing is written there.
    """
    git_dir = find_common_dir(repository)
    for worktree in list_worktrees(repository):
        if worktree.branch == branch:
            checkout = resolve_checkout(git_dir, worktree.folder)
            if checkout.branch == branch and (checkout.own == git_dir or is_linked_back(checkout)):
                return checkout
    return None


def _check_moved(result: git.GitResult, top: str, branch: str) -> None:
    if b"but expected" in result.err:
        raise Conflict(
            f"{branch} moved during the merge. Try again.", branch=branch, reason="branch_moved"
        )
    if result.code:
        raise git.git_error(top, "update-ref", result)


def _update_checkout(checkout: Checkout, before: str, new: str) -> None:
    """Update a worktree from one commit to another; uncommitted work stays."""
    for name in ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"):
        if os.path.exists(os.path.join(checkout.own, name)):
            raise Refused(
                f"{checkout.folder} has an unfinished merge. Finish it first.",
                dir=checkout.folder,
            )
    arguments = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, new)
    touched = {*git.split_names(checkout.check_output(*arguments))}
    uncommitted, untracked = list_changed_files(checkout)
    changed = touched & {*uncommitted, *untracked}
    already_written = _find_matching(checkout, new, changed)
    if blocking := sorted(changed - already_written):
        raise Refused(
            f"{git.decode_name(blocking[0])} in {checkout.folder} has uncommitted changes, and "
            "the merge changes it too. Commit or stash it first.",
            dir=checkout.folder,
            files=[git.decode_name(name) for name in blocking],
        )
    if already_written:  # written by an earlier call that crashed
        checkout.check_output(*STAGE_COMMAND, stdin=git.join_names(already_written))
    _write_files(checkout, before, new, touched - already_written)
    result = checkout.run("update-ref", "-m", "corral: merge", "HEAD", new, before)
    if result.code:
        checkout.check_output("read-tree", "-m", "-u", new, before)
    _check_moved(result, checkout.folder, checkout.branch or "HEAD")


def _write_files(checkout: Checkout, before: str, new: str, touched: set[str]) -> None:
    """Write the files that differ between two commits; restore all of them if that fails."""
    absent = {name for name in touched if not os.path.lexists(os.path.join(checkout.folder, name))}
    result = checkout.run("read-tree", "-m", "-u", before, new)
    if result.code == 0:
        return
    for name in absent:  # first, to free disk space
        with suppress(OSError):
            os.unlink(os.path.join(checkout.folder, name))
            while name := os.path.dirname(name):
                os.rmdir(os.path.join(checkout.folder, name))
    # Git writes the index last, so it still describes the old files.
    arguments = ("checkout-index", "--force", "--quiet", "-z", "--stdin")
    checkout.check_output(*arguments, stdin=git.join_names(touched - absent))
    raise Refused(
        f"{checkout.folder} could not be written: {result.message}. All files were restored.",
        dir=checkout.folder,
        reason="not_written",
    )


def _find_matching(checkout: Checkout, commit: str, names: set[str]) -> set[str]:
    """Return the files that already match a commit, byte for byte."""
    if not names:
        return set()
    with scratch_index(checkout) as index:
        checkout.check_output("read-tree", commit, GIT_INDEX_FILE=index)
        known = {*git.split_names(checkout.check_output("ls-files", "-z", GIT_INDEX_FILE=index))}
        checkout.run("update-index", "-q", "--refresh", GIT_INDEX_FILE=index)
        differing = {
            *git.split_names(checkout.check_output(*DIFF_FILES_COMMAND, GIT_INDEX_FILE=index))
        }
    gone = {name for name in names - known if not os.path.lexists(f"{checkout.folder}/{name}")}
    return ((names & known) - differing) | gone


# -- graft -----------------------------------------------------------------------------------------


def graft_changes(
    repository: str,
    folder: str,
    commit: str,
    *,
    message: str,
    files: Sequence[str] = (),
    hunks: Mapping[str, Sequence[int]] | None = None,
) -> GraftResult:
    """Apply whole files and single hunks of a commit to the worktree in `folder`, as one commit.

    Hunks are numbered as in `git_history.diff_file` from the merge base. Files that both sides
    changed are merged. All or nothing: with conflicts the worktree stays unchanged. Raises Refused
    when the worktree has uncommitted work, and when a file or hunk does not exist.
    """
    if not files and not hunks:
        raise Invalid("Name at least one file or hunk.")
    checkout = get_checkout(repository, folder)
    if any(list_changed_files(checkout)):
        raise Refused(
            f"{folder} has uncommitted work. Commit it first.",
            dir=folder,
            reason="uncommitted_changes",
        )
    before = checkout.read_line("rev-parse", "--verify", "HEAD^{commit}")
    commit = resolve_commit(repository, commit)
    base = find_merge_base(repository, before, commit)
    with scratch_index(checkout) as index:
        checkout.check_output("read-tree", base, GIT_INDEX_FILE=index)
        _stage_files(checkout, index, base, commit, files)
        for name, numbers in (hunks or {}).items():
            _stage_hunks(checkout, index, base, commit, name, numbers)
        tree = checkout.check_output("write-tree", GIT_INDEX_FILE=index).decode().strip()
    part = _create_commit(repository, tree, [base], "Selected files and hunks")
    tree, conflicts = merge_tree(repository, before, part)
    if conflicts:
        return GraftResult(None, before, [], conflicts)
    if tree == git_history.resolve_tree(repository, before):
        return GraftResult(before, before, [], [])
    new = _create_commit(repository, tree, [before], message)
    _update_checkout(checkout, before, new)
    changed = [change.name for change in git_history.list_changes(repository, before, new)]
    return GraftResult(new, before, changed, [])


def _stage_files(
    checkout: Checkout, index: str, base: str, commit: str, files: Sequence[str]
) -> None:
    differing = {
        change.name: change for change in git_history.list_changes(checkout.common, base, commit)
    }
    index_info = b""
    for name in files:
        if name not in differing:
            raise _unchanged_error(name, commit)
        change = differing[name]
        if change.old_name is not None and change.state == "renamed":
            index_info += b"0 " + b"0" * len(commit) + b"\t" + os.fsencode(change.old_name) + b"\0"
        entry = checkout.check_output("ls-tree", "-z", "--full-tree", commit, "--", name)
        if entry:
            index_info += entry
        else:
            index_info += b"0 " + b"0" * len(commit) + b"\t" + os.fsencode(name) + b"\0"
    checkout.check_output(
        "update-index", "-z", "--index-info", stdin=index_info, GIT_INDEX_FILE=index
    )


def _stage_hunks(
    checkout: Checkout, index: str, base: str, commit: str, name: str, numbers: Sequence[int]
) -> None:
    change = next(
        (
            item
            for item in git_history.list_changes(checkout.common, base, commit)
            if item.name == name
        ),
        None,
    )
    if change is None:
        raise _unchanged_error(name, commit)
    names = [change.old_name, name] if change.old_name is not None else [name]
    patch = git.check_output(
        checkout.common, *git_history.PATCH_COMMAND, base, commit, "--", *names
    )
    head, *hunks = re.split(rb"(?m)^(?=@@ -)", patch)
    if missing := [number for number in numbers if not 1 <= number <= len(hunks)]:
        raise Refused(
            f"{git.decode_name(name)} has {len(hunks)} hunks; there is no hunk {missing[0]}.",
            name=name,
            reason="unknown_hunk",
        )
    patch_part = head + b"".join(hunks[number - 1] for number in sorted({*numbers}))
    arguments = ("apply", "--cached", "--whitespace=nowarn", "-")
    checkout.check_output(*arguments, stdin=patch_part, GIT_INDEX_FILE=index)


def _unchanged_error(name: str, commit: str) -> Refused:
    text = git.decode_name(name)
    return Refused(
        f"{text} is not changed in {commit[:12]}.",
        name=text,
        reason="unchanged",
    )
