"""Attachments: private copies of the files that agents send and receive."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral import config
from corral.adapters import attachments
from corral.adapters.channels.contract import StoredFile
from corral.db import store_move_record
from corral.domain.chat.model import Message, list_files
from corral.domain.chat.outbound import attachments as outbound_attachments
from corral.domain.insights import integrity
from corral.domain.settings import ops as settings
from corral.kernel.errors import Invalid, NotFound

if TYPE_CHECKING:
    from corral.db.database import Database


def get_sent_folder() -> Path:
    """Return the folder with the copies of sent files."""
    return config.home() / "channels" / "sent"


def list_own_folders(database: "Database") -> list[Path]:
    """List the folders with files of this store's channels and agents.

    Several stores may share a home. An export of another store has no folders of its own.
    """
    if store_move_record.read_export_origin(database) is not None:
        return []
    root = config.home() / "channels"
    folders = [folder for top in (root, root / "sent") if top.is_dir() for folder in top.iterdir()]
    names = [folder.name for folder in folders]
    owned = database.read(lambda tx: integrity.find_known_folders(tx, names)) if names else set()
    return sorted(folder for folder in folders if folder.name in owned and not folder.is_symlink())


def read_attachment(message: Message, number: int) -> tuple[StoredFile, bytes]:
    """Return a file of a message with its content; raises NotFound. Files count from 1.

    Reads only Corral's private copies.
    """
    files = list_files(message)
    if not 1 <= number <= len(files):
        raise NotFound(
            f"{message.id} has no file {number}; it has {len(files)} files.", id=message.id
        )
    file = msgspec.convert(files[number - 1], StoredFile)
    if file.path is None:
        raise NotFound(
            f"{file.name!r} was not stored: {file.reason}.", id=message.id, reason="not_stored"
        )
    try:
        return file, attachments.read_stored(file, config.home() / "channels")
    except OSError:
        raise NotFound(
            f"{file.name!r} is not on this machine. Its path was {file.path}.",
            id=message.id,
            reason="file_missing",
        ) from None


def copy_agent_files(
    database: "Database", files: Sequence[str], *, agent: str, session: str | None, run: str | None
) -> list[StoredFile]:
    """Copy files of an agent into private files; copies all of them, or none.

    The files must be in folders that the agent works in.
    """
    if not 1 <= len(files) <= outbound_attachments.MAX_FILES:
        raise Invalid(f"Send between 1 and {outbound_attachments.MAX_FILES} files at once.")
    id, folders = database.read(
        lambda tx: outbound_attachments.list_folders(tx, agent, session, run)
    )
    workspace = config.home() / "workspaces" / id
    return copy_files(database, [*files], [*folders, str(workspace)], id)


def copy_files(
    database: "Database", files: list[str], folders: list[str], agent_id: str
) -> list[StoredFile]:
    """Copy an agent's files, which must be in one of `folders`, into private files."""
    max_bytes = int(database.read(lambda tx: settings.get_value(tx, "chat.max_file_bytes")))
    contents = [
        (
            file,
            attachments.read_attachment(
                file, folders, max_bytes=max_bytes, forbidden_folder=config.home()
            ),
        )
        for file in files
    ]
    return [
        attachments.store_sent(get_sent_folder() / agent_id, file, data) for file, data in contents
    ]
