import os
from collections.abc import Sequence

import msgspec

from corral.kernel.errors import NotFound
from corral.library.operation import Room, read
from corral.rooms.locks import looking
from corral.rooms.locks.model import InTheWay, Lock
from corral.rooms.projects import ops as projects
from corral.rooms.projects.model import Project


class InProject(msgspec.Struct, frozen=True):
    """A path, and the project that it is in."""

    project: Project
    path: str


def _spellings(path: str) -> list[str]:
    """The real path: in a linked git worktree the one in the repository's main one first."""
    from corral.adapters.git import main_path

    real = os.path.realpath(path)
    return list(dict.fromkeys((main_path(real), real)))


class Guard(Room):
    """What hooks ask before a file is changed. It is apart from the locks themselves because it is
    asked at every use of a tool, and loads no more than the answer needs."""

    noun = "lock"

    in_the_way = read(looking.in_the_way)
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
            for at in range(0, len(paths), looking.MAX_PATHS):
                found += self.in_the_way(
                    place.project.id,
                    paths[at : at + looking.MAX_PATHS],
                    agent,
                    run=run,
                    as_spelled=True,
                )
        return found

    def take_for_edit(
        self, project: str, path: str, agent: str, *, run: str | None = None
    ) -> Lock | None:
        """Lock a file that is about to be edited, where the setting `locks.edit_ms` asks for it."""
        term = self._database.read(lambda tx: looking.edit_term(tx, project, agent), mode="one")
        if not term:
            return None
        from corral.library.locks import Locks

        locks = Locks(self._database)
        return locks.acquire(project, path, agent, ttl_ms=term, run=run, reason="an edit")
