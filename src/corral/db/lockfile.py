"""A private file that is there only to be locked."""

import os
import weakref
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path

TRY = LOCK_EX | LOCK_NB
FREE = LOCK_UN
OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class LockFile:
    """An open lock file. A kernel lock on it belongs to whoever has the file open, and a fork opens
    it for the child too; so that a child does not keep what its dead parent held, it closes its
    copy at once."""

    def __init__(self, path: str) -> None:
        # Not what a link leads to: whoever put it there would have us write into another file.
        self.descriptor = os.open(path, OPEN | os.O_CREAT, 0o600)
        self._let_go = weakref.finalize(self, os.close, self.descriptor)
        _open.add(self)

    def lock(self) -> None:
        """Wait for the lock, for as long as it takes, behind those who came before."""
        flock(self.descriptor, LOCK_EX)

    def try_lock(self) -> bool:
        try:
            flock(self.descriptor, TRY)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        flock(self.descriptor, FREE)

    def holder(self) -> int | None:
        """The process that has the lock, where the system tells (Linux)."""
        about = os.fstat(self.descriptor)
        place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
        try:
            locks = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return None
        for words in map(str.split, locks):
            # Those who only wait for a lock have an arrow before the word FLOCK.
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == place:
                return int(words[4]) if words[4].isdigit() and words[4] != "0" else None
        return None

    def close(self) -> None:
        """Close the file. Idempotent; a lock file that is garbage collected is closed too."""
        self.descriptor = -1
        self._let_go()


_open: "weakref.WeakSet[LockFile]" = weakref.WeakSet()


def _close_in_child() -> None:
    for file in list(_open):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
