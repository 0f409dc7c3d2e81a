"""The time of a SQLite store: the system's, as long as that does not go back."""

import time
from contextlib import suppress

from corral.db.board import TIME, Board
from corral.kernel.clock import MINUTE, SystemClock

LONGEST_HELD = MINUTE
READS_TRUST_S = 0.01
"""For so many seconds a read may use the store's time as it was read last."""


class StoreClock(SystemClock):
    """The system's time, and never earlier than when somebody last wrote: a clock that is set back
    by a little stands still for all who use the store until it is there again.

    So what was accepted earlier is also older, and what was due when it was put is due for
    everybody, whatever a clock does in between. One that is set back by more than LONGEST_HELD is
    followed: it was wrong by too much to wait for.
    """

    def __init__(self, path: str) -> None:
        """`path` is that of the board; as long as there is none, because nobody has written yet,
        the time is the system's."""
        self._path: str | None = path
        self._board: Board | None = None
        self._held = 0
        self._stale_at = 0.0

    def now(self) -> int:
        now = super().now()
        board = self._board
        if board is None:
            board = self._look()
        if board is not None:
            steady = time.monotonic()
            if steady > self._stale_at:
                self._held = board.read(TIME)
                self._stale_at = steady + READS_TRUST_S
            if now < self._held <= now + LONGEST_HELD:
                return self._held
        return now

    def write_now(self) -> int:
        """The time of a write, which is everybody's from then on; for whoever has the turn."""
        now = SystemClock.now(self)
        board = self._board or self._look()
        if board is not None:
            held = board.read(TIME)
            if now < held <= now + LONGEST_HELD:
                now = held
            elif now != held:
                board.write(TIME, now)
            self._held = now
        return now

    def close(self) -> None:
        """Let go of the board's file; the time is the system's from then on."""
        board, self._path, self._board = self._board, None, None
        if board is not None:
            board.close()

    def _look(self) -> Board | None:
        if self._path is not None:
            with suppress(OSError):
                self._board = Board(self._path)
        return self._board
