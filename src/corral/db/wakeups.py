"""Wake-ups on SQLite: learn of the commits of other processes.

A commit appends to the write-ahead log. On Linux a waiting process sleeps until inotify reports a
change of the log. Elsewhere it polls `PRAGMA data_version`, which costs microseconds, every few
milliseconds.
"""

import math
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

POLL_INTERVAL = 0.004  # without inotify
POLL_RESOLUTION = 0.001  # of poll()
SAFETY_POLL = 1.0  # in case inotify misses a change
CHECK_DELAYS = (
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.004,
    0.008,
    0.016,
    0.032,
)  # after the log was written

_IN_MODIFY = 0x2


class _WalWatch:
    """An inotify watch on the log of the store.

    No process deletes the log while the listener's connection is open. The directory is not
    watched, because its other files change at every write.
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
        # Not select(), which rejects descriptors from 1024 on.
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        if timeout < POLL_RESOLUTION:
            time.sleep(timeout)  # poll() would wait a whole millisecond
            timeout = 0
        if not self._poll.poll(math.ceil(timeout * 1_000)):
            return False
        os.read(self.fd, 65536)
        return True

    def close(self) -> None:
        os.close(self.fd)


class WalListener:
    """A listener that decides by `data_version`; inotify only says when to check it."""

    def __init__(self, watch: _WalWatch | None, connection: apsw.Connection) -> None:
        self._watch = watch
        self._connection = connection
        self._seen = self._read_version()

    def resume(self) -> None:
        # Pending inotify events are not discarded: one may belong to a commit that becomes visible
        # only now.
        self._seen = self._read_version()

    def pause(self) -> None:
        pass

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        delays: Iterator[float] = iter(())
        while not self._has_changed():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._watch is None:
                time.sleep(min(POLL_INTERVAL, left))
            elif self._watch.wait(min(left, next(delays, SAFETY_POLL))):
                # inotify reports the written bytes; SQLite shows the commit a moment later.
                delays = iter(CHECK_DELAYS)
        return True

    def _has_changed(self) -> bool:
        version = self._read_version()
        has_changed = version != self._seen
        self._seen = version
        return has_changed

    def _read_version(self) -> int:
        return int(self._connection.pragma("data_version"))

    def close(self) -> None:
        self._connection.close()
        if self._watch is not None:
            self._watch.close()


def listen_to_wal(path: Path, connection: apsw.Connection) -> WalListener:
    """Listen for commits of all processes that write to the store at `path`."""
    watch = None
    connection.pragma("data_version")  # opens the log, so that no process deletes it
    if sys.platform == "linux":
        try:
            watch = _WalWatch(path)
        except OSError:
            watch = None  # the limit of inotify watches is reached: poll instead
    return WalListener(watch, connection)
