"""What git knows of commits: which one a folder is at, what is between two, what is not in any yet.

Names of files are what the system calls them, with surrogates where that is no text; `git.storable`
makes text of them. A repository is named as in `worktrees`.
"""

import os
import re
import shutil
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import msgspec

from corral.adapters import git, submodules
from corral.adapters.checkouts import (
    DIFFERING,
    TAKE_IN,
    Checkout,
    index_to_read,
    known_checkout,
    scratch_index,
)
from corral.adapters.checkouts import resolve as resolve
from corral.adapters.output.regular_file import open_regular_file
from corral.kernel.clock import SystemClock
from corral.kernel.errors import Conflict, Invalid, NotFound

MAX_BYTES = 4 * 1024 * 1024
KEPT = "refs/corral/"  # where commits are kept, whatever becomes of branches
MAX_NEW = 1_000  # new files whose lines are counted
DEAD_LOCK_SECONDS = 60  # git holds its index for moments; an older lock is a killed one's
_STATES: dict[str, Literal["added", "removed", "changed", "renamed", "copied", "kind"]] = {
    "A": "added",
    "D": "removed",
    "M": "changed",
    "R": "renamed",
    "C": "copied",
    "T": "kind",
}
# The same for everybody, whatever the user's configuration says.
_DIFF = ("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--ignore-submodules=none")
_LINES = ("--numstat", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
PATCH = (
    *("-c", "core.quotePath=false"),
    *_DIFF,
    *("-p", "--full-index", "--src-prefix=a/", "--dst-prefix=b/"),
)


class Saved(msgspec.Struct, frozen=True):
    """What became of work that was not committed."""

    commit: str
    """The commit that has it all; the one that was there when there was nothing."""
    tree: str
    made: bool
    left: list[str]
    """Repositories and submodules inside whose own work is in no commit of this one."""


class Change(msgspec.Struct, frozen=True):
    """How one file differs between two commits."""

    name: str
    state: Literal["added", "removed", "changed", "renamed", "copied", "kind"]
    """`kind`: a file came to be a link or a submodule, or the other way around."""
    old_name: str | None
    """What it was called before, if otherwise."""
    added: int | None
    """Lines; None for what is no text."""
    removed: int | None


class Stat(msgspec.Struct, frozen=True):
    """How much differs between two commits."""

    files: int
    added: int
    removed: int
    binary: int
    """Files of these that are no text, and have no lines."""


class Line(msgspec.Struct, frozen=True):
    sign: Literal[" ", "-", "+"]
    text: str
    old: int | None
    """Its number before; None for one that is new."""
    new: int | None
    ended: bool = True
    """False for the last line of a file that does not end with a line's end."""


class Hunk(msgspec.Struct, frozen=True):
    """A stretch of a file that differs, with a few lines around it."""

    number: int
    """From 1, as `graft` takes it."""
    header: str
    old_start: int
    new_start: int
    lines: list[Line]


class FileDiff(msgspec.Struct, frozen=True):
    change: Change
    hunks: list[Hunk]
    truncated: bool
    """Whether there is more than is shown here."""


def branch_of(folder: str) -> str | None:
    """The branch that a folder is on; None on none."""
    name = os.fsdecode(git.run(folder, "symbolic-ref", "--quiet", "--short", "HEAD").out).strip()
    return name or None


def tree(repository: str, commit: str) -> str:
    """The id of all files of a commit: two commits with the same have the same, byte for byte."""
    return (
        git.told(repository, "rev-parse", f"{resolve(repository, commit)}^{{tree}}")
        .decode()
        .strip()
    )


def is_ancestor(repository: str, old: str, new: str) -> bool:
    """Whether a commit has another one in its history, or is it."""
    done = git.run(repository, "merge-base", "--is-ancestor", old, new)
    if done.code > 1:
        raise git.failed(repository, "merge-base", done)
    return done.code == 0


def uncommitted(folder: str) -> list[str]:
    """The files of the user's own repository that are in no commit as they are now, untracked ones
    too; a base that has some is not what the user sees. None in a bare repository."""
    top = git.worktree_of(os.path.realpath(folder))
    return [] if top is None else [*git.changed(top)]


# -- committing ------------------------------------------------------------------------------------


def commit_all(repository: str, folder: str, message: str) -> Saved:
    """Commit whatever a worktree holds that is not committed: changed, removed and new files but
    ignored ones, in any state of its index, also in the middle of a merge, and when a git that was
    killed has left its lock. It runs no hook and needs no `user.name`.

    Conflict when its branch moves in the meantime, Refused when the disk is full; nothing is
    changed then.
    """
    found = known_checkout(repository, folder)
    before = found.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.decode().strip()
    # On a copy of the index, so that no lock stands in the way.
    with git.writing(found.common), scratch_index(found) as index:
        with index_to_read(found) as own:
            shutil.copyfile(own, index)
        inside = _stage_all(found, index)
        made = found.told("write-tree", GIT_INDEX_FILE=index).decode().strip()
        merged = found.run("rev-parse", "--verify", "--quiet", "MERGE_HEAD").out.decode().strip()
        same = before and found.line("rev-parse", f"{before}^{{tree}}") == made and not merged
        commit = before
        if not same:
            parents = dict.fromkeys(filter(None, (before, merged)))
            whole = found.environment | git.NOBODY
            commit = git.commit_tree(folder, made, parents, message, environment=whole)
            _move_head(found, before, commit)
        os.replace(index, os.path.join(found.own, "index"))
    _clear_away(found)
    left = inside + [
        f"{name}/" for name in submodules.with_work(found, os.path.join(found.own, "index"))
    ]
    return Saved(commit, made, not same, left)


def _stage_all(found: Checkout, index: str) -> list[str]:
    """Put every file as it is into an index; the repositories inside that are not in it."""
    differing = git.names_in(found.told(*DIFFERING, GIT_INDEX_FILE=index))
    words = ("ls-files", "--others", "--exclude-standard", "-z")
    new = git.names_in(found.told(*words, GIT_INDEX_FILE=index))
    names = [*differing, *(name for name in new if not name.endswith("/"))]
    found.told(*TAKE_IN, given=git.listed(names), GIT_INDEX_FILE=index)
    return [name for name in new if name.endswith("/")]


def _move_head(found: Checkout, before: str, commit: str) -> None:
    old = before or "0" * len(commit)
    done = found.run("update-ref", "-m", "corral: what was not committed", "HEAD", commit, old)
    if b"but expected" in done.err:
        raise Conflict(
            f"The branch of {found.folder} has moved; try again.",
            dir=found.folder,
            reason="branch_moved",
        )
    if done.code:
        raise git.failed(found.folder, "update-ref", done)


def _clear_away(found: Checkout) -> None:
    """What belongs to a merge that is committed now, and the lock of a git that is no more."""
    for name in ("MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD"):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(found.own, name))
    lock = os.path.join(found.own, "index.lock")
    with suppress(FileNotFoundError):
        if SystemClock().now() / 1_000 - os.stat(lock).st_mtime > DEAD_LOCK_SECONDS:
            os.unlink(lock)


def keep(repository: str, name: str, commit: str) -> None:
    """Have a repository keep a commit, whatever becomes of its branches (`refs/corral/NAME`)."""
    git.told(repository, "update-ref", _kept(repository, name), resolve(repository, commit))


def kept(repository: str, above: str) -> list[str]:
    """The names below this one that a repository keeps commits by; none when it is gone."""
    words = ("for-each-ref", "--format=%(refname)", f"{_kept(repository, above)}/")
    names = git.run(repository, *words).out.decode().split() if os.path.isdir(repository) else []
    return [name.removeprefix(KEPT) for name in names]


def kept_alone(repository: str, name: str) -> int:
    """How many commits would be lost with this name: no branch, tag or other name has them."""
    ref = _kept(repository, name)
    others = ("--branches", "--tags", "--remotes", f"--exclude={ref}", f"--glob={KEPT}*")
    return int(git.told(repository, "rev-list", "--count", ref, "--not", *others))


def let_go(repository: str, name: str) -> bool:
    """Keep it no longer, where all of it is elsewhere too; whether that is so."""
    ref = _kept(repository, name)
    at = git.run(repository, "rev-parse", "--verify", "--quiet", ref).out.decode().strip()
    if not at:
        return True
    if kept_alone(repository, name):
        return False
    return not git.run(repository, "update-ref", "-d", ref, at).code


def _kept(repository: str, name: str) -> str:
    ref = f"{KEPT}{name}"
    if git.run(repository, "check-ref-format", ref).code:
        raise Invalid(f"{name} is no name that git can keep a commit by.", name=name)
    return ref


# -- what is between two commits -------------------------------------------------------------------


def stat(repository: str, old: str, new: str) -> Stat:
    """How much differs between two commits."""
    found = changes(repository, old, new)
    return Stat(
        len(found),
        sum(change.added or 0 for change in found),
        sum(change.removed or 0 for change in found),
        sum(change.added is None for change in found),
    )


def differing(repository: str, folder: str, base: str) -> Stat:
    """How much of a worktree differs from a commit, new files too. It only looks, also while an
    agent is at work there, and takes nothing that is written there for git's own."""
    found = known_checkout(repository, folder)
    files = added = removed = binary = 0
    with index_to_read(found) as index:
        words = ("diff", *_LINES, resolve(repository, base))
        told = found.told(*words, GIT_INDEX_FILE=index, GIT_OPTIONAL_LOCKS="0")
        others = ("ls-files", "--others", "--exclude-standard", "-z")
        listed = found.told(*others, GIT_INDEX_FILE=index)
    for entry in filter(None, told.split(b"\0")):
        plus, minus, _ = entry.split(b"\t", 2)
        files += 1
        added += int(plus) if plus.isdigit() else 0
        removed += int(minus) if minus.isdigit() else 0
        binary += not plus.isdigit()
    new = git.names_in(listed)
    for name in new[:MAX_NEW]:
        with suppress(OSError), open(open_regular_file(Path(folder, name)), "rb") as file:
            added += file.read(1 << 20).count(b"\n")
    return Stat(files + len(new), added, removed, binary)


def changes(repository: str, old: str, new: str) -> list[Change]:
    """Which files differ between two commits, and how."""
    words = (*_DIFF, "--raw", "--numstat", "-z", resolve(repository, old), resolve(repository, new))
    fields = iter(git.told(repository, *words, seconds=git.LONG_SECONDS).split(b"\0"))
    facts: list[tuple[str, bytes | None, bytes]] = []
    found: list[Change] = []
    for field in fields:
        if field.startswith(b":"):
            letter = field.split(b" ")[4][:1].decode()
            before = next(fields) if letter in "RC" else None
            facts.append((letter, before, next(fields)))
        elif field:
            added, removed, name = field.split(b"\t", 2)
            if not name:  # both names come behind
                next(fields), next(fields)
            letter, before, name = facts[len(found)]
            found.append(
                Change(
                    os.fsdecode(name),
                    _STATES[letter],
                    None if before is None else os.fsdecode(before),
                    None if added == b"-" else int(added),
                    None if removed == b"-" else int(removed),
                )
            )
    return found


def diff(
    repository: str,
    old: str,
    new: str,
    name: str,
    *,
    context: int = 3,
    max_bytes: int = MAX_BYTES,
) -> FileDiff:
    """How one file differs between two commits, line by line; NotFound when it does not."""
    for change in changes(repository, old, new):
        if change.name == name:
            break
    else:
        raise NotFound(
            f"{git.storable(name)} is the same in both.",
            name=git.storable(name),
            reason="unchanged",
        )
    names = [change.old_name, name] if change.old_name is not None else [name]
    ends = (resolve(repository, old), resolve(repository, new))
    with git.reading(repository, *PATCH, f"-U{context}", *ends, "--", *names) as (_, out):
        text = out.read(max_bytes + 1)
    truncated = len(text) > max_bytes
    if truncated:
        text = text[: text.rfind(b"\n", 0, max_bytes) + 1]
    return FileDiff(change, hunks_in(text), truncated)


_HUNK = re.compile(rb"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def hunks_in(patch: bytes) -> list[Hunk]:
    """The hunks of one file's unified diff."""
    found: list[Hunk] = []
    before = after = 0
    for line in patch.split(b"\n"):
        if start := _HUNK.match(line):
            before, after = int(start[1]), int(start[2])
            header = line.decode(errors="replace")
            found.append(Hunk(len(found) + 1, header, before, after, []))
        elif line.startswith(b"\\") and found:
            lines = found[-1].lines
            lines[-1] = msgspec.structs.replace(lines[-1], ended=False)
        elif found and line[:1] in (b" ", b"-", b"+"):
            text = line[1:].decode(errors="replace")
            if line[:1] == b"-":
                found[-1].lines.append(Line("-", text, before, None))
            elif line[:1] == b"+":
                found[-1].lines.append(Line("+", text, None, after))
            else:
                found[-1].lines.append(Line(" ", text, before, after))
            before += line[:1] != b"+"
            after += line[:1] != b"-"
        elif line:
            # Of what follows a hunk only another file's head is left: a file that changed its kind.
            before = after = 0
    return found


def side_by_side(hunk: Hunk) -> list[tuple[Line | None, Line | None]]:
    """A hunk in two columns: before and after, what was changed beside what it came to be."""
    rows: list[tuple[Line | None, Line | None]] = []
    gone: list[Line] = []
    come: list[Line] = []
    for line in hunk.lines:
        if line.sign == "-" and not come:
            gone.append(line)
        elif line.sign == "+":
            come.append(line)
        else:
            rows += zip_longest(gone, come)
            gone, come = ([line], []) if line.sign == "-" else ([], [])
            rows += [(line, line)] if line.sign == " " else []
    rows += zip_longest(gone, come)
    return rows
