"""Deadlines: objects that wait for an answer, and the time until something is due.

Expiry is decided when the row is read; no background process is needed.
"""

from typing import Protocol

from corral.kernel.clock import Clock


class Pending(Protocol):
    """An object that ends at its deadline at the latest."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def deadline_at(self) -> int | None: ...
    @property
    def ended_at(self) -> int | None: ...


def is_overdue(pending: Pending, now: int) -> bool:
    """Whether the deadline has passed and the object has not been ended yet."""
    return (
        pending.ended_at is None and pending.deadline_at is not None and pending.deadline_at <= now
    )


def seconds_until(
    clock: Clock, due: int | None, *, at_least: float = 0.05, at_most: float
) -> float:
    """Return the seconds until a due time, within these bounds; `at_most` if nothing is due."""
    if due is None:
        return at_most
    return min(max((due - clock.now()) / 1_000, at_least), at_most)
