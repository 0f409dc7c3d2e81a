"""Find the projects of a path, under every name that the file has.

A file may have several names: in the main worktree of its repository, in a linked worktree, and as
hard links. A lock on one name has to bind all of them.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from corral.domain.locks import queries
from corral.domain.locks.model import LockConflict
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.kernel.errors import NotFound

if TYPE_CHECKING:
    from corral.db.database import Database

MAX_SCANNED = 200_000  # directory entries in a search for hard links


class ProjectPath(msgspec.Struct, frozen=True):
    """A path, and the project that contains it."""

    project: Project
    path: str


def find_project_path(database: "Database", path: str) -> ProjectPath:
    """Return the project that contains a file, and the file's path in it; raises NotFound.

    In a linked git worktree these are the project and the path of the main worktree, so that a lock
    binds in all worktrees.
    """
    for name in _list_names(path):
        if (project := _find_containing_project(database, name)) is not None:
            return ProjectPath(project, name)
    raise NotFound(
        f"{name} is not in a project. Register its directory with `corral project register DIR`.",
        path=name,
    )


def _find_containing_project(database: "Database", path: str) -> Project | None:
    return database.read(lambda tx: projects.find_containing(tx, path), mode="one")


def find_project_paths(database: "Database", path: str) -> list[ProjectPath]:
    """Return every project in which a path could be locked, nearest first.

    Projects may be nested, and a linked git worktree may be a project besides its repository. For a
    folder the result includes the projects inside it.
    """

    def measure_distance(location: ProjectPath) -> tuple[bool, int]:
        return len(location.project.dir) > len(location.path), -len(location.project.dir)

    return [
        location
        for name in _list_names(path)
        for location in sorted(
            (ProjectPath(project, name) for project in _list_near_projects(database, name)),
            key=measure_distance,
        )
    ]


def _list_near_projects(database: "Database", path: str) -> Sequence[Project]:
    return database.read(lambda tx: projects.list_overlapping(tx, path), mode="one")


def find_commit_conflicts(
    database: "Database", top: str, names: Sequence[str], agent: str, *, run: str | None = None
) -> list[LockConflict]:
    """Return the files of a commit that other owners have locked, in any project.

    `names` are paths as git prints them, relative to the top of the worktree.
    """
    conflicts: list[LockConflict] = []
    for location in find_project_paths(database, top):
        paths = [os.path.join(location.path, name) for name in names]
        for first in range(0, len(paths), queries.MAX_PATHS):
            batch = paths[first : first + queries.MAX_PATHS]
            conflicts += database.read(
                partial(
                    queries.find_conflicts,
                    project=location.project.id,
                    paths=batch,
                    agent=agent,
                    run=run,
                    as_spelled=True,
                )
            )
    return conflicts


def _list_names(path: str) -> list[str]:
    """List the real path and the other names of the same file.

    In a linked git worktree, the path in the main worktree comes first.
    """
    from corral.adapters.git.git import path_in_main_worktree

    real = os.path.realpath(path)
    links = [real, *_find_hard_links(real)]
    return list(
        dict.fromkeys(name for link in links for name in (path_in_main_worktree(link), link))
    )


def _find_hard_links(path: str) -> list[str]:
    """List the hard links of a file in its worktree, or in its folder outside git.

    Few files have any, so the search is rare; it stops after MAX_SCANNED entries.
    """
    from corral.adapters.git.git import find_worktree_root

    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return []
    if status.st_nlink < 2 or not stat.S_ISREG(status.st_mode):
        return []
    links: list[str] = []
    folders, scanned = [find_worktree_root(path) or os.path.dirname(path)], 0
    while folders and scanned < MAX_SCANNED and len(links) < status.st_nlink - 1:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                scanned += 1
                if entry.is_dir(follow_symlinks=False):
                    folders += [entry.path] if entry.name != ".git" else []
                elif (
                    entry.inode() == status.st_ino
                    and entry.path != path
                    and os.path.samestat(entry.stat(follow_symlinks=False), status)
                ):
                    links.append(entry.path)
    return links
