import os

import msgspec

from corral.kernel.errors import NotFound
from corral.library.operation import Room, read
from corral.rooms.locks import looking
from corral.rooms.locks.model import Lock
from corral.rooms.projects import ops as projects
from corral.rooms.projects.model import Project


class Place(msgspec.Struct, frozen=True):
    """A path, and the project that it is in."""

    project: Project
    path: str


class Guard(Room):
    """What hooks ask before a file is changed. It is apart from the locks themselves because it is
    asked at every use of a tool, and loads no more than the answer needs."""

    noun = "lock"

    in_the_way = read(looking.in_the_way)
    _around = read(projects.around, mode="one")

    def place_of(self, path: str) -> Place:
        """The project that a file is in, and its path there: in a linked git worktree, those of the
        repository's main one, so that locks bind in all of them."""
        from corral.adapters.git import main_path

        real = os.path.realpath(path)
        for candidate in dict.fromkeys((main_path(real), real)):
            if (project := self._around(candidate)) is not None:
                return Place(project, candidate)
        raise NotFound(
            f"{real} is in no project; `corral project register DIR` makes its directory one.",
            path=real,
        )

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
