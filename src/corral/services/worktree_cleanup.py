"""What work left on disk: looking at a worktree, and removing it when nothing would be missed."""

import os
from collections.abc import Collection
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from corral.adapters import worktrees
from corral.adapters.pool import Pool
from corral.kernel.errors import CorralError

ELSEWHERE = "all of it is elsewhere too"
GONE = "it is not there any more"
UNKNOWN = "git does not know it; look at it and remove it yourself"


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A worktree, what became of it or would, and why."""

    worktree: str
    action: Literal["keep", "remove", "removed", "gone"] = "keep"
    """`gone`: only its repository and the store still knew it."""
    reason: str = ""
    bytes: int
    branch: str | None = None
    uncommitted: int = 0
    """Files in it that are in no commit."""
    unmerged: int = 0
    """Commits that are on no other branch."""


L = TypeVar("L", bound=Leftover)


def look_into(left: L, repository: str) -> tuple[L, worktrees.State | None]:
    """What a worktree holds; None where that cannot be told, and then it is kept, with the reason.

    A folder that git does not know as a worktree of the repository is never taken for a gone one.
    """
    try:
        state = worktrees.state(repository, left.worktree)
    except CorralError as error:
        return replace(left, reason=error.message), None
    if state.missing and os.path.isdir(left.worktree):
        return replace(left, reason=UNKNOWN), None
    return replace(
        left,
        branch=left.branch or state.branch,
        uncommitted=len(state.changed),
        unmerged=state.unmerged,
    ), state


def remove(
    left: L,
    repository: str,
    *,
    delete_branch: bool,
    despite: Collection[worktrees.Loss] = (),
    pool: Pool | None = None,
) -> L:
    """Remove a worktree; it is kept, with the reason, when it has come to hold work since it was
    looked at."""
    try:
        worktrees.remove(
            repository, left.worktree, delete_branch=delete_branch, despite=despite, pool=pool
        )
    except (CorralError, OSError) as error:
        return replace(left, action="keep", reason=str(error))
    return replace(left, action="removed")
