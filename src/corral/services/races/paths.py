"""Folders of races on this machine, and the marker file that names the store of a folder."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from corral import config
from corral.adapters.git import git_history
from corral.adapters.worktrees import worktree_pool
from corral.adapters.worktrees.worktree_pool import WorktreePool
from corral.db.database import Database
from corral.domain.races.model import Race
from corral.domain.settings import ops as settings

MARKER_FILE = ".race.json"


def ports_folder() -> Path:
    """Return the folder that records the reserved ports of attempts."""
    return config.home() / "ports"


def pool_folder() -> Path:
    """Return the folder of files from removed worktrees, which new worktrees reuse."""
    return config.home() / "pool"


def judging_folder() -> Path:
    """Return the folder of the diffs that judges read: one folder for each race."""
    return config.home() / "judging"


def sample_folder(race_id: str, round_number: int, number: int) -> Path:
    """Return the working directory of a judge: that of the nth sample of a round."""
    return judging_folder() / race_id / f"{round_number}-{number}"


def get_pool(database: Database, race: Race) -> WorktreePool | None:
    """Return the pool of a race's repository; None when `races.worktree_pool_size` is 0."""
    size = database.read(
        lambda tx: int(settings.get_value(tx, "races.worktree_pool_size", project=race.project_id))
    )
    return worktree_pool.find_pool(str(pool_folder()), race.repository, size) if size else None


class RaceMarker(msgspec.Struct, frozen=True):
    """The owner of a race's folder, stored in the folder itself.

    It is needed when the store no longer has the race, and because several stores can share one
    home folder.
    """

    store: str
    repository: str


def create_race_folder(database: Database, race: Race) -> None:
    """Create the folder of a race's worktrees with its marker. Idempotent."""
    folder = config.races_folder() / race.id
    config.make_private_folder(folder)
    marker = RaceMarker(database.url, race.repository)
    if read_marker(str(folder)) != marker:
        config.write_private_file(folder / MARKER_FILE, msgspec.json.encode(marker).decode())


def read_marker(folder: str) -> RaceMarker | None:
    """Return the marker of a race's folder; None when it is missing or unreadable."""
    try:
        with open(os.path.join(folder, MARKER_FILE), "rb") as file:
            return msgspec.json.decode(file.read(65_536), type=RaceMarker)
    except (OSError, msgspec.MsgspecError):
        return None


def pin_commit(database: Database, race: Race, name: str, commit: str) -> None:
    """Keep a commit of a race reachable in the repository, whatever happens to its branch.

    Also creates the race's folder: its marker is how clean-up finds the pinned commits after the
    race was deleted.
    """
    create_race_folder(database, race)
    git_history.keep_commit(race.repository, f"{race.id}/{name}", commit)


def remove_race_folder(folder: str) -> None:
    """Remove a race's folder unless it has worktrees or the repository has pinned commits of it.

    A later round creates the folder again.
    """
    with suppress(OSError):
        if os.listdir(folder) == [MARKER_FILE]:
            marker = read_marker(folder)
            if marker is not None and git_history.list_kept(
                marker.repository, os.path.basename(folder)
            ):
                return
            os.unlink(os.path.join(folder, MARKER_FILE))
        os.rmdir(folder)
