"""A clock that several processes share."""

import mmap
import struct

from corral.kernel.clock import ManualClock

_NOW = struct.Struct("q")


class SharedClock(ManualClock):
    """A manual clock in shared memory: forked processes see it move, and it outlives them."""

    def __init__(self, now: int | None = None) -> None:
        self._memory = mmap.mmap(-1, _NOW.size)
        super().__init__() if now is None else super().__init__(now)

    @property
    def at(self) -> int:
        return int(_NOW.unpack_from(self._memory)[0])

    @at.setter
    def at(self, now: int) -> None:
        _NOW.pack_into(self._memory, 0, now)
