"""The store files that SQLite has open in this process; other code must not open them.

POSIX drops all locks of a process on a file when the process closes any descriptor of it. Code that
opens an external path (an attachment, a file of a worktree, a database to import) calls
`require_unused` first, because the path may lead to the store.
"""

import errno
import os

FileIdentity = tuple[int, int]
"""Device and inode."""

IN_USE: set[FileIdentity] = set()
"""The files of all open stores; maintained by `db/sqlite_connection_set.py`."""


def require_unused(
    path: str | bytes | os.PathLike[str], *, dir_fd: int | None = None, follow: bool = True
) -> None:
    """Raise OSError (EBUSY) if the path leads to a file of a store that is open in this process.

    A missing file passes: opening it fails anyway.
    """
    if not IN_USE:
        return
    try:
        file = os.stat(path, dir_fd=dir_fd, follow_symlinks=follow)
    except OSError:
        return
    if (file.st_dev, file.st_ino) in IN_USE:
        raise OSError(errno.EBUSY, "it is a Corral store that this process has open", str(path))
