"""Clearing away the worktrees of tasks that are over, and never anything that would be missed."""

import os
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from corral.adapters import leftovers
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import ops as runs
from corral.domain.tasks import ops
from corral.domain.tasks.model import ENDED, Task
from corral.kernel.errors import CorralError, NotFound
from corral.services import worktree_cleanup
from corral.services.tasks.autostart import worktrees_folder
from corral.services.worktree_cleanup import Leftover


class TaskLeftover(Leftover, frozen=True, kw_only=True):
    """A worktree of a task."""

    task_id: str
    key: str | None
    """None when the task is not known any more."""


def clean(database: Database, project: str, *, confirm: bool) -> list[TaskLeftover]:
    """Look at each, and remove those that may go when that is confirmed."""
    found = database.read(lambda tx: projects.get(tx, project))
    root = str(worktrees_folder() / found.id)
    if confirm:
        leftovers.sweep(root)
    return [
        worktree_cleanup.remove(left, found.dir, delete_branch=True)
        if confirm and left.action != "keep"
        else left
        for left in _looked_at(database, found, root)
    ]


def strays(database: Database) -> Iterator[tuple[str, str]]:
    """Folders among the worktrees of tasks that are no task's of this store: the project that each
    is below, and where it is."""
    root = worktrees_folder()
    for folder in sorted(root.glob("prj_*/*")):
        if folder.is_dir() and not folder.is_symlink():
            task, _ = database.read(partial(_task, id=folder.name))
            if task is None and folder.is_dir():
                yield folder.parent.name, str(folder)


def _looked_at(database: Database, project: Project, root: str) -> Iterator[TaskLeftover]:
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


def _look(project: Project, folder: str, id: str, task: Task | None, busy: bool) -> TaskLeftover:
    left = TaskLeftover(
        worktree=folder,
        bytes=leftovers.disk_use(folder),
        task_id=id,
        key=task.key if task is not None else None,
    )
    if task is not None and (busy or task.state not in ENDED):
        why = "its agent is still at it" if busy else f"its task is {task.state}"
        return replace(left, reason=why)
    left, state = worktree_cleanup.look_into(left, project.dir)
    if state is None:
        return left
    if not state.clean:
        return replace(left, reason=state.why_kept)
    if state.missing:
        return replace(left, action="gone", reason=worktree_cleanup.GONE)
    return replace(left, action="remove", reason=worktree_cleanup.ELSEWHERE)
