"""A small file beside a SQLite store, shared by all its processes.

The file is read and written with `pread` and `pwrite`. A memory map would save a microsecond per
write, but if another program truncates a mapped file, SIGBUS kills every process that maps it.
"""

import os
import weakref

# Not `struct`: every command loads this module, and the wrapper adds nothing that is used here.
from _struct import Struct
from contextlib import suppress
from typing import NamedTuple

from corral.db.lock_file import OPEN_FLAGS

_QUEUE_FLAG = Struct("<q")
_LAST_WRITE = Struct("<qqqq")


class LastWrite(NamedTuple):
    """The store's time at the last write."""

    time: int
    """Milliseconds since 1970; 0: no write yet."""
    steady: int
    """The machine's monotonic clock at the same moment."""
    boot: int
    """The boot of the machine that the monotonic clock counts from."""
    doubted_at: int
    """Since when no writer's clock agreed with the store's time, by the monotonic clock.

    0: the last writer's clock agreed.
    """


class SharedState:
    """The content of the file.

    All of it is a hint. Without it, writers are served less fairly, and a change of the system's
    clock takes effect at once.
    """

    def __init__(self, path: str) -> None:
        """Open the file; raises OSError if it does not exist or is not a regular file."""
        self._descriptor = os.open(path, OPEN_FLAGS)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        """Close the file. Idempotent."""
        self._cached = b"", LastWrite(0, 0, 0, 0)
        try:
            os.pread(self._descriptor, 1, 0)  # ESPIPE: the path is a pipe
        except BaseException:
            self.close()
            raise

    def is_queue_locked(self) -> bool:
        """Whether a process holds the queue lock of `db/write_lock.py`."""
        return os.pread(self._descriptor, 1, 0) == b"\1"

    def set_queue_locked(self, locked: bool) -> None:
        self._write(_QUEUE_FLAG.pack(locked), 0)

    def read_last_write(self) -> LastWrite:
        data = os.pread(self._descriptor, _LAST_WRITE.size, _QUEUE_FLAG.size)
        cached_data, last_write = self._cached  # one read: other threads replace the attribute
        if data == cached_data:  # the usual case, and decoding costs more than reading
            return last_write
        padded = data.ljust(_LAST_WRITE.size, b"\0")  # new, or another program truncated it
        last_write = LastWrite._make(_LAST_WRITE.unpack(padded))
        self._cached = data, last_write
        return last_write

    def write_last_write(self, last_write: LastWrite) -> None:
        self._write(_LAST_WRITE.pack(*last_write), _QUEUE_FLAG.size)

    def _write(self, data: bytes, offset: int) -> None:
        with suppress(OSError):  # a full disk
            os.pwrite(self._descriptor, data, offset)
