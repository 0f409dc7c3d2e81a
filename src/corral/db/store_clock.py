"""The time of a SQLite store: the system's time, unless it contradicts the store's last writes."""

import os
import time
from contextlib import suppress
from typing import Final

from corral.db.shared_memory import Board, StoreMoment
from corral.kernel.boot import read_boot_id
from corral.kernel.clock import MINUTE, SystemClock

LONGEST_HELD: Final = MINUTE
"""Maximum difference between the system's and the store's time that is accepted at once."""
CONFIRMED_AFTER: Final = MINUTE
"""A larger difference is accepted when no writer contradicts it for this long."""
READS_TRUST_S = 0.01
"""How long reads reuse the store's time, in seconds."""


def steady_ms() -> int:
    """Return milliseconds since boot, including sleep; the same for all processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class StoreClock(SystemClock):
    """The system's time, but never earlier than the last write: if the system's clock is set back
    by up to a minute, the store's time stands still until the clock catches up.

    So messages keep their order, and a message that was due stays due, whatever the clock does.

    A clock that differs by more is not trusted at once: a lease, a timer or a schedule written a
    day ahead would block for a day. The store's time then continues by the machine's monotonic
    clock. The system's time is accepted after no writer's clock agreed with the store's time for a
    minute, as after a correction of the system's clock.
    """

    def __init__(self, path: str) -> None:
        """`path` is the file of the board. Until the first write creates it, the system's time is
        used."""
        self._path: str | None = path
        self._board: Board | None = None
        self._moment = StoreMoment(0, 0, 0, 0)
        self._stale_at = 0.0
        self._boot = 0

    def now(self) -> int:
        now = super().now()
        board = self._board
        if board is None:
            board = self._look()
        if board is not None:
            steady = time.monotonic()
            if steady > self._stale_at:
                self._moment = board.read_moment()
                self._stale_at = steady + READS_TRUST_S
            return self._judge(now, self._moment)[0]
        return now

    def write_now(self) -> int:
        """Return the time of a write, and make it the store's time. Only called by the writer that
        has the turn."""
        now = SystemClock.now(self)
        board = self._board or self._look()
        if board is not None:
            moment = board.read_moment()
            if now != moment.time or moment.doubted_at:
                now, doubted = self._judge(now, moment)
                steady = steady_ms() if self._boot else 0
                since = (moment.doubted_at or steady) if doubted else 0
                moment = StoreMoment(now, steady, self._boot, since)
                board.write_moment(moment)
            self._moment = moment
        return now

    def _judge(self, now: int, moment: StoreMoment) -> tuple[int, bool]:
        """Return the store's time, and whether the system's time differs too much from it."""
        if moment.boot == self._boot != 0:
            steady = steady_ms()
            expected = moment.time + steady - moment.steady
            if abs(now - expected) > LONGEST_HELD and not (
                moment.doubted_at and steady - moment.doubted_at > CONFIRMED_AFTER
            ):
                return max(expected, moment.time), True
        if now < moment.time <= now + LONGEST_HELD:
            return moment.time, False
        return now, False

    def close(self) -> None:
        """Let go of the board's file; the time is the system's from then on."""
        board, self._path, self._board = self._board, None, None
        if board is not None:
            board.close()

    def _look(self) -> Board | None:
        if self._path is not None:
            with suppress(OSError):
                self._board = Board(self._path)
                self._boot = _boot()
        return self._board


def _boot() -> int:
    """Return a number for this boot and the process's time namespace; 0 where the system has none
    (macOS), and clocks are then trusted.

    The first 56 random bits of the boot id, combined with the inode of the namespace. A hash would
    load OpenSSL into every command.
    """
    boot_id = read_boot_id()
    try:
        namespace = os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return 0
    return int(boot_id.replace("-", "")[:14], 16) ^ namespace or 1 if boot_id else 0
