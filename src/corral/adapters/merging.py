"""Bringing one commit's work to another place: merged into a branch, or in parts onto a worktree.

Everything is worked out in memory first; a conflict is told by file, and nothing is done then.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec


class Clash(msgspec.Struct, frozen=True):
    """A file that needs a person."""

    name: str
    why: str
    """In git's words: content, add/add, modify/delete, rename …"""


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


def try_merge(repository: str, commit: str, branch: str) -> Merge:
    """What a merge of a commit into a branch would come to; nothing is changed.

    Refused when there is no such branch, or when this git cannot try merges (older than 2.38).
    """
    raise NotImplementedError


def merge(
    repository: str, commit: str, branch: str, *, message: str, forward: bool = True
) -> Merge:
    """Merge a commit into a branch of the user's, or say what is in the way; never by force.

    Where the branch is checked out, its files come along, and what is uncommitted there stays; it
    is Refused when that is in the files that the merge touches. Otherwise only the branch is moved.
    Conflict when the branch moves in the meantime. After a crash in the middle the same call makes
    it whole. No hook is run. With `forward`, a branch that has nothing of its own is just moved.
    """
    raise NotImplementedError


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
    clean, or when a file or hunk is not there. `worktrees.renew` goes back to `before`.
    """
    raise NotImplementedError


def common(repository: str, one: str, other: str) -> str:
    """The newest commit that two have in common; Refused when they have none."""
    raise NotImplementedError
