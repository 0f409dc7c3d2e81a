"""Waits inside a process: until a call has a result, or until a row has ended.

Both are woken by commits. The HTTP server and the MCP tools divide long waits into slices, to
notice a disconnected or cancelled call: `ApiRouter._wait` and `ToolCall.wait_slices`.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from corral.db.database import Database
from corral.db.types import MAX_LISTEN_SECONDS
from corral.kernel.deadline import Pending
from corral.kernel.errors import NotYet

if TYPE_CHECKING:
    from corral.api import Corral

MIN_SLEEP = 0.005  # seconds before a deadline; the clock of a store may stand still for a moment


T = TypeVar("T")
PendingRow = TypeVar("PendingRow", bound=Pending)


def poll_until(database: Database, attempt: Callable[[], T | None], timeout_ms: int) -> T | None:
    """Return the first result of `attempt` other than None; None after `timeout_ms`.

    `attempt` is called at once, after each commit, and every MAX_LISTEN_SECONDS.
    """
    end = time.monotonic() + timeout_ms / 1_000
    with database.listener() as listener:
        while True:
            result = attempt()
            left = end - time.monotonic()
            if result is not None or left <= 0:
                return result
            listener.wait(min(left, MAX_LISTEN_SECONDS))


def wait_until_ended(
    database: Database, read: Callable[[], PendingRow], timeout_ms: int | None
) -> PendingRow:
    """Return the row that `read` returns as soon as it has ended; raises NotYet on timeout.

    `read` is called after each commit, and when the row's own deadline is due.
    """
    end = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
    with database.listener() as listener:
        while True:
            row = read()
            if row.ended_at is not None:
                return row
            left = MAX_LISTEN_SECONDS if end is None else end - time.monotonic()
            if left <= 0:
                raise NotYet(
                    f"{row.id} is still {row.state}. Wait again, or check it later.",
                    id=row.id,
                    state=row.state,
                )
            if row.deadline_at is not None:
                due = (row.deadline_at - database.clock.now()) / 1_000
                left = min(left, max(due, MIN_SLEEP))
            listener.wait(min(left, MAX_LISTEN_SECONDS))


def seconds_until(
    store: "Corral", due: int | None, *, at_least: float = 0.05, at_most: float
) -> float:
    """Return the seconds until a due time, within these bounds; `at_most` if nothing is due."""
    if due is None:
        return at_most
    return min(max((due - store.now()) / 1_000, at_least), at_most)
