"""Removing the worktrees of ended tasks that hold no work of their own."""

import os
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from corral import config
from corral.adapters.worktrees import worktree_leftovers
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import ops as runs
from corral.domain.tasks import queries
from corral.domain.tasks.model import ENDED, Task
from corral.kernel.errors import CorralError, NotFound
from corral.services import worktree_cleanup
from corral.services.worktree_cleanup import Leftover


class TaskLeftover(Leftover, frozen=True, kw_only=True):
    """A worktree of a task."""

    task_id: str
    key: str | None
    """None when the store no longer has the task."""


def clean(database: Database, project: str, *, confirm: bool) -> list[TaskLeftover]:
    """Inspect the task worktrees of a project; with `confirm`, remove those that may go."""
    owner = database.read(lambda tx: projects.get(tx, project))
    root = str(config.worktrees_folder() / owner.id)
    if confirm:
        worktree_leftovers.finish_removals(root)
    return [
        worktree_cleanup.remove(leftover, owner.dir, delete_branch=True)
        if confirm and leftover.action != "keep"
        else leftover
        for leftover in _inspect_all(database, owner, root)
    ]


def list_orphans(database: Database) -> Iterator[tuple[str, str]]:
    """Yield folders among the task worktrees that belong to no task of this store.

    Each is a pair of the project's id and the folder.
    """
    root = config.worktrees_folder()
    for folder in sorted(root.glob("prj_*/*")):
        if folder.is_dir() and not folder.is_symlink():
            task, _ = database.read(partial(_find_task, id=folder.name))
            # The folder may have been removed while the store was read.
            if task is None and folder.is_dir():
                yield folder.parent.name, str(folder)


def _inspect_all(database: Database, project: Project, root: str) -> Iterator[TaskLeftover]:
    # With an empty list of known worktrees, `orphans` yields all that exist below the root, and
    # those that are gone but still registered in git.
    for orphan in worktree_leftovers.find_orphans([project.dir], root, []):
        id = os.path.basename(orphan.folder)
        if id.startswith(worktree_leftovers.REMOVAL_PREFIX):
            continue
        task, is_live = database.read(partial(_find_task, id=id))
        yield _inspect(project, orphan.folder, id, task, is_live)


def _find_task(tx: Tx, id: str) -> tuple[Task | None, bool]:
    """Return a task by its full id, and whether its run is live."""
    try:
        task = queries.get(tx, id)
    except CorralError:
        return None, False
    if task.id != id:
        return None, False  # the folder's name is only a prefix of the id
    try:
        is_live = task.run_id is not None and runs.get(tx, task.run_id).is_live
    except NotFound:  # the run was pruned
        is_live = False
    return task, is_live


def _inspect(
    project: Project, folder: str, id: str, task: Task | None, is_live: bool
) -> TaskLeftover:
    leftover = TaskLeftover(
        worktree=folder,
        bytes=worktree_leftovers.measure_disk_usage(folder),
        task_id=id,
        key=task.key if task is not None else None,
    )
    if task is not None and (is_live or task.state not in ENDED):
        why = "its agent is still running" if is_live else f"its task is {task.state}"
        return replace(leftover, reason=why)
    leftover, state = worktree_cleanup.inspect(leftover, project.dir)
    if state is None:
        return leftover
    if not state.clean:
        return replace(leftover, reason=state.removal_blockers)
    if state.missing:
        return replace(leftover, action="gone", reason=worktree_cleanup.GONE)
    return replace(leftover, action="remove", reason=worktree_cleanup.NOTHING_UNIQUE)
