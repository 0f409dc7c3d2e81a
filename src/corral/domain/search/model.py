"""A passage is an indexed piece of text; a hit is a passage that matches a query."""

from enum import StrEnum

import msgspec


class PassageKind(StrEnum):
    TURN = "turn"  # a turn of a session
    OUTPUT = "output"  # output of a run
    NOTE = "note"  # a note


class Hit(msgspec.Struct, frozen=True):
    """A passage that matches a query."""

    seq: int
    kind: PassageKind
    subject: str
    """The id of the session, run or note."""
    location: int
    """The position in it: the number of the turn, or the line."""
    project_id: str | None
    at: int
    snippet: str
    """The text around the first match."""


class IndexCursor(msgspec.Struct, frozen=True):
    """How far a source is indexed, and up to where it can be."""

    source: str
    seq: int
    ahead: int
    ahead_xid: int
