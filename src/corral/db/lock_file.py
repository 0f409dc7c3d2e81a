"""Private files that exist only to be locked."""

import os
import weakref
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path

TRY_LOCK = LOCK_EX | LOCK_NB
UNLOCK = LOCK_UN
# O_NOFOLLOW: never open a symlink that an attacker planted, and write into its target.
OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC

# Lock files beside a SQLite store are named by appending a suffix to its path: two for writers (see
# `db/write_lock.py`), one for network file systems (see `db/filesystem.py`) and one for moves.
TURN_LOCK_SUFFIX = "-writers"
QUEUE_LOCK_SUFFIX = "-writers-queue"
EXCLUSIVE_LOCK_SUFFIX = "-exclusive"
MOVE_LOCK_SUFFIX = "-move"


class LockFile:
    """An open lock file.

    flock() belongs to the open file, which a forked child shares. The child closes its copy at
    once, so that it does not keep a lock that its dead parent held.
    """

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, OPEN_FLAGS | os.O_CREAT, 0o600)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        _open_files.add(self)

    def lock(self) -> None:
        """Wait for the lock without a timeout; the kernel serves waiters in order of arrival."""
        flock(self.descriptor, LOCK_EX)

    def try_lock(self) -> bool:
        """Take the lock if it is free, and return whether it was."""
        try:
            flock(self.descriptor, TRY_LOCK)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        flock(self.descriptor, UNLOCK)

    def holder(self) -> int | None:
        """Return the process that holds the lock, where the system reports it (Linux)."""
        status = os.fstat(self.descriptor)
        file_id = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        try:
            locks = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return None
        for fields in map(str.split, locks):
            # The lines of waiting processes have "->" before FLOCK, so they do not match.
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == file_id:
                return int(fields[4]) if fields[4].isdigit() and fields[4] != "0" else None
        return None

    def close(self) -> None:
        """Close the file. Idempotent; a lock file that is garbage collected is closed too."""
        self.descriptor = -1
        self._close()


_open_files: "weakref.WeakSet[LockFile]" = weakref.WeakSet()


def _close_in_child() -> None:
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
