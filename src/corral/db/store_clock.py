"""The time of a SQLite store: the system's, unless that contradicts what the store has seen."""

import os
import time
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from corral.db.board import Board, Moment
from corral.kernel.clock import MINUTE, SystemClock

LONGEST_HELD: Final = MINUTE
"""How far the system's time may differ from the store's before it needs to be confirmed."""
CONFIRMED_AFTER: Final = MINUTE
"""How long no writer may contradict a time that differs by more, before it is followed."""
READS_TRUST_S = 0.01
"""For so many seconds a read may use the store's time as it was read last."""


def steady_ms() -> int:
    """Milliseconds since the machine started, also while it slept; the same for all processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class StoreClock(SystemClock):
    """The system's time, and never earlier than the last write: if the system's clock is set back
    by up to a minute, the store's time stands still until the clock is there again.

    So a letter that was accepted earlier is also older, and a letter that was due when it was put
    stays due, whatever a clock does in between.

    A clock that differs by more is not trusted at once: a lease, a timer or a schedule that is
    written a day ahead blocks for a day. The store's time goes on by the machine's steady clock.
    The other time is followed when for a minute no writer's clock agreed with the store's time, as
    after the system's clock was set right.
    """

    def __init__(self, path: str) -> None:
        """`path` is that of the board; until the first write creates it, the time is the
        system's."""
        self._path: str | None = path
        self._board: Board | None = None
        self._moment = Moment(0, 0, 0, 0)
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
        """The time of a write, which is the store's from then on; for the writer that has the
        turn."""
        now = SystemClock.now(self)
        board = self._board or self._look()
        if board is not None:
            moment = board.read_moment()
            if now != moment.time or moment.doubted_at:
                now, doubted = self._judge(now, moment)
                steady = steady_ms() if self._boot else 0
                since = (moment.doubted_at or steady) if doubted else 0
                moment = Moment(now, steady, self._boot, since)
                board.write_moment(moment)
            self._moment = moment
        return now

    def _judge(self, now: int, moment: Moment) -> tuple[int, bool]:
        """The store's time, and whether the system's is too far from it to be trusted."""
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
    """A number of this start of the machine, and of the process's view of its steady clock; 0 where
    there is none (macOS), and clocks are trusted as they are."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            start = file.read()
        space = os.readlink("/proc/self/ns/time").encode()
    except OSError:
        return 0
    return int.from_bytes(blake2b(start + space, digest_size=7).digest(), "little") or 1
