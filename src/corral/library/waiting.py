"""Waiting until something is over, woken by commits."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from corral.db.database import Database
from corral.kernel.errors import Refused

# Behind a wake-up that never came.
LONGEST_SLEEP = 1.0
SHORTEST_SLEEP = 0.001


class Pending(Protocol):
    """Something that ends, at its deadline at the latest."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def deadline_at(self) -> int | None: ...
    @property
    def ended_at(self) -> int | None: ...


T = TypeVar("T", bound=Pending)
R = TypeVar("R")


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
                left = min(left, max(due, SHORTEST_SLEEP))
            listener.wait(min(left, LONGEST_SLEEP))


def in_time(
    read: Callable[[], R], is_late: Callable[[R], bool], end_late: Callable[[], Sequence[object]]
) -> R:
    """What `read` finds; where a deadline has passed and nobody has said so, that is said first."""
    found = read()
    if not is_late(found):
        return found
    while end_late():
        pass
    return read()
