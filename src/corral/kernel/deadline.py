"""Objects that wait for an answer until a deadline.

Expiry is decided when the row is read; no background process is needed.
"""

from typing import Protocol


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
