"""A deadline: until when something waits for somebody.

It holds by comparison with now, whoever looks, and whatever was restarted meanwhile.
"""

from typing import Protocol


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


def is_late(pending: Pending, now: int) -> bool:
    """Whether its deadline has passed and nobody has said so yet."""
    return (
        pending.ended_at is None and pending.deadline_at is not None and pending.deadline_at <= now
    )
