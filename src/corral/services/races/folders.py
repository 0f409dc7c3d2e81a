"""Where the worktrees of races are on this machine, and whose they are."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from corral import config
from corral.adapters import history, pool
from corral.adapters.pool import Pool
from corral.db.database import Database
from corral.domain.races.model import Race
from corral.domain.settings import ops as settings

MARK = ".race.json"


def races_folder() -> Path:
    """Where worktrees of races are."""
    return config.home() / "races"


def repository_folder(project_id: str) -> Path:
    """Where the private repository is of a project whose directory is in none."""
    return config.home() / "repositories" / project_id


def ports_folder() -> Path:
    """Where it is written down which attempt has which port."""
    return config.home() / "ports"


def pool_folder() -> Path:
    """Where the files of worktrees that are done with are, for the next ones."""
    return config.home() / "pool"


def pool_of(database: Database, race: Race) -> Pool | None:
    """The pool of a race's repository; None when there is to be none."""
    most = database.read(lambda tx: int(settings.value(tx, "races.pool", project=race.project_id)))
    return pool.pool_of(str(pool_folder()), race.repository, most) if most else None


class Mark(msgspec.Struct, frozen=True):
    """Whose the worktrees in a race's folder are; beside them, for when the race is forgotten."""

    store: str
    repository: str


def make_folder(database: Database, race: Race) -> None:
    """The folder of a race's worktrees, marked as this store's."""
    folder = races_folder() / race.id
    config.make_private_folder(folder)
    mark = Mark(database.url, race.repository)
    if mark_of(str(folder)) != mark:
        config.write_private_file(folder / MARK, msgspec.json.encode(mark).decode())


def mark_of(folder: str) -> Mark | None:
    """What is written down of a race's folder; None: nothing that can be read."""
    try:
        with open(os.path.join(folder, MARK), "rb") as file:
            return msgspec.json.decode(file.read(65_536), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return None


def keep_commit(database: Database, race: Race, name: str, commit: str) -> None:
    """Let the repository keep a commit of a race, whatever becomes of its branch. The race's folder
    says so: what is kept outlives the race, and somebody has to find it then."""
    make_folder(database, race)
    history.keep(race.repository, f"{race.id}/{name}", commit)


def drop_folder(folder: str) -> None:
    """Take a race's folder away when no worktree is left in it and its repository keeps nothing for
    it; a later round makes it anew."""
    with suppress(OSError):
        if os.listdir(folder) == [MARK]:
            mark = mark_of(folder)
            if mark is not None and history.kept(mark.repository, os.path.basename(folder)):
                return
            os.unlink(os.path.join(folder, MARK))
        os.rmdir(folder)
