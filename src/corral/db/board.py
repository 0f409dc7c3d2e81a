"""Two numbers that all processes of a SQLite store have in memory: a map of a file beside it.

Reading and writing them costs no call to the kernel, so they may be asked at every write.
"""

import mmap
import os

from corral.db.lockfile import OPEN

DOOR = 0
"""Whether somebody has the door of the line of writers: 0 or 1."""
TIME = 1
"""The latest time at which somebody wrote."""

_BYTES = 16


def open_board(path: str) -> "memoryview[int]":
    """The numbers, for as long as somebody keeps hold of what this gives; OSError where the file is
    not there, or has no room."""
    # Opened anew: a map keeps its file open, and in a forked child a lock on it with it.
    descriptor = os.open(path, OPEN)
    try:
        about = os.fstat(descriptor)
        if about.st_blocks == 0 or about.st_size < _BYTES:
            # Who writes to a map where the disk has no room is killed; so the room is taken first,
            # also where a copy of the file left out what is empty. What others have written since
            # is at the begin of it, and stays.
            kept = os.pread(descriptor, _BYTES, 0)
            os.pwrite(descriptor, kept.ljust(_BYTES, b"\0"), 0)
        return memoryview(mmap.mmap(descriptor, _BYTES)).cast("q")
    finally:
        os.close(descriptor)
