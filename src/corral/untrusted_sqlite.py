"""Safe reading of SQLite files that another program made.

A schema can contain code: CHECK constraints, generated columns, views, triggers, expression indexes
and virtual tables. A hostile file uses it to exhaust time and memory, or to call functions. Here
that code never runs, each statement has a time limit, and each value has a length limit.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

MAX_VALUE = 256 * 1024 * 1024
"""Maximum bytes of one value or row, and of one allocation by a function in the schema."""
MAX_SECONDS = 60.0
"""Maximum time that a statement may take between two rows."""
_STEPS_BETWEEN_CHECKS = 10_000
_LIMITS = {
    apsw.SQLITE_LIMIT_LENGTH: MAX_VALUE,
    apsw.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    apsw.SQLITE_LIMIT_EXPR_DEPTH: 200,
    apsw.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    apsw.SQLITE_LIMIT_ATTACHED: 0,
    apsw.SQLITE_LIMIT_WORKER_THREADS: 0,
    apsw.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
_SWITCHES = {
    apsw.SQLITE_DBCONFIG_DEFENSIVE: 1,
    apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_VIEW: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION: 0,
}
_PRAGMAS = {"quick_check", "encoding", "table_xinfo"}
_FUNCTIONS = {"count", "min", "typeof"}


class TimeLimit:
    """Interrupts a statement that runs past its deadline; call `restart` after each row."""

    def __init__(self, connection: apsw.Connection, seconds: float = MAX_SECONDS) -> None:
        self._seconds = seconds
        self._deadline = 0.0
        self.restart()
        connection.set_progress_handler(self._is_over, _STEPS_BETWEEN_CHECKS)

    def restart(self) -> None:
        self._deadline = time.monotonic() + self._seconds

    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline


def harden(connection: apsw.Connection) -> TimeLimit:
    """Restrict a connection to reading tables; raises apsw.Error when the schema is damaged.

    Afterwards only SELECT and the PRAGMAs that describe or check a table are allowed.
    """
    for limit, value in _LIMITS.items():
        connection.limit(limit, value)
    for switch, value in _SWITCHES.items():
        connection.config(switch, value)
    connection.pragma("ignore_check_constraints", True)
    connection.pragma("cell_size_check", True)
    connection.pragma("mmap_size", 0)
    connection.set_authorizer(_authorize)
    return TimeLimit(connection)


@contextmanager
def without_checks(connection: apsw.Connection) -> Iterator[None]:
    """Skip CHECK constraints and limit the time: the schema may not be the one that Corral made."""
    connection.pragma("ignore_check_constraints", True)
    TimeLimit(connection)
    try:
        yield
    finally:
        connection.set_progress_handler(None)
        connection.pragma("ignore_check_constraints", False)


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    if action in (apsw.SQLITE_SELECT, apsw.SQLITE_READ):
        return apsw.SQLITE_OK
    if action == apsw.SQLITE_FUNCTION and second in _FUNCTIONS:
        return apsw.SQLITE_OK
    if action == apsw.SQLITE_PRAGMA and first in _PRAGMAS:
        return apsw.SQLITE_OK
    return apsw.SQLITE_DENY
