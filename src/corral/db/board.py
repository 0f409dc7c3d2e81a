"""What all processes of a SQLite store share beside it: the content of a small file.

It is read and written by `pread` and `pwrite`. A memory map would save a microsecond per write,
but if another program truncates a mapped file, every process that uses the map is killed (SIGBUS).
"""

import os
import weakref
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from corral.db.lockfile import OPEN

_DOOR = Struct("<q")
_MOMENT = Struct("<qqqq")


class Moment(NamedTuple):
    """The store's time at the last write."""

    time: int
    """In milliseconds since 1970; 0: nothing was written yet."""
    steady: int
    """The machine's steady clock at the same moment."""
    boot: int
    """The start of the machine that the steady clock counts from."""
    doubted_at: int
    """Since when no writer's clock agreed with the store's time, by the steady clock; 0: one did
    at the last write."""


class Board:
    """The shared content. All of it is a hint: where it is lost, writers wait less fairly, and a
    clock that was moved is followed."""

    def __init__(self, path: str) -> None:
        """Open the file; OSError if it does not exist, or is not a regular file."""
        self._descriptor = os.open(path, OPEN)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        """Close the file. Idempotent."""
        self._last = b"", Moment(0, 0, 0, 0)
        try:
            os.pread(self._descriptor, 1, 0)  # ESPIPE: a pipe stands in its place
        except BaseException:
            self.close()
            raise

    def is_door_taken(self) -> bool:
        """Whether a process has the door of the line of writers."""
        return os.pread(self._descriptor, 1, 0) == b"\1"

    def show_door(self, taken: bool) -> None:
        self._write(_DOOR.pack(taken), 0)

    def read_moment(self) -> Moment:
        data = os.pread(self._descriptor, _MOMENT.size, _DOOR.size)
        known, moment = self._last  # one attribute: other threads replace it meanwhile
        if data == known:  # most often, and decoding costs more than reading
            return moment
        whole = data.ljust(_MOMENT.size, b"\0")  # new, or another program truncated it
        moment = Moment._make(_MOMENT.unpack(whole))
        self._last = data, moment
        return moment

    def write_moment(self, moment: Moment) -> None:
        self._write(_MOMENT.pack(*moment), _DOOR.size)

    def _write(self, data: bytes, offset: int) -> None:
        with suppress(OSError):  # a full disk
            os.pwrite(self._descriptor, data, offset)
