import os
import stat
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from corral.api.operation import Room, read
from corral.domain.locks import queries
from corral.domain.locks.model import InTheWay, Lock
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.kernel.errors import NotFound

MAX_SEARCHED = 200_000


class InProject(msgspec.Struct, frozen=True):
    """A path, and the project that it is in."""

    project: Project
    path: str


def _spellings(path: str) -> list[str]:
    """List the real path and the other names of the same file. In a linked git worktree, the path
    in the main worktree comes first."""
    from corral.adapters.git import main_path

    real = os.path.realpath(path)
    names = [real, *_hard_links(real)]
    return list(dict.fromkeys(name for each in names for name in (main_path(each), each)))


def _hard_links(path: str) -> list[str]:
    """List the hard links of a file in its worktree, or in its folder outside git. Few files have
    any, so a search is rare; it stops after MAX_SEARCHED entries."""
    from corral.adapters.git import worktree_of

    try:
        known = os.stat(path, follow_symlinks=False)
    except OSError:
        return []
    if known.st_nlink < 2 or not stat.S_ISREG(known.st_mode):
        return []
    found: list[str] = []
    waiting, seen = [worktree_of(path) or os.path.dirname(path)], 0
    while waiting and seen < MAX_SEARCHED and len(found) < known.st_nlink - 1:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                seen += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting += [entry.path] if entry.name != ".git" else []
                elif (
                    entry.inode() == known.st_ino
                    and entry.path != path
                    and os.path.samestat(entry.stat(follow_symlinks=False), known)
                ):
                    found.append(entry.path)
    return found


class Guard(Room):
    """What hooks ask before a file is changed. It is apart from the locks themselves because it is
    asked at every use of a tool, and loads no more than the answer needs."""

    noun = "lock"

    in_the_way = read(queries.in_the_way)
    _around = read(projects.around, mode="one")
    _near = read(projects.near, mode="one")

    def place_of(self, path: str) -> InProject:
        """The project that a file is in, and its path there: in a linked git worktree, those of the
        repository's main one, so that locks bind in all of them."""
        for candidate in _spellings(path):
            if (project := self._around(candidate)) is not None:
                return InProject(project, candidate)
        raise NotFound(
            f"{candidate} is in no project; `corral project register DIR` makes its directory one.",
            path=candidate,
        )

    def places_of(self, path: str) -> list[InProject]:
        """Every project in which a path could be locked, nearest first: one may lie in another,
        and a linked git worktree may be one besides its repository. For a folder also those that
        lie in it."""

        def distance(place: InProject) -> tuple[bool, int]:
            return len(place.project.dir) > len(place.path), -len(place.project.dir)

        return [
            place
            for candidate in _spellings(path)
            for place in sorted(
                (InProject(p, candidate) for p in self._near(candidate)), key=distance
            )
        ]

    def commit_in_the_way(
        self, top: str, names: Sequence[str], agent: str, *, run: str | None = None
    ) -> list[InTheWay]:
        """Those of the files of a commit, as git names them from its worktree's top, that others
        hold in any project there."""
        found: list[InTheWay] = []
        for place in self.places_of(top):
            paths = [os.path.join(place.path, name) for name in names]
            for at in range(0, len(paths), queries.MAX_PATHS):
                found += self.in_the_way(
                    place.project.id,
                    paths[at : at + queries.MAX_PATHS],
                    agent,
                    run=run,
                    as_spelled=True,
                )
        return found

    def take_for_edit(
        self, project: str, path: str, agent: str, *, run: str | None = None
    ) -> Lock | None:
        """Lock a file that is about to be edited, where the setting `locks.edit_ms` asks for it."""
        term = self._database.read(lambda tx: queries.edit_term(tx, project, agent), mode="one")
        if not term:
            return None
        from corral.api.locks import Locks

        locks = Locks(self._database)
        return locks.acquire(project, path, agent, ttl_ms=term, run=run, reason="an edit")
