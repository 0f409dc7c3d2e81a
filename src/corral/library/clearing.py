"""Clearing away the worktrees of tasks that are over, and never anything that would be missed."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from corral import config
from corral.adapters import leftovers, worktrees
from corral.db.database import Database
from corral.db.tx import Tx
from corral.kernel.errors import CorralError, NotFound
from corral.rooms.projects import ops as projects
from corral.rooms.projects.model import Project
from corral.rooms.runs import ops as runs
from corral.rooms.tasks import ops
from corral.rooms.tasks.model import ENDED, Task


class Cleared(msgspec.Struct, frozen=True):
    """A worktree of a task, and what became of it or would."""

    worktree: str
    task_id: str
    key: str | None
    """None when the task is not known any more."""
    action: Literal["keep", "remove", "removed"]
    reason: str
    bytes: int
    branch: str | None
    uncommitted: int
    unmerged: int


def worktrees_folder() -> Path:
    """Where the worktrees of tasks are, each below its project's id under its own."""
    return config.home() / "worktrees"


def clean(database: Database, project: str, *, confirm: bool) -> list[Cleared]:
    """Look at each, and remove those that may go when that is confirmed."""
    found = database.read(lambda tx: projects.get(tx, project))
    root = str(worktrees_folder() / found.id)
    if confirm:
        leftovers.sweep(root)
    return [
        _removed(found, cleared) if confirm and cleared.action == "remove" else cleared
        for cleared in _looked_at(database, found, root)
    ]


def _looked_at(database: Database, project: Project, root: str) -> Iterator[Cleared]:
    # With none of them known, all that are there are told, and those that git alone remembers.
    for orphan in leftovers.orphans([project.dir], root, []):
        id = os.path.basename(orphan.folder)
        if id.startswith(leftovers.REMOVED):
            continue
        task, busy = database.read(partial(_task, id=id))
        yield _look(project, orphan.folder, id, task, busy)


def _task(tx: Tx, id: str) -> tuple[Task | None, bool]:
    """A task by its whole id, and whether its agent is still at it."""
    try:
        task = ops.get(tx, id)
    except CorralError:
        return None, False
    if task.id != id:
        return None, False  # the folder of somebody else, with a name that fits
    try:
        busy = task.run_id is not None and runs.get(tx, task.run_id).is_live
    except NotFound:  # forgotten
        busy = False
    return task, busy


def _look(project: Project, folder: str, id: str, task: Task | None, busy: bool) -> Cleared:
    key = task.key if task is not None else None
    cleared = Cleared(folder, id, key, "keep", "", leftovers.disk_use(folder), None, 0, 0)
    if task is not None and (busy or task.state not in ENDED):
        why = "its agent is still at it" if busy else f"its task is {task.state}"
        return msgspec.structs.replace(cleared, reason=why)
    try:
        state = worktrees.state(project.dir, folder)
    except CorralError as error:
        return msgspec.structs.replace(cleared, reason=error.message)
    if state.missing and os.path.isdir(folder):
        why = "git does not know it; look at it and remove it yourself"
        return msgspec.structs.replace(cleared, reason=why)
    return msgspec.structs.replace(
        cleared,
        action="remove" if state.clean else "keep",
        reason=state.why_kept or ("it is gone" if state.missing else "all of it is elsewhere too"),
        branch=state.branch,
        uncommitted=len(state.uncommitted) + len(state.untracked),
        unmerged=state.unmerged,
    )


def _removed(project: Project, cleared: Cleared) -> Cleared:
    try:
        worktrees.remove(project.dir, cleared.worktree, delete_branch=True)
    except CorralError as error:  # it has come to hold work since it was looked at
        return msgspec.structs.replace(cleared, action="keep", reason=error.message)
    return msgspec.structs.replace(cleared, action="removed")
