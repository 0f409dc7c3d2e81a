"""The time of a SQLite store: the system's, as long as that does not go back."""

from contextlib import suppress

from corral.db.board import TIME, open_board
from corral.kernel.clock import MINUTE, SystemClock

LONGEST_HELD = MINUTE


class StoreClock(SystemClock):
    """The system's time, and never earlier than when somebody last wrote: a clock that is set back
    by a little stands still for all who use the store until it is there again.

    So what was accepted earlier is also older, and what was due when it was put is due for
    everybody, whatever a clock does in between. One that is set back by more than LONGEST_HELD is
    followed: it was wrong by too much to wait for.
    """

    def __init__(self, path: str) -> None:
        """`path` is that of the board; without one, because nobody has written yet, the time is the
        system's."""
        self._path = path
        self._board: memoryview[int] | None = None
        self._look()

    def now(self) -> int:
        now = super().now()
        board = self._board
        if board is not None and now < board[TIME] <= now + LONGEST_HELD:
            return board[TIME]
        return now

    def write_now(self) -> int:
        """The time of a write, which is everybody's from then on; for whoever has the turn."""
        if self._board is None:
            self._look()
        now = self.now()
        if self._board is not None:
            self._board[TIME] = now
        return now

    def close(self) -> None:
        """Let go of the board's file; the time is the system's from then on."""
        self._board = None

    def _look(self) -> None:
        with suppress(OSError):
            self._board = open_board(self._path)
