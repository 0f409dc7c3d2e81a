"""A note is a remembered text. Any agent may have written it, so it is untrusted data: every prompt
that includes a note marks it as data, not as instructions."""

from enum import StrEnum

import msgspec

from corral.kernel.states import TransitionTable, allow


class NoteState(StrEnum):
    CURRENT = "current"  # valid until it expires
    SUPERSEDED = "superseded"  # replaced by another note


TRANSITIONS = TransitionTable(
    "note",
    NoteState,
    create_verb="add",
    initial=NoteState.CURRENT,
    import_states=(NoteState.CURRENT, NoteState.SUPERSEDED),
    verbs={"supersede": allow(NoteState.CURRENT, to=NoteState.SUPERSEDED)},
)

EVERYONE = "everyone"
CORE_CATEGORY = "core"
"""The category whose notes are part of every prompt."""


class Note(msgspec.Struct, frozen=True):
    """A text that is remembered for an agent, a project or everyone."""

    id: str
    scope: str
    """everyone, project:ID or agent:NAME."""
    project_id: str | None
    """The project of the scope; None: the scope is not a project."""
    category: str
    """core, decision, gotcha, pattern or another word; see CORE_CATEGORY."""
    key: str | None
    """Unique among the current notes of a scope: a new note supersedes the one with its key."""
    text: str
    source: str
    """Who added it."""
    confidence: int
    """In percent."""
    uses: int
    """How often it was given to an agent."""
    used_at: int | None
    """When it was last given to an agent."""
    supersedes: str | None
    """The note that it replaced."""
    state: NoteState
    expires_at: int | None
    """From this time on, it is ignored; None: never."""
    created_at: int
    ended_at: int | None
    """When it was superseded."""


class RankedNote(msgspec.Struct, frozen=True):
    """A note with its score for a query."""

    score: float
    """From 0 to 1."""
    note: Note


class PromptSection(msgspec.Struct, frozen=True):
    """Notes rendered as a section of a prompt."""

    text: str
    """Empty when there is no note."""
    tokens: int
    """The estimated number of tokens."""
    notes: list[str]
    """The ids of the included notes."""
    left_out: int
    """The number of relevant notes that exceeded the token limit."""
