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
        """`path` is that of the board; as long as there is none, because nobody has written yet,
        the time is the system's."""
        self._path: str | None = path
        self._board: memoryview[int] | None = None

    def now(self) -> int:
        now = super().now()
        board = self._board
        if board is None:
            board = self._look()
        if board is not None:
            held = board[TIME]  # once: others write it meanwhile
            if now < held <= now + LONGEST_HELD:
                return held
        return now

    def write_now(self) -> int:
        """The time of a write, which is everybody's from then on; for whoever has the turn."""
        now = self.now()
        board = self._board
        if board is not None:
            board[TIME] = now
        return now

    def close(self) -> None:
        """Let go of the board's file; the time is the system's from then on."""
        self._path = self._board = None

    def _look(self) -> "memoryview[int] | None":
        if self._path is not None:
            with suppress(OSError):
                self._board = open_board(self._path)
        return self._board
