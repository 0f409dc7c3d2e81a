"""Waits inside a process: until a call has a result, or until a row has ended.

All are woken by commits. The HTTP server and the MCP tools divide long waits into slices, to
notice a disconnected or cancelled call: `ApiRouter._wait` and `ToolCall.wait_slices`.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from corral.db.types import MAX_LISTEN_SECONDS
from corral.kernel.deadline import Pending
from corral.kernel.errors import NotYet

if TYPE_CHECKING:
    from corral.db.database import Database

MIN_SLEEP = 0.005  # seconds before a deadline; the clock of a store may stand still for a moment

T = TypeVar("T")
PendingRow = TypeVar("PendingRow", bound=Pending)


def wait_until(
    database: "Database",
    step: Callable[[], T | None],
    *,
    timeout_ms: int | None,
    next_pause: Callable[[bool], float] | None = None,
    min_interval: float = 0.0,
) -> T | None:
    """Return the first result of `step` other than None; None after `timeout_ms`.

    `step` is called at once, after each commit of any process, and every MAX_LISTEN_SECONDS, but at
    most every `min_interval` seconds. `next_pause` may shorten the sleep: it returns seconds, and
    gets whether a commit ended the last sleep. Without `timeout_ms` the wait is unlimited.
    """
    end = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
    is_woken = True
    with database.listener() as listener:
        while True:
            began = time.monotonic()
            result = step()
            left = MAX_LISTEN_SECONDS if end is None else end - time.monotonic()
            if result is not None or left <= 0:
                return result
            pause = MAX_LISTEN_SECONDS if next_pause is None else next_pause(is_woken)
            is_woken = listener.wait(min(pause, left, MAX_LISTEN_SECONDS))
            if min_interval:
                time.sleep(max(0.0, began + min_interval - time.monotonic()))


def wait_until_ended(
    database: "Database", read: Callable[[], PendingRow], timeout_ms: int | None
) -> PendingRow:
    """Return the row that `read` returns as soon as it has ended; raises NotYet on timeout.

    `read` is called after each commit, and when the row's own deadline is due.
    """
    latest: PendingRow

    def read_ended() -> PendingRow | None:
        nonlocal latest
        latest = read()
        return latest if latest.ended_at is not None else None

    def until_deadline(_: bool) -> float:
        if latest.deadline_at is None:
            return MAX_LISTEN_SECONDS
        return max((latest.deadline_at - database.clock.now()) / 1_000, MIN_SLEEP)

    ended = wait_until(database, read_ended, timeout_ms=timeout_ms, next_pause=until_deadline)
    if ended is None:
        raise NotYet(
            f"{latest.id} is still {latest.state}. Wait again, or check it later.",
            id=latest.id,
            state=latest.state,
        )
    return ended
