"""Whether the content of an open store was moved away."""

from collections.abc import Callable
from typing import Generic, TypeVar

from corral.db.database import Database
from corral.kernel.errors import CorralError, StoreUnavailable

C = TypeVar("C")


class MoveCheck(Generic[C]):
    """Refuses calls on a store whose content was moved away or is being replaced.

    `is_moved` queries a connection of the engine, so its result counts for `max_age` seconds. Only
    handles with `refuses_moved` are checked.
    """

    def __init__(self, is_moved: Callable[[C], bool], *, max_age: float) -> None:
        self._is_moved = is_moved
        self._max_age = max_age
        self.valid_until = 0.0
        """Until when the last check counts, by the monotonic clock."""

    def expire(self) -> None:
        """Let the next call check again."""
        self.valid_until = 0.0

    def require_not_moved(self, database: Database, connection: C, now: float) -> None:
        """Raise StoreUnavailable if the content was moved; `now` is by the monotonic clock."""
        if not database.refuses_moved or now < self.valid_until:
            return
        if self._is_moved(connection):
            self.expire()
            raise _moved_error(database)
        self.valid_until = now + self._max_age

    def error_instead_of(
        self, error: BaseException, database: Database, connection: C
    ) -> StoreUnavailable | None:
        """Return the error to raise instead of one that was caused by stale content; None if none.

        The write guard rejects writes to content that was moved away, but work that fails before it
        writes has only read. The caller still holds the write lock (SQLite), or its transaction
        holds locks on the tables that it read (PostgreSQL), so the phase has not changed since.
        """
        if not database.refuses_moved or not isinstance(error, CorralError):
            return None
        if isinstance(error, StoreUnavailable) or not self._is_moved(connection):
            return None
        return _moved_error(database)


def _moved_error(database: Database) -> StoreUnavailable:
    from corral.db.store_move import moved_error

    with database.allow_moved():
        return moved_error(database)
