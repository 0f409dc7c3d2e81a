"""Files attached to imported messages, copied into a private folder of their session.

They are deleted with their session. The age limit for files of messages does not apply to them.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from corral import config
from corral.adapters import attachments
from corral.db.database import Database
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import CorralError, NotFound
from corral.services.chat.session_folder import compute_store_mark


class FileCopier:
    """Copies the files of one source."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def copy(self, source: str, path: str, session_id: str) -> dict[str, Any]:
        """Copy a file below the folder `source`; returns a description of the copy.

        The description has a reason instead of a path when the file is missing, too large, outside
        `source` or behind a symlink.
        """
        try:
            data = attachments.read_attachment(
                path, [source], max_bytes=self._max_bytes, forbidden_folder=config.home()
            )
            stored = attachments.store_sent(self._folder / session_id, path, data)
        except CorralError as error:
            return {"name": Path(path).name, "path": None, "reason": error.message}
        description: dict[str, Any] = msgspec.to_builtins(stored)
        return description


def get_copies_folder(database: Database) -> Path:
    """Return the folder with the copies of this store; several stores may share a home."""
    return config.home() / "imports" / compute_store_mark(database)


def remove_orphaned_copies(database: Database) -> int:
    """Delete the copies of sessions that the store has deleted; returns the number of folders."""
    folders = [*_find_orphaned(database)]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return len(folders)


def _find_orphaned(database: Database) -> Iterator[Path]:
    with suppress(OSError):
        for path in sorted(get_copies_folder(database).glob("ses_*")):
            try:
                database.read(partial(sessions.get, session=path.name))
            except NotFound:
                yield path
