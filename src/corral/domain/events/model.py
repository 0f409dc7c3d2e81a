"""An event records one change: actor, verb, subject and time."""

from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One entry of the event log."""

    id: str
    cursor: str
    """The position in the feed: pass it as `after` to continue behind it."""
    at: int
    actor: str
    kind: str
    verb: str
    subject: str
    project_id: str | None
    data: Any
    run: str | None = None
    """The run whose process made the change, if any."""
