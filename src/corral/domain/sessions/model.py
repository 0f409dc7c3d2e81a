"""A session is one agent's conversation; a turn is one message in it.

Turns have numbers from 1 without gaps. A fork shows the turns of the session that it came from, up
to the one where it began, as its own first ones; they are not copied.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import Moves, move


class SessionState(StrEnum):
    OPEN = "open"  # takes turns
    CLOSED = "closed"  # kept for reading, and forgotten in time


S = SessionState
MOVES = Moves(
    "session",
    SessionState,
    begin="open",
    initial=S.OPEN,
    imports=(S.OPEN, S.CLOSED),
    verbs={
        # From here on another agent has it, and is given what the policy says.
        "handoff": move(S.OPEN, to=S.OPEN),
        # Whoever has it starts afresh; what was said stays readable.
        "clear": move(S.OPEN, to=S.OPEN),
        "close": move(S.OPEN, to=S.CLOSED),
        "reopen": move(S.CLOSED, to=S.OPEN),
    },
)


class Role(StrEnum):
    USER = "user"  # a person, or a program that speaks for one
    ASSISTANT = "assistant"  # the agent; also when it calls a tool
    SYSTEM = "system"  # what it is told about its work
    TOOL = "tool"  # what a tool answered


class Policy(StrEnum):
    ALL = "all"  # every turn since the session was last cleared
    LAST = "last"  # the last so many turns before the hand-off
    SUMMARY = "summary"  # no turn from before, but a summary


class Session(msgspec.Struct, frozen=True):
    id: str
    title: str | None
    project_id: str | None
    agent_id: str | None
    provider: str | None
    provider_session: str | None
    state: SessionState
    turns: int
    cleared_turn: int
    handoff: int | None
    parent_id: str | None
    parent_turn: int
    reply_to: str | None
    created_at: int
    updated_at: int
    closed_at: int | None


class Turn(msgspec.Struct, frozen=True):
    id: str
    session_id: str
    number: int
    role: Role
    content: str
    tool_call_id: str | None
    tool_name: str | None
    arguments: Any
    result: Any
    is_error: bool
    input_tokens: int | None
    output_tokens: int | None
    agent_id: str | None
    run_id: str | None
    key: str | None
    meta: Any
    at: int


def taken_back_by(turn: Turn) -> int | None:
    """The number of the turn that this one takes back; None when it is one like any other."""
    named = turn.meta.get("takes_back") if isinstance(turn.meta, dict) else None
    return named if turn.role is Role.SYSTEM and type(named) is int else None


class NewTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn to be appended; `append` takes the same as its arguments."""

    role: str
    content: str
    key: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    arguments: Any = None
    result: Any = None
    is_error: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    agent: str | None = None
    run: str | None = None
    meta: Any = None
    at: int | None = None
    """When it was said, for what is brought in from elsewhere; now otherwise."""


class StateValue(msgspec.Struct, frozen=True):
    """Something that a session remembers between its runs."""

    name: str
    value: Any
    updated_at: int


class Handoff(msgspec.Struct, frozen=True):
    session_id: str
    number: int
    from_agent_id: str | None
    to_agent_id: str
    policy: Policy
    last_n: int | None
    note: str | None
    summary: str | None
    at_turn: int
    from_turn: int
    run_id: str | None
    created_at: int


class Context(msgspec.Struct, frozen=True):
    """What the agent that has a session is given of it."""

    session_id: str
    agent_id: str | None
    note: str | None
    summary: str | None
    from_turn: int
    """It is given the turns behind this one."""
    turns: list[Turn]
    next: str | None
    """Hand it back as `after` for the turns that follow; None when these are all."""


class Retro(msgspec.Struct, frozen=True):
    """A look back at a session."""

    session_id: str
    number: int
    body: Any
    created_at: int


class Passage(msgspec.Struct, frozen=True):
    """A turn as whoever copies turns elsewhere gets it: for the index of words.

    Of what is very long, only the beginning; arguments and result are JSON text.
    """

    seq: int
    session_id: str
    number: int
    project_id: str | None
    at: int
    content: str
    tool_name: str | None
    arguments: str | None
    result: str | None
