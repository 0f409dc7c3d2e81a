"""Databases of sandboxed CLIs that store all sessions in one database, such as opencode.

The user's own database is neither copied into a sandbox, which would expose all sessions, nor
changed afterwards, because rows and triggers of a hostile program would come with it. The
database of a sandboxed run is saved as a separate file under the session id. Only another
sandboxed run of the same session gets it again.
"""

import os
from contextlib import suppress

from corral.adapters.sandbox.untrusted_files import find_files, parent_folder

COPIES_FOLDER = "corral"
MAX_BYTES = 256 << 20
_PARTS = ("-wal", "")  # the database last: a log without it is not used


def save_database(home: str, path: str, session: str, folder: str) -> list[str]:
    """Save the database at `path` below a private home in the user's `folder` of the CLI.

    Returns the paths there. A previous copy is replaced. Raises OSError when it cannot be
    written.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return [
        os.path.join(folder, kept)
        for part in _PARTS
        if _copy(home, path + part, folder, kept := f"{COPIES_FOLDER}/{session}.db{part}")
    ]


def restore_database(folder: str, session: str, home: str, path: str) -> None:
    """Copy the saved database of a session into a private home, unless it has one."""
    if os.path.lexists(os.path.join(home, path)) or not os.path.isdir(folder):
        return
    for part in _PARTS:
        _copy(folder, f"{COPIES_FOLDER}/{session}.db{part}", home, path + part)


def _copy(source: str, name: str, target: str, copy: str) -> bool:
    """Copy one file between two folders, either of which may contain planted symlinks."""
    files = find_files(source, [name], max_entries=0)
    with parent_folder(target, copy) as (parent, last):
        for _, descriptor, status in files:
            if status.st_size > MAX_BYTES:
                break
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            temporary = f"{last}.{os.getpid()}"
            with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=parent), "wb") as file:
                left = status.st_size
                while left and (data := os.read(descriptor, min(left, 1 << 20))):
                    file.write(data)
                    left -= len(data)
            os.replace(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)
            return True
        with suppress(FileNotFoundError):  # an old log does not belong to a newer database
            os.unlink(last, dir_fd=parent)
    return False
