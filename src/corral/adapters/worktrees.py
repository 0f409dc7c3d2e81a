"""Git worktrees: a place of its own for each piece of work, on a branch of its own.

A repository is named by any folder of it, by its own worktree or by its git folder (a bare one, a
private one). What was left in a worktree is found there again: nothing that would lose work is done
unless the loss is named.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

Loss = Literal["dirty", "unmerged", "locked"]
"""What a removal may do away with, when it is told so by name."""


class Tree(NamedTuple):
    """A worktree as its repository has it written down."""

    folder: str
    branch: str | None
    """None when its HEAD is on no branch."""
    head: str
    locked: str | None = None
    """Why it is locked, maybe empty; None when it is not."""


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
    merged_into: list[str]
    """Branches (and tags, and what is kept) that have all of its commits; not its own branch."""
    locked: str | None

    @property
    def dirty(self) -> bool:
        return bool(self.uncommitted or self.untracked)

    @property
    def clean(self) -> bool:
        """Whether nothing is lost when folder and branch are removed."""
        return not (self.dirty or self.unmerged or self.locked is not None)

    @property
    def why_kept(self) -> str | None:
        """In a few words for a person, why it is not removed; None when it may be."""
        raise NotImplementedError


class Orphan(msgspec.Struct, frozen=True):
    """A folder or a registration that nobody answers for."""

    folder: str
    repository: str | None
    """None for a folder that git does not know."""
    branch: str | None
    exists: bool


def make(repository: str, folder: str, branch: str, *, base: str = "HEAD") -> str:
    """A worktree in `folder` on a new `branch` at the commit `base`; the directory in it that
    stands for `repository` (which may be a folder inside of its worktree) comes back.

    To call it again with the same words does no harm: what is there already is taken as it is, with
    all that was left in it, and what a crash left half-made is made whole. Submodules that the
    repository has are filled without a network. Several processes may call it at once. Refused
    when `branch` is there and stands elsewhere, when `folder` holds anything else, when there is
    no such commit or none at all.
    """
    raise NotImplementedError


def renew(
    repository: str,
    folder: str,
    branch: str,
    *,
    base: str,
    despite: Collection[Loss] = (),
) -> str:
    """Make a worktree that is done with into one on a new `branch` at `base`, as if it were new
    (ignored files go too), faster than `make`. Its old branch stays.

    Refused, and nothing is touched, when something in it would be lost.
    """
    raise NotImplementedError


def trees(repository: str) -> list[Tree]:
    """The worktrees of a repository that have a commit and are there, the main one first."""
    raise NotImplementedError


def registered(repository: str) -> list[Tree]:
    """The linked worktrees that git knows, those whose folder is gone too."""
    raise NotImplementedError


def state(repository: str, folder: str) -> State:
    """What is in a worktree. It only looks, and runs no program that was left in there."""
    raise NotImplementedError


def states(repository: str, folders: Sequence[str]) -> Mapping[str, State]:
    """The same of several, each by its folder as it was given."""
    raise NotImplementedError


def disk_use(folder: str) -> int:
    """The bytes that a folder takes on disk; 0 when it is gone. It follows no link."""
    raise NotImplementedError


def remove(
    repository: str,
    folder: str,
    *,
    delete_branch: bool = False,
    despite: Collection[Loss] = (),
) -> State:
    """Remove a worktree, and what git has written down of it; what was in it comes back.

    Refused when it is dirty, when it is locked, or when commits would be lost: those of no other
    branch, with `delete_branch`, and those of no branch at all without. Each is done all the same
    when `despite` names it. One that is gone already is only forgotten by git.
    """
    raise NotImplementedError


def orphans(repositories: Sequence[str], root: str, known: Collection[str]) -> list[Orphan]:
    """Folders below `root` (each a worktree or the remains of one) and registrations of the
    repositories' worktrees there, whose folder is none of `known`. It only looks."""
    raise NotImplementedError


def branch_name(key: str, unique: str) -> str:
    """A branch for a task: git takes the name, and no other task has it."""
    raise NotImplementedError
