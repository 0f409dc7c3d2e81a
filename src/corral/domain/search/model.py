"""A passage is a piece of text that can be found by its words; a hit is one that was found."""

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    TURN = "turn"  # said in a session
    OUTPUT = "output"  # printed by a run
    NOTE = "note"  # remembered by somebody


class Hit(msgspec.Struct, frozen=True):
    seq: int
    kind: Kind
    subject: str
    """The id of the session, run or note that it is from."""
    place: int
    """Where in there: the turn's number, or the line."""
    project_id: str | None
    at: int
    snippet: str
    """Some of the text around the first word that was looked for."""


class Cursor(msgspec.Struct, frozen=True):
    """How far the copying of a source has come."""

    source: str
    seq: int
    ahead: int
    ahead_xid: int
