"""A note is something remembered. It may have been written by anybody, and may be read by many: it
is data, and is marked as data wherever an agent gets it."""

from enum import StrEnum

import msgspec

from corral.kernel.states import Moves, move


class NoteState(StrEnum):
    CURRENT = "current"  # it counts, until it expires
    SUPERSEDED = "superseded"  # another one came in its place


MOVES = Moves(
    "note",
    NoteState,
    begin="add",
    initial=NoteState.CURRENT,
    imports=(NoteState.CURRENT, NoteState.SUPERSEDED),
    verbs={"supersede": move(NoteState.CURRENT, to=NoteState.SUPERSEDED)},
)

EVERYONE = "everyone"
CORE = "core"
"""The category whose notes are always given, whatever it is about."""


class Note(msgspec.Struct, frozen=True):
    id: str
    scope: str
    """everyone, project:ID or agent:NAME."""
    project_id: str | None
    category: str
    key: str | None
    text: str
    source: str
    confidence: int
    """In percent."""
    uses: int
    used_at: int | None
    supersedes: str | None
    state: NoteState
    expires_at: int | None
    created_at: int
    ended_at: int | None


class Found(msgspec.Struct, frozen=True):
    """A note, and how well it fits what was looked for."""

    score: float
    """From 0 to 1."""
    note: Note


class Section(msgspec.Struct, frozen=True):
    """Notes as a part of a prompt."""

    text: str
    """Empty where there is nothing to tell."""
    tokens: int
    """About how many it has."""
    notes: list[str]
    """The ids of the notes that are in it."""
    left_out: int
    """Notes that would have fitted what it is about, and for which there was no room."""
