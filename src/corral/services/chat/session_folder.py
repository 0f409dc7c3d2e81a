"""The folder of a sandboxed session: its location, its attachments, and its removal."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from corral import config
from corral.adapters.sandbox_bridge.schema import SessionFolder
from corral.domain.chat.payloads import parse_chat
from corral.domain.sandbox_bridge import letters
from corral.domain.sandbox_bridge import ops as sandbox_bridge
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.open_files import require_unused

if TYPE_CHECKING:
    from corral.db.database import Database


def get_session_folder(session: str) -> SessionFolder:
    """Return the folder of a session's files, on the machine that runs it."""
    return SessionFolder(str(config.sandbox_folder(session)))


def copy_attachments(database: "Database", session: str, folder: SessionFolder) -> None:
    """Copy the attachments of the letters into the folder that the agent can read."""
    inbox = os.path.join(folder.inside, "inbox")
    shutil.rmtree(inbox, ignore_errors=True)
    for letter in database.read(lambda tx: sandbox_bridge.list_letters(tx, session)):
        chat = parse_chat(letter)
        for number, file in enumerate(chat.files if chat is not None else [], 1):
            if file.get("path") is not None:
                target = Path(letters.build_sandbox_path(folder, letter, number, file))
                config.make_private_folder(target.parent)
                try:
                    require_unused(str(file["path"]), follow=False)
                    shutil.copyfile(str(file["path"]), target, follow_symlinks=False)
                except OSError:
                    continue  # deleted by retention; the letter still mentions it


def compute_store_mark(database: "Database") -> str:
    """Return the mark of the folders of this store; several stores may share a home."""
    return sha256(database.address.encode()).hexdigest()


def find_orphaned_folders(database: "Database") -> Iterator[Path]:
    """Yield the folders of sessions that this store has deleted."""
    mark = compute_store_mark(database)
    for path in sorted((config.home() / "sandboxes").glob("ses_*")):
        try:
            is_own = Path(SessionFolder(str(path)).mark).read_text(encoding="utf-8") == mark
            database.read(partial(sessions.get, session=path.name))
        except (OSError, Invalid):
            continue  # not known to be a folder of this store
        except NotFound:
            if is_own:
                yield path


def remove_orphaned_folders(database: "Database") -> int:
    """Remove the folders of deleted sessions; returns their number."""
    removed = 0
    for path in find_orphaned_folders(database):
        _make_accessible(path)
        shutil.rmtree(path, ignore_errors=True)
        removed += not path.exists()
    return removed


def _make_accessible(path: Path) -> None:
    """Restore the permissions of folders, which the agent may have removed."""
    for top, folders, _ in os.walk(path):
        for name in folders:
            with suppress(OSError):
                inner = os.path.join(top, name)
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700, follow_symlinks=False)
