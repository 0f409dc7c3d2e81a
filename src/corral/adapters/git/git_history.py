"""Commits and diffs: commit a worktree, keep commits by ref, compare two commits.

File names are as the operating system gives them, with surrogates for invalid UTF-8;
`git.decode_name` makes text of them. A repository is named as in `worktrees`.
"""

import os
import re
import shutil
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import msgspec

from corral.adapters.git import git, submodules
from corral.adapters.output.regular_file import open_regular_file
from corral.adapters.worktrees.worktree_registry import (
    DIFF_FILES_COMMAND,
    STAGE_COMMAND,
    Checkout,
    get_checkout,
    readable_index,
    scratch_index,
)
from corral.adapters.worktrees.worktree_registry import resolve_commit as resolve_commit
from corral.kernel.clock import SystemClock
from corral.kernel.errors import Conflict, Invalid, NotFound

MAX_DIFF_BYTES = 4 * 1024 * 1024
KEPT_REFS_PREFIX = "refs/corral/"  # refs that keep commits when their branches are deleted
MAX_COUNTED_FILES = 1_000  # untracked files whose lines are counted
STALE_LOCK_SECONDS = 60  # git holds the lock only briefly; an older one is left from a killed git
_STATES: dict[str, Literal["added", "removed", "changed", "renamed", "copied", "kind"]] = {
    "A": "added",
    "D": "removed",
    "M": "changed",
    "R": "renamed",
    "C": "copied",
    "T": "kind",
}
# Independent of the user's configuration.
_DIFF_COMMAND = (
    "diff-tree",
    "-r",
    "-M",
    "--no-ext-diff",
    "--no-textconv",
    "--ignore-submodules=none",
)
_NUMSTAT_OPTIONS = ("--numstat", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
PATCH_COMMAND = (
    *("-c", "core.quotePath=false"),
    *_DIFF_COMMAND,
    *("-p", "--full-index", "--src-prefix=a/", "--dst-prefix=b/"),
)


class SavedWork(msgspec.Struct, frozen=True):
    """The result of committing uncommitted work."""

    commit: str
    """The commit that contains all of it; the existing commit if nothing was uncommitted."""
    tree: str
    made: bool
    """Whether a commit was created."""
    left: list[str]
    """Nested repositories and submodules whose own work is not in this commit."""


class FileChange(msgspec.Struct, frozen=True):
    """The difference of one file between two commits."""

    name: str
    state: Literal["added", "removed", "changed", "renamed", "copied", "kind"]
    """`kind`: the type changed between file, symlink and submodule."""
    old_name: str | None
    """The previous name of a renamed or copied file."""
    added: int | None
    """Number of lines; None for binary files."""
    removed: int | None


class DiffStat(msgspec.Struct, frozen=True):
    """The size of a difference."""

    files: int
    added: int
    removed: int
    binary: int
    """Number of binary files, which have no lines."""


class DiffLine(msgspec.Struct, frozen=True):
    """A line of a diff."""

    sign: Literal[" ", "-", "+"]
    text: str
    old: int | None
    """Line number in the old file; None for an added line."""
    new: int | None
    """Line number in the new file; None for a removed line."""
    ended: bool = True
    """False for a last line without a line break."""


class Hunk(msgspec.Struct, frozen=True):
    """A changed section of a file, with context lines."""

    number: int
    """Counted from 1, as `merges.graft_changes` takes it."""
    header: str
    old_start: int
    new_start: int
    lines: list[DiffLine]


class FileDiff(msgspec.Struct, frozen=True):
    """The diff of one file."""

    change: FileChange
    hunks: list[Hunk]
    truncated: bool
    """Whether the diff is longer than `hunks`."""


def find_branch(folder: str) -> str | None:
    """Return the checked-out branch of a folder; None: detached HEAD."""
    name = os.fsdecode(git.run(folder, "symbolic-ref", "--quiet", "--short", "HEAD").out).strip()
    return name or None


def resolve_tree(repository: str, commit: str) -> str:
    """Return the tree id of a commit. Commits with equal trees have identical files."""
    return (
        git.check_output(repository, "rev-parse", f"{resolve_commit(repository, commit)}^{{tree}}")
        .decode()
        .strip()
    )


def is_ancestor(repository: str, old: str, new: str) -> bool:
    """Whether `old` is `new` or in its history."""
    result = git.run(repository, "merge-base", "--is-ancestor", old, new)
    if result.code > 1:
        raise git.git_error(repository, "merge-base", result)
    return result.code == 0


def list_uncommitted(folder: str) -> list[str]:
    """List the changed and untracked files of the user's own worktree; empty for a bare repository.

    Work that starts from the last commit does not contain them.
    """
    top = git.find_worktree_root(os.path.realpath(folder))
    return [] if top is None else [*git.list_changes(top)]


# -- commits ---------------------------------------------------------------------------------------


def commit_all(repository: str, folder: str, message: str) -> SavedWork:
    """Commit all uncommitted work of a worktree, except ignored files.

    Works in any state of the index, during a merge, and with a stale index.lock of a killed git.
    Runs no hook and needs no `user.name`. Raises Conflict when the branch moves during the call
    and Refused when the disk is full; both leave everything unchanged.
    """
    checkout = get_checkout(repository, folder)
    before = checkout.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.decode().strip()
    # On a copy of the index, so that a stale index.lock does not matter.
    with git.refuse_write_errors(checkout.common), scratch_index(checkout) as index:
        with readable_index(checkout) as own:
            shutil.copyfile(own, index)
        nested = _stage_all(checkout, index)
        tree = checkout.check_output("write-tree", GIT_INDEX_FILE=index).decode().strip()
        merge_head = (
            checkout.run("rev-parse", "--verify", "--quiet", "MERGE_HEAD").out.decode().strip()
        )
        is_unchanged = (
            before
            and checkout.read_line("rev-parse", f"{before}^{{tree}}") == tree
            and not merge_head
        )
        commit = before
        if not is_unchanged:
            parents = dict.fromkeys(filter(None, (before, merge_head)))
            environment = checkout.environment | git.CORRAL_IDENTITY
            commit = git.commit_tree(folder, tree, parents, message, environment=environment)
            _move_head(checkout, before, commit)
        os.replace(index, os.path.join(checkout.own, "index"))
    _delete_merge_state(checkout)
    left = nested + [
        f"{name}/"
        for name in submodules.list_modified(checkout, os.path.join(checkout.own, "index"))
    ]
    return SavedWork(commit, tree, not is_unchanged, left)


def _stage_all(checkout: Checkout, index: str) -> list[str]:
    """Stage every file in an index; return the nested repositories, which are not staged."""
    differing = git.split_names(checkout.check_output(*DIFF_FILES_COMMAND, GIT_INDEX_FILE=index))
    arguments = ("ls-files", "--others", "--exclude-standard", "-z")
    untracked = git.split_names(checkout.check_output(*arguments, GIT_INDEX_FILE=index))
    names = [*differing, *(name for name in untracked if not name.endswith("/"))]
    checkout.check_output(*STAGE_COMMAND, stdin=git.join_names(names), GIT_INDEX_FILE=index)
    return [name for name in untracked if name.endswith("/")]


def _move_head(checkout: Checkout, before: str, commit: str) -> None:
    old = before or "0" * len(commit)
    result = checkout.run("update-ref", "-m", "corral: what was not committed", "HEAD", commit, old)
    if b"but expected" in result.err:
        raise Conflict(
            f"The branch of {checkout.folder} moved during the commit. Try again.",
            dir=checkout.folder,
            reason="branch_moved",
        )
    if result.code:
        raise git.git_error(checkout.folder, "update-ref", result)


def _delete_merge_state(checkout: Checkout) -> None:
    """Delete the state files of a merge that is now committed, and a stale index.lock."""
    for name in ("MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD"):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(checkout.own, name))
    lock = os.path.join(checkout.own, "index.lock")
    with suppress(FileNotFoundError):
        if SystemClock().now() / 1_000 - os.stat(lock).st_mtime > STALE_LOCK_SECONDS:
            os.unlink(lock)


def keep_commit(repository: str, name: str, commit: str) -> None:
    """Protect a commit from garbage collection with the ref `refs/corral/NAME`."""
    git.check_output(
        repository, "update-ref", _keep_ref(repository, name), resolve_commit(repository, commit)
    )


def list_kept(repository: str, above: str) -> list[str]:
    """List the names below `above` that keep commits; empty if the repository does not exist."""
    arguments = ("for-each-ref", "--format=%(refname)", f"{_keep_ref(repository, above)}/")
    names = (
        git.run(repository, *arguments).out.decode().split() if os.path.isdir(repository) else []
    )
    return [name.removeprefix(KEPT_REFS_PREFIX) for name in names]


def count_only_kept(repository: str, name: str) -> int:
    """Count the commits that only this name keeps: no branch, tag or other name reaches them."""
    ref = _keep_ref(repository, name)
    others = (
        "--branches",
        "--tags",
        "--remotes",
        f"--exclude={ref}",
        f"--glob={KEPT_REFS_PREFIX}*",
    )
    return int(git.check_output(repository, "rev-list", "--count", ref, "--not", *others))


def release_commit(repository: str, name: str) -> bool:
    """Delete the name if other refs reach all of its commits; return whether it is gone."""
    ref = _keep_ref(repository, name)
    commit = git.run(repository, "rev-parse", "--verify", "--quiet", ref).out.decode().strip()
    if not commit:
        return True
    if count_only_kept(repository, name):
        return False
    return not git.run(repository, "update-ref", "-d", ref, commit).code


def _keep_ref(repository: str, name: str) -> str:
    ref = f"{KEPT_REFS_PREFIX}{name}"
    if git.run(repository, "check-ref-format", ref).code:
        raise Invalid(f"Invalid ref name: {name}.", name=name)
    return ref


# -- diffs -----------------------------------------------------------------------------------------


def diff_stat(repository: str, old: str, new: str) -> DiffStat:
    """Measure the difference between two commits."""
    changes = list_changes(repository, old, new)
    return DiffStat(
        len(changes),
        sum(change.added or 0 for change in changes),
        sum(change.removed or 0 for change in changes),
        sum(change.added is None for change in changes),
    )


def diff_stat_of_worktree(repository: str, folder: str, base: str) -> DiffStat:
    """Measure the difference between a worktree and a commit, including untracked files.

    Read-only and safe while an agent works there; configuration that the agent wrote is not
    trusted.
    """
    checkout = get_checkout(repository, folder)
    files = added = removed = binary = 0
    with readable_index(checkout) as index:
        arguments = ("diff", *_NUMSTAT_OPTIONS, resolve_commit(repository, base))
        numstat = checkout.check_output(*arguments, GIT_INDEX_FILE=index, GIT_OPTIONAL_LOCKS="0")
        others = ("ls-files", "--others", "--exclude-standard", "-z")
        listed = checkout.check_output(*others, GIT_INDEX_FILE=index)
    for entry in filter(None, numstat.split(b"\0")):
        plus, minus, _ = entry.split(b"\t", 2)
        files += 1
        added += int(plus) if plus.isdigit() else 0
        removed += int(minus) if minus.isdigit() else 0
        binary += not plus.isdigit()
    untracked = git.split_names(listed)
    for name in untracked[:MAX_COUNTED_FILES]:
        with suppress(OSError), open(open_regular_file(Path(folder, name)), "rb") as file:
            added += file.read(1 << 20).count(b"\n")
    return DiffStat(files + len(untracked), added, removed, binary)


def list_changes(repository: str, old: str, new: str) -> list[FileChange]:
    """List the files that differ between two commits."""
    arguments = (
        *_DIFF_COMMAND,
        "--raw",
        "--numstat",
        "-z",
        resolve_commit(repository, old),
        resolve_commit(repository, new),
    )
    fields = iter(git.check_output(repository, *arguments, seconds=git.LONG_SECONDS).split(b"\0"))
    statuses: list[tuple[str, bytes | None, bytes]] = []
    changes: list[FileChange] = []
    for field in fields:
        if field.startswith(b":"):
            letter = field.split(b" ")[4][:1].decode()
            before = next(fields) if letter in "RC" else None
            statuses.append((letter, before, next(fields)))
        elif field:
            added, removed, name = field.split(b"\t", 2)
            if not name:  # a rename: both names follow as separate fields
                next(fields), next(fields)
            letter, before, name = statuses[len(changes)]
            changes.append(
                FileChange(
                    os.fsdecode(name),
                    _STATES[letter],
                    None if before is None else os.fsdecode(before),
                    None if added == b"-" else int(added),
                    None if removed == b"-" else int(removed),
                )
            )
    return changes


def diff_file(
    repository: str,
    old: str,
    new: str,
    name: str,
    *,
    context: int = 3,
    max_bytes: int = MAX_DIFF_BYTES,
) -> FileDiff:
    """Return the diff of one file between two commits; raises NotFound when it does not differ."""
    for change in list_changes(repository, old, new):
        if change.name == name:
            break
    else:
        raise NotFound(
            f"{git.decode_name(name)} does not differ between the two commits.",
            name=git.decode_name(name),
            reason="unchanged",
        )
    names = [change.old_name, name] if change.old_name is not None else [name]
    ends = (resolve_commit(repository, old), resolve_commit(repository, new))
    with git.open_stream(repository, *PATCH_COMMAND, f"-U{context}", *ends, "--", *names) as (
        _,
        out,
    ):
        text = out.read(max_bytes + 1)
    truncated = len(text) > max_bytes
    if truncated:
        text = text[: text.rfind(b"\n", 0, max_bytes) + 1]
    return FileDiff(change, parse_hunks(text), truncated)


_HUNK = re.compile(rb"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def parse_hunks(patch: bytes) -> list[Hunk]:
    """Parse the hunks of one file's unified diff."""
    hunks: list[Hunk] = []
    before = after = 0
    for line in patch.split(b"\n"):
        if start := _HUNK.match(line):
            before, after = int(start[1]), int(start[2])
            header = line.decode(errors="replace")
            hunks.append(Hunk(len(hunks) + 1, header, before, after, []))
        elif line.startswith(b"\\") and hunks:
            lines = hunks[-1].lines
            lines[-1] = msgspec.structs.replace(lines[-1], ended=False)
        elif hunks and line[:1] in (b" ", b"-", b"+"):
            text = line[1:].decode(errors="replace")
            if line[:1] == b"-":
                hunks[-1].lines.append(DiffLine("-", text, before, None))
            elif line[:1] == b"+":
                hunks[-1].lines.append(DiffLine("+", text, None, after))
            else:
                hunks[-1].lines.append(DiffLine(" ", text, before, after))
            before += line[:1] != b"+"
            after += line[:1] != b"-"
        elif line:
            # A header after a hunk: the second file of a type change.
            before = after = 0
    return hunks


def side_by_side(hunk: Hunk) -> list[tuple[DiffLine | None, DiffLine | None]]:
    """Arrange a hunk in two columns: the old line and the new line that replaces it."""
    rows: list[tuple[DiffLine | None, DiffLine | None]] = []
    removed: list[DiffLine] = []
    added: list[DiffLine] = []
    for line in hunk.lines:
        if line.sign == "-" and not added:
            removed.append(line)
        elif line.sign == "+":
            added.append(line)
        else:
            rows += zip_longest(removed, added)
            removed, added = ([line], []) if line.sign == "-" else ([], [])
            rows += [(line, line)] if line.sign == " " else []
    rows += zip_longest(removed, added)
    return rows
