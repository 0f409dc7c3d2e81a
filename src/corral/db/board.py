"""Two numbers that all processes of a SQLite store share: the content of a file beside it.

They are read and written by `pread` and `pwrite`. A memory map would save a microsecond per write,
but if another program truncates a mapped file, every process that uses the map is killed (SIGBUS).
"""

import os
import weakref
from contextlib import suppress
from struct import Struct

from corral.db.lockfile import OPEN

DOOR = 0
"""Whether a process has the door of the line of writers: 0 or 1."""
TIME = 1
"""The latest time at which a process wrote."""

_NUMBERS = Struct("<qq")
_NUMBER = Struct("<q")


class Board:
    """The numbers. They are hints: where they are lost, writers wait less fairly, and a clock that
    was set back is followed."""

    def __init__(self, path: str) -> None:
        """Open the file; OSError if it does not exist, or is not a regular file."""
        self._descriptor = os.open(path, OPEN)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        """Close the file. Idempotent."""
        try:
            os.pread(self._descriptor, 1, 0)  # ESPIPE: a pipe stands in its place
        except BaseException:
            self.close()
            raise

    def read(self, place: int) -> int:
        data = os.pread(self._descriptor, 16, 0)
        if len(data) < 16:  # new, or another program truncated it
            data = data.ljust(16, b"\0")
        number: int = _NUMBERS.unpack(data)[place]
        return number

    def write(self, place: int, number: int) -> None:
        with suppress(OSError):  # a full disk
            os.pwrite(self._descriptor, _NUMBER.pack(number), place * 8)
