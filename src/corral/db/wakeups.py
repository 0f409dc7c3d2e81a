"""Wake-ups on SQLite: learn of another process's commit without asking again and again.

A commit appends to the write-ahead log beside the store. Where the kernel tells of that (inotify),
a waiting process sleeps until it does; elsewhere it looks at `PRAGMA data_version`, which costs
microseconds, every few milliseconds.
"""

import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

POLL = 0.004  # without inotify
SAFETY_POLL = 1.0  # behind inotify, should it ever miss one
LOOKS = (0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)  # after the log was written

_IN_MODIFY = 0x2


class _FileWatch:
    """inotify on the log of the store.

    No process deletes the log while the listener's connection is open. The folder is not watched,
    because its other files change at every write.
    """

    def __init__(self, path: Path) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        log = os.fsencode(path) + b"-wal"
        if self.fd < 0 or libc.inotify_add_watch(self.fd, log, _IN_MODIFY) < 0:
            number = ctypes.get_errno()
            if self.fd >= 0:
                os.close(self.fd)
            raise OSError(number, os.strerror(number))

    def wait(self, timeout: float) -> bool:
        if not select.select([self.fd], [], [], timeout)[0]:
            return False
        os.read(self.fd, 65536)
        return True

    def close(self) -> None:
        os.close(self.fd)


class FileListener:
    """A listener that trusts only `data_version`, and sleeps until looking at it is worthwhile."""

    def __init__(self, watch: _FileWatch | None, connection: apsw.Connection) -> None:
        self._watch = watch
        self._connection = connection
        self._seen = self._version()

    def resume(self) -> None:
        # What the kernel has told meanwhile stays to be read: some of it may be about a commit
        # that shows only now.
        self._seen = self._version()

    def rest(self) -> None:
        pass

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        looks: Iterator[float] = iter(())
        while not self._changed():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._watch is None:
                time.sleep(min(POLL, left))  # the fallback named in this module's first lines
            elif self._watch.wait(min(left, next(looks, SAFETY_POLL))):
                # The kernel tells of the bytes; SQLite shows the commit a moment later.
                looks = iter(LOOKS)
        return True

    def _changed(self) -> bool:
        version = self._version()
        changed = version != self._seen
        self._seen = version
        return changed

    def _version(self) -> int:
        return int(self._connection.pragma("data_version"))

    def close(self) -> None:
        self._connection.close()
        if self._watch is not None:
            self._watch.close()


def watch_file(path: Path, connection: apsw.Connection) -> FileListener:
    """Listen to the commits of every process that writes the store at `path`."""
    watch = None
    connection.pragma("data_version")  # opens the log, so that it is not deleted from now on
    if sys.platform == "linux":
        try:
            watch = _FileWatch(path)
        except OSError:
            watch = None  # out of watches: polling serves as well, at some cost
    return FileListener(watch, connection)
