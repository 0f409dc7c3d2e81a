"""Bringing one commit's work to another place: merged into a branch, or in parts onto a worktree.

Everything is worked out in memory first; a conflict is told by file, and nothing is done then.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from corral.adapters import git, history
from corral.adapters.checkouts import (
    DIFFERING,
    TAKE_IN,
    Checkout,
    checkout_at,
    common_dir,
    is_named_back,
    known_checkout,
    resolve,
    scratch_index,
    trees,
)
from corral.adapters.commits import Clash, merge_tree
from corral.adapters.worktrees import changed_files
from corral.kernel.errors import Conflict, Invalid, Refused


class Merge(msgspec.Struct, frozen=True):
    outcome: Literal["merged", "already", "conflicts"]
    """`already`: the branch has the commit."""
    commit: str | None
    """What the branch is at afterwards (or would be, of a trial); None with conflicts."""
    before: str
    """What it was at."""
    conflicts: list[Clash]
    forward: bool
    """The branch was only moved forward; no commit was made."""


class Graft(msgspec.Struct, frozen=True):
    commit: str | None
    """The commit on the worktree's branch; None with conflicts."""
    before: str
    files: list[str]
    """What differs by it; empty, and `commit` is `before`, when all of it was there already."""
    conflicts: list[Clash]


def common(repository: str, one: str, other: str) -> str:
    """The newest commit that two have in common; Refused when they have none."""
    done = git.run(repository, "merge-base", resolve(repository, one), resolve(repository, other))
    if done.code or not done.out:
        raise Refused(
            f"{one} and {other} have no commit in common.", dir=repository, reason="no_merge_base"
        )
    return done.out.decode().split()[0]


# -- merging ---------------------------------------------------------------------------------------


def _worked_out(repository: str, commit: str, branch: str, *, forward: bool) -> tuple[Merge, str]:
    """What it would come to, and the files of that."""
    done = git.run(
        repository, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}"
    )
    before = done.out.decode().strip()
    if done.code:
        raise Refused(
            f"There is no branch {branch} in {repository}.", branch=branch, reason="unknown_branch"
        )
    commit = resolve(repository, commit)
    if history.is_ancestor(repository, commit, before):
        return Merge("already", before, before, [], False), ""
    if forward and history.is_ancestor(repository, before, commit):
        return Merge("merged", commit, before, [], True), history.tree(repository, commit)
    common(repository, before, commit)
    made, clashes = merge_tree(repository, before, commit)
    if clashes:
        return Merge("conflicts", None, before, clashes, False), ""
    return Merge("merged", None, before, [], False), made


def merge(
    repository: str, commit: str, branch: str, *, message: str, forward: bool = True
) -> Merge:
    """Merge a commit into a branch of the user's, or say what is in the way; never by force.

    Where the branch is checked out, its files come along, and what is uncommitted there stays; it
    is Refused when that is in the files that the merge touches. Otherwise only the branch is moved.
    Conflict when the branch moves in the meantime. After a crash in the middle the same call makes
    it whole. No hook is run. With `forward`, a branch that has nothing of its own is just moved.
    """
    merge, made = _worked_out(repository, commit, branch, forward=forward)
    if merge.outcome != "merged":
        return merge
    new = merge.commit or _committed(
        repository, made, [merge.before, resolve(repository, commit)], message
    )
    if checkout := _checkout(repository, branch):
        _bring(checkout, merge.before, new)
    else:
        words = ("update-ref", f"refs/heads/{branch}", new, merge.before)
        _refuse_move(git.run(repository, *words), repository, branch)
    return msgspec.structs.replace(merge, commit=new)


def _committed(repository: str, made: str, parents: Sequence[str], message: str) -> str:
    """A commit in the user's name, where git knows that."""
    known = git.run(repository, "-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT")
    who = git.NOBODY if known.code else None
    return git.commit_tree(repository, made, parents, message, environment=who)


def _checkout(repository: str, branch: str) -> Checkout | None:
    """Where a branch is checked out, if it is. It may be an agent who did so, or who only says so,
    of a folder that is none of its own: nothing is written there then."""
    git_dir = common_dir(repository)
    for tree in trees(repository):
        if tree.branch == branch:
            found = checkout_at(git_dir, tree.folder)
            if found.branch == branch and (found.own == git_dir or is_named_back(found)):
                return found
    return None


def _refuse_move(done: git.Done, top: str, branch: str) -> None:
    if b"but expected" in done.err:
        raise Conflict(
            f"{branch} has moved in the meantime; try again.", branch=branch, reason="branch_moved"
        )
    if done.code:
        raise git.failed(top, "update-ref", done)


def _bring(checkout: Checkout, before: str, new: str) -> None:
    """Take a checkout from one commit to another, with all that is not committed in it."""
    for name in ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"):
        if os.path.exists(os.path.join(checkout.own, name)):
            raise Refused(
                f"{checkout.folder} is in the middle of a merge; finish it first.",
                dir=checkout.folder,
            )
    words = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, new)
    touched = {*git.names_in(checkout.told(*words))}
    uncommitted, untracked = changed_files(checkout)
    changed = touched & {*uncommitted, *untracked}
    there = _as_in(checkout, new, changed)
    if in_the_way := sorted(changed - there):
        raise Refused(
            f"{git.storable(in_the_way[0])} in {checkout.folder} is not committed, and the merge "
            "changes it; commit it or put it away first.",
            dir=checkout.folder,
            files=[git.storable(name) for name in in_the_way],
        )
    if there:  # from a call that was cut short
        checkout.told(*TAKE_IN, given=git.listed(there))
    _write(checkout, before, new, touched - there)
    done = checkout.run("update-ref", "-m", "corral: merge", "HEAD", new, before)
    if done.code:
        checkout.told("read-tree", "-m", "-u", new, before)
    _refuse_move(done, checkout.folder, checkout.branch or "HEAD")


def _write(checkout: Checkout, before: str, new: str, touched: set[str]) -> None:
    """Write what differs between two commits; all of it is put back when that cannot be done."""
    absent = {name for name in touched if not os.path.lexists(os.path.join(checkout.folder, name))}
    done = checkout.run("read-tree", "-m", "-u", before, new)
    if done.code == 0:
        return
    for name in absent:  # first, for the room that they take
        with suppress(OSError):
            os.unlink(os.path.join(checkout.folder, name))
            while name := os.path.dirname(name):
                os.rmdir(os.path.join(checkout.folder, name))
    # The index is written last of all, so it still has what was there.
    words = ("checkout-index", "--force", "--quiet", "-z", "--stdin")
    checkout.told(*words, given=git.listed(touched - absent))
    raise Refused(
        f"{checkout.folder} could not be written ({done.said}), and is as it was; make room or "
        "correct that, and try again.",
        dir=checkout.folder,
        reason="not_written",
    )


def _as_in(checkout: Checkout, commit: str, names: set[str]) -> set[str]:
    """Those of these files that are already as they are in a commit, byte for byte."""
    if not names:
        return set()
    with scratch_index(checkout) as index:
        checkout.told("read-tree", commit, GIT_INDEX_FILE=index)
        known = {*git.names_in(checkout.told("ls-files", "-z", GIT_INDEX_FILE=index))}
        checkout.run("update-index", "-q", "--refresh", GIT_INDEX_FILE=index)
        other = {*git.names_in(checkout.told(*DIFFERING, GIT_INDEX_FILE=index))}
    gone = {name for name in names - known if not os.path.lexists(f"{checkout.folder}/{name}")}
    return ((names & known) - other) | gone


# -- parts of a commit -----------------------------------------------------------------------------


def graft(
    repository: str,
    folder: str,
    commit: str,
    *,
    message: str,
    files: Sequence[str] = (),
    hunks: Mapping[str, Sequence[int]] | None = None,
) -> Graft:
    """Bring files (whole) and hunks (by their numbers in the diff from the commit that both have in
    common, see `history.diff` of `common`) of a commit onto the worktree in `folder`, as a commit
    there; merged where both changed.

    All or nothing: with a conflict the worktree stays as it is. Refused when the worktree is not
    clean, or when a file or hunk is not there.
    """
    if not files and not hunks:
        raise Invalid("Name the files or hunks that are to be taken.")
    checkout = known_checkout(repository, folder)
    if any(changed_files(checkout)):
        raise Refused(
            f"{folder} has uncommitted work; commit it first.",
            dir=folder,
            reason="uncommitted_changes",
        )
    before = checkout.line("rev-parse", "--verify", "HEAD^{commit}")
    commit = resolve(repository, commit)
    base = common(repository, before, commit)
    with scratch_index(checkout) as index:
        checkout.told("read-tree", base, GIT_INDEX_FILE=index)
        _take_files(checkout, index, base, commit, files)
        for name, numbers in (hunks or {}).items():
            _take_hunks(checkout, index, base, commit, name, numbers)
        made = checkout.told("write-tree", GIT_INDEX_FILE=index).decode().strip()
    part = _committed(repository, made, [base], "a part")
    made, clashes = merge_tree(repository, before, part)
    if clashes:
        return Graft(None, before, [], clashes)
    if made == history.tree(repository, before):
        return Graft(before, before, [], [])
    new = _committed(repository, made, [before], message)
    _bring(checkout, before, new)
    taken = [change.name for change in history.changes(repository, before, new)]
    return Graft(new, before, taken, [])


def _take_files(
    checkout: Checkout, index: str, base: str, commit: str, files: Sequence[str]
) -> None:
    differing = {change.name: change for change in history.changes(checkout.common, base, commit)}
    lines = b""
    for name in files:
        if name not in differing:
            raise _not_there(name, commit)
        change = differing[name]
        if change.old_name is not None and change.state == "renamed":
            lines += b"0 " + b"0" * len(commit) + b"\t" + os.fsencode(change.old_name) + b"\0"
        found = checkout.told("ls-tree", "-z", "--full-tree", commit, "--", name)
        if found:
            lines += found
        else:
            lines += b"0 " + b"0" * len(commit) + b"\t" + os.fsencode(name) + b"\0"
    checkout.told("update-index", "-z", "--index-info", given=lines, GIT_INDEX_FILE=index)


def _take_hunks(
    checkout: Checkout, index: str, base: str, commit: str, name: str, numbers: Sequence[int]
) -> None:
    change = next(
        (c for c in history.changes(checkout.common, base, commit) if c.name == name), None
    )
    if change is None:
        raise _not_there(name, commit)
    names = [change.old_name, name] if change.old_name is not None else [name]
    patch = git.told(checkout.common, *history.PATCH, base, commit, "--", *names)
    head, *parts = re.split(rb"(?m)^(?=@@ -)", patch)
    if missing := [number for number in numbers if not 1 <= number <= len(parts)]:
        raise Refused(
            f"{git.storable(name)} has {len(parts)} hunks, and no number {missing[0]}.",
            name=name,
            reason="unknown_hunk",
        )
    chosen = head + b"".join(parts[number - 1] for number in sorted({*numbers}))
    words = ("apply", "--cached", "--whitespace=nowarn", "-")
    checkout.told(*words, given=chosen, GIT_INDEX_FILE=index)


def _not_there(name: str, commit: str) -> Refused:
    shown = git.storable(name)
    return Refused(
        f"{shown} is not changed in {commit[:12]}; name a file that is.",
        name=shown,
        reason="unchanged",
    )
