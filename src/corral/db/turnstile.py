"""A fair line of processes that want to write one SQLite file.

SQLite's own busy wait sleeps and tries again, and who sleeps longest is served last: under load
some writers wait for many seconds. So writers queue on a kernel lock beside the file first. The
kernel serves those who wait in the order in which they came, and frees the lock of a process that
dies.

One lock alone lets a process that just left come in again before the one it woke is running. Two
fix that: whoever waits for its turn holds the door, so one who comes back finds the door closed and
stands at the end of the line.
"""

import fcntl

from corral.db.lockfile import LockFile
from corral.kernel.errors import StoreUnavailable


class Turnstile:
    """`path` and `path` + "-door" are made, private, when somebody first enters."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: tuple[LockFile, LockFile] | None = None

    def enter(self) -> None:
        door, turn = self._files or self._open()
        fcntl.flock(door.descriptor, fcntl.LOCK_EX)
        try:
            fcntl.flock(turn.descriptor, fcntl.LOCK_EX)
        finally:
            fcntl.flock(door.descriptor, fcntl.LOCK_UN)

    def leave(self) -> None:
        if self._files is not None:
            fcntl.flock(self._files[1].descriptor, fcntl.LOCK_UN)

    def _open(self) -> tuple[LockFile, LockFile]:
        try:
            self._files = LockFile(self._path + "-door"), LockFile(self._path)
        except OSError as error:
            raise StoreUnavailable(
                f"Corral cannot make its lock {self._path} beside the store ({error.strerror}); "
                "mend the folder's permissions or give another path with --store.",
                reason="unwritable",
                path=self._path,
            ) from None
        return self._files

    def close(self) -> None:
        for file in self._files or ():
            file.close()
        self._files = None
