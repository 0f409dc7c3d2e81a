"""Files that agents send: taken from the folders that they work in, and kept until they arrive."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral import config
from corral.adapters import attachments
from corral.adapters.channels.contract import File
from corral.db import store_move_record
from corral.domain.chat.model import Message, files_of
from corral.domain.chat.outbound import attachments as outbound_attachments
from corral.domain.insights import integrity
from corral.domain.settings import ops as settings
from corral.kernel.errors import Invalid, NotFound

if TYPE_CHECKING:
    from corral.db.database import Database


def sent_folder() -> Path:
    """Where what agents sent is kept."""
    return config.home() / "channels" / "sent"


def own_folders(database: "Database") -> list[Path]:
    """The folders with files of this store's channels and agents; several stores may share a home,
    and a part of another one has none."""
    if (found := store_move_record.find(database)) is not None and found.phase == "part":
        return []
    root = config.home() / "channels"
    there = [each for top in (root, root / "sent") if top.is_dir() for each in top.iterdir()]
    names = [each.name for each in there]
    known = database.read(lambda tx: integrity.known_folders(tx, names)) if names else set()
    return sorted(each for each in there if each.name in known and not each.is_symlink())


def read(message: Message, number: int) -> tuple[File, bytes]:
    """A file of a message, counted from 1, with its bytes; only what Corral keeps is read."""
    found = files_of(message)
    if not 1 <= number <= len(found):
        raise NotFound(f"{message.id} has no file {number}; it has {len(found)}.", id=message.id)
    file = msgspec.convert(found[number - 1], File)
    if file.path is None:
        raise NotFound(
            f"{file.name!r} was not taken: {file.reason}.", id=message.id, reason="not_stored"
        )
    try:
        return file, attachments.read_kept(file, config.home() / "channels")
    except OSError:
        raise NotFound(
            f"{file.name!r} is not on this machine any more, or never was; it was at {file.path}.",
            id=message.id,
            reason="file_missing",
        ) from None


def take(
    database: "Database", files: list[str], *, agent: str, session: str | None, run: str | None
) -> list[File]:
    """Read files of an agent and keep private copies. All of them, or none: what is refused is
    refused before anything is queued."""
    if not 1 <= len(files) <= outbound_attachments.MOST_FILES:
        raise Invalid(f"Send between 1 and {outbound_attachments.MOST_FILES} files at once.")
    id, folders = database.read(lambda tx: outbound_attachments.folders(tx, agent, session, run))
    own = config.home() / "workspaces" / id
    return keep(database, files, [*folders, str(own)], id)


def keep(database: "Database", files: list[str], folders: list[str], agent_id: str) -> list[File]:
    """Private copies of an agent's files, which must lie in one of these folders."""
    most = int(database.read(lambda tx: settings.value(tx, "gateway.max_file_bytes")))
    read = [
        (file, attachments.take(file, folders, most=most, never=config.home())) for file in files
    ]
    return [attachments.keep_sent(sent_folder() / agent_id, file, data) for file, data in read]
