"""Inspecting a worktree that a task or an attempt left behind, and removing it without data loss.

`races/cleanup.py` and `tasks/cleanup.py` decide which worktrees may be removed. This module has the
inspection and the removal that both use; `adapters/worktrees/worktree_leftovers.py` finds orphans
and interrupted removals.
"""

import os
from collections.abc import Collection
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from corral.adapters.worktrees import worktrees
from corral.adapters.worktrees.worktree_pool import WorktreePool
from corral.kernel.errors import CorralError

NOTHING_UNIQUE = "all its work exists elsewhere too"
GONE = "it no longer exists"
UNKNOWN = "git does not know this worktree; inspect it and remove it by hand"


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A worktree, what was or would be done with it, and why."""

    worktree: str
    action: Literal["keep", "remove", "removed", "gone"] = "keep"
    """`gone`: the folder is missing; only the repository and the store still list it."""
    reason: str = ""
    bytes: int
    branch: str | None = None
    uncommitted: int = 0
    """Number of files with uncommitted changes."""
    unmerged: int = 0
    """Number of commits that are on no other branch."""


L = TypeVar("L", bound=Leftover)


def inspect(leftover: L, repository: str) -> tuple[L, worktrees.WorktreeState | None]:
    """Return what a worktree holds; the state is None when it cannot be determined.

    Without a state the worktree is kept, with the reason. A folder that exists but is not a
    worktree of the repository is never reported as gone.
    """
    try:
        state = worktrees.inspect(repository, leftover.worktree)
    except CorralError as error:
        return replace(leftover, reason=error.message), None
    if state.missing and os.path.isdir(leftover.worktree):
        return replace(leftover, reason=UNKNOWN), None
    return replace(
        leftover,
        branch=leftover.branch or state.branch,
        uncommitted=len(state.changed),
        unmerged=state.unmerged,
    ), state


def remove(
    leftover: L,
    repository: str,
    *,
    delete_branch: bool,
    despite: Collection[worktrees.RemovalLoss] = (),
    pool: WorktreePool | None = None,
) -> L:
    """Remove a worktree, unless new work appeared in it since it was inspected.

    A worktree that cannot be removed is returned as kept, with the reason.
    """
    try:
        worktrees.remove(
            repository, leftover.worktree, delete_branch=delete_branch, despite=despite, pool=pool
        )
    except (CorralError, OSError) as error:
        return replace(leftover, action="keep", reason=str(error))
    return replace(leftover, action="removed")
