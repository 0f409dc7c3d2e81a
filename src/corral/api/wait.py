"""Wait until a row has ended, woken by commits."""

import time
from collections.abc import Callable
from typing import TypeVar

from corral.db.database import Database
from corral.kernel.deadline import Pending
from corral.kernel.errors import Refused

MAX_SLEEP = 1.0  # seconds; bounds the wait when a wake-up is missed
MIN_SLEEP = 0.005  # seconds before a deadline; the clock of a store may stand still for a moment


T = TypeVar("T", bound=Pending)


def wait_until_ended(database: Database, read: Callable[[], T], timeout_ms: int | None) -> T:
    """Return the row that `read` returns as soon as it has ended; raises Refused on timeout.

    `read` is called after each commit, and when the row's own deadline is due.
    """
    end = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
    with database.listener() as listener:
        while True:
            row = read()
            if row.ended_at is not None:
                return row
            left = MAX_SLEEP if end is None else end - time.monotonic()
            if left <= 0:
                raise Refused(
                    f"{row.id} is still {row.state}. Wait again, or check it later.",
                    id=row.id,
                    state=row.state,
                )
            if row.deadline_at is not None:
                due = (row.deadline_at - database.clock.now()) / 1_000
                left = min(left, max(due, MIN_SLEEP))
            listener.wait(min(left, MAX_SLEEP))
