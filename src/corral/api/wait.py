"""Waiting until something is over, woken by commits."""

import time
from collections.abc import Callable
from typing import TypeVar

from corral.db.database import Database
from corral.kernel.deadline import Pending
from corral.kernel.errors import Refused

# Behind a wake-up that never came.
LONGEST_SLEEP = 1.0
# What is due sooner is looked for then: the time of a store may stand still for a while.
SOON = 0.005


T = TypeVar("T", bound=Pending)


def until_over(database: Database, look: Callable[[], T], timeout_ms: int | None) -> T:
    """What `look` finds, as soon as that is over; Refused when it is not within the time."""
    end = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
    with database.listening() as listener:
        while True:
            found = look()
            if found.ended_at is not None:
                return found
            left = LONGEST_SLEEP if end is None else end - time.monotonic()
            if left <= 0:
                raise Refused(
                    f"{found.id} is still {found.state}; wait again, or look later.",
                    id=found.id,
                    state=found.state,
                )
            if found.deadline_at is not None:
                due = (found.deadline_at - database.clock.now()) / 1_000
                left = min(left, max(due, SOON))
            listener.wait(min(left, LONGEST_SLEEP))
