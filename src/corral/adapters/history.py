"""What git knows of commits: which one a folder is at, what is between two, what is not in any yet.

Names of files are what the system calls them, with surrogates where that is no text; `git.storable`
makes text of them. A repository is named as in `worktrees`.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

CHUNK_BYTES = 48 * 1024
MAX_BYTES = 4 * 1024 * 1024


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


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a unified diff that a reader of limited size can take."""

    text: str
    files: list[str]
    truncated: bool
    """True on the last one when the whole is longer than may be shown."""


def resolve(repository: str, name: str) -> str:
    """The id of a commit that is named somehow; Refused when there is none."""
    raise NotImplementedError


def head(folder: str) -> str:
    """The commit that a folder is at; Refused when there is none yet."""
    raise NotImplementedError


def branch_of(folder: str) -> str | None:
    """The branch that a folder is on; None on none."""
    raise NotImplementedError


def tree(repository: str, commit: str) -> str:
    """The id of all files of a commit: two commits with the same have the same, byte for byte."""
    raise NotImplementedError


def is_ancestor(repository: str, old: str, new: str) -> bool:
    """Whether a commit has another one in its history, or is it."""
    raise NotImplementedError


def uncommitted(folder: str) -> list[str]:
    """The files of the user's own folder that are in no commit as they are now, untracked ones
    too; a base that has some is not what the user sees."""
    raise NotImplementedError


def commit_all(repository: str, folder: str, message: str) -> Saved:
    """Commit whatever a worktree holds that is not committed: changed, removed and new files but
    ignored ones, in any state of its index, also in the middle of a merge, and when a git that was
    killed has left its lock. It runs no hook and needs no `user.name`.

    Conflict when its branch moves in the meantime; nothing is changed then.
    """
    raise NotImplementedError


def keep(repository: str, name: str, commit: str) -> None:
    """Have a repository keep a commit, whatever becomes of its branches (`refs/corral/NAME`)."""
    raise NotImplementedError


def let_go(repository: str, name: str) -> None:
    """Keep it no longer."""
    raise NotImplementedError


def stat(repository: str, old: str, new: str) -> Stat:
    """How much differs between two commits."""
    raise NotImplementedError


def changes(repository: str, old: str, new: str) -> list[Change]:
    """Which files differ between two commits, and how."""
    raise NotImplementedError


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
    raise NotImplementedError


def chunks(
    repository: str,
    old: str,
    new: str,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Chunk]:
    """The unified diff between two commits in pieces, cut between files and between lines; a piece
    that goes on with a file names it again. It is read as it is taken, never whole."""
    raise NotImplementedError


def side_by_side(hunk: Hunk) -> list[tuple[Line | None, Line | None]]:
    """A hunk in two columns: before and after, what was changed beside what it came to be."""
    raise NotImplementedError
