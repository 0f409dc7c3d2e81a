"""An event is one line of the record: who did what to which thing, and when."""

from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True):
    id: str
    cursor: str
    """Its place in the feed: hand it back as `after` to go on behind it."""
    at: int
    actor: str
    kind: str
    verb: str
    subject: str
    project_id: str | None
    data: Any
    run: str | None = None
    """The run whose process made the change, if one did."""
