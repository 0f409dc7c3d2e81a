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

from corral.db.lockfile import OPEN

_DOOR = Struct("<q")
_MOMENT = Struct("<qqqq")


class StoreMoment(NamedTuple):
    """The store's time at the last write."""

    time: int
    """Milliseconds since 1970; 0: no write yet."""
    steady: int
    """The machine's monotonic clock at the same moment."""
    boot: int
    """The boot of the machine that the monotonic clock counts from."""
    doubted_at: int
    """Since when no writer's clock agreed with the store's time, by the monotonic clock; 0: the
    last writer's clock agreed."""


class Board:
    """The shared content. All of it is a hint: without it, writers wait less fairly, and a clock
    that was changed is followed at once."""

    def __init__(self, path: str) -> None:
        """Open the file; raises OSError if it does not exist or is not a regular file."""
        self._descriptor = os.open(path, OPEN)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        """Close the file. Idempotent."""
        self._last = b"", StoreMoment(0, 0, 0, 0)
        try:
            os.pread(self._descriptor, 1, 0)  # ESPIPE: the path is a pipe
        except BaseException:
            self.close()
            raise

    def is_door_taken(self) -> bool:
        """Whether a process has the door of the line of writers."""
        return os.pread(self._descriptor, 1, 0) == b"\1"

    def show_door(self, taken: bool) -> None:
        self._write(_DOOR.pack(taken), 0)

    def read_moment(self) -> StoreMoment:
        data = os.pread(self._descriptor, _MOMENT.size, _DOOR.size)
        known, moment = self._last  # one attribute: other threads replace it meanwhile
        if data == known:  # most often, and decoding costs more than reading
            return moment
        whole = data.ljust(_MOMENT.size, b"\0")  # new, or another program truncated it
        moment = StoreMoment._make(_MOMENT.unpack(whole))
        self._last = data, moment
        return moment

    def write_moment(self, moment: StoreMoment) -> None:
        self._write(_MOMENT.pack(*moment), _DOOR.size)

    def _write(self, data: bytes, offset: int) -> None:
        with suppress(OSError):  # a full disk
            os.pwrite(self._descriptor, data, offset)
