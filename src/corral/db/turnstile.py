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
import os


class Turnstile:
    def __init__(self, path: str) -> None:
        """`path` and `path` + "-door" are made, private, when they are missing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._turn = os.open(path, flags, 0o600)
        try:
            self._door = os.open(path + "-door", flags, 0o600)
        except OSError:
            os.close(self._turn)
            raise

    def enter(self) -> None:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)

    def leave(self) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._door)
