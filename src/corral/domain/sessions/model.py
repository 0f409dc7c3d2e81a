"""A session is one agent's conversation; a turn is one message in it.

Turns are numbered from 1 without gaps. A fork shows the turns of its parent, up to the turn where
it was forked, as its own first turns; they are not copied.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import TransitionTable, allow


class SessionState(StrEnum):
    OPEN = "open"  # accepts turns
    CLOSED = "closed"  # read-only, and deleted by retention


TRANSITIONS = TransitionTable(
    "session",
    SessionState,
    create_verb="open",
    initial=SessionState.OPEN,
    import_states=(SessionState.OPEN, SessionState.CLOSED),
    verbs={
        # Another agent continues the session, with the context that the policy selects.
        "handoff": allow(SessionState.OPEN, to=SessionState.OPEN),
        # The context starts again from empty; earlier turns stay readable.
        "clear": allow(SessionState.OPEN, to=SessionState.OPEN),
        "close": allow(SessionState.OPEN, to=SessionState.CLOSED),
        "reopen": allow(SessionState.CLOSED, to=SessionState.OPEN),
    },
)


class TurnRole(StrEnum):
    USER = "user"  # a person, or a program on behalf of one
    ASSISTANT = "assistant"  # the agent, including its tool calls
    SYSTEM = "system"  # instructions and events of the session itself
    TOOL = "tool"  # the result of a tool call


class HandoffPolicy(StrEnum):
    """Which earlier turns the new agent gets."""

    ALL = "all"  # every turn since the session was last cleared
    LAST = "last"  # the last n turns before the hand-off
    SUMMARY = "summary"  # no earlier turns, only a summary


class Session(msgspec.Struct, frozen=True):
    """A conversation."""

    id: str
    title: str | None
    project_id: str | None
    agent_id: str | None
    provider: str | None
    provider_session: str | None
    state: SessionState
    turns: int
    """The number of the latest turn."""
    cleared_turn: int
    """The context starts after this turn; 0: never cleared."""
    handoff: int | None
    """The number of the hand-off in effect."""
    parent_id: str | None
    parent_turn: int
    """The turn of the parent at which the session was forked."""
    reply_to: str | None
    created_at: int
    updated_at: int
    closed_at: int | None


class Turn(msgspec.Struct, frozen=True):
    """One message of a session."""

    id: str
    session_id: str
    number: int
    role: TurnRole
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


def find_undone_number(turn: Turn) -> int | None:
    """Return the number of the turn that this one undoes; None for an ordinary turn."""
    number = turn.meta.get("undoes") if isinstance(turn.meta, dict) else None
    return number if turn.role is TurnRole.SYSTEM and type(number) is int else None


class NewTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn to append. `append` takes the same fields as arguments."""

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
    """The original time of an imported turn; None: now."""


class StateValue(msgspec.Struct, frozen=True):
    """A named value that a session keeps between runs."""

    name: str
    value: Any
    updated_at: int


class Handoff(msgspec.Struct, frozen=True):
    """The transfer of a session from one agent to another."""

    session_id: str
    number: int
    from_agent_id: str | None
    to_agent_id: str
    policy: HandoffPolicy
    last_n: int | None
    note: str | None
    summary: str | None
    at_turn: int
    from_turn: int
    run_id: str | None
    created_at: int


class Context(msgspec.Struct, frozen=True):
    """The part of a session that its agent gets."""

    session_id: str
    agent_id: str | None
    note: str | None
    summary: str | None
    from_turn: int
    """The context contains the turns after this one."""
    turns: list[Turn]
    next: str | None
    """The cursor for `after` of the next page; None: this is the last page."""


class Retro(msgspec.Struct, frozen=True):
    """A stored retrospective of a session."""

    session_id: str
    number: int
    body: Any
    created_at: int


class TurnText(msgspec.Struct, frozen=True):
    """A turn as the search index reads it.

    Long texts are truncated. Arguments and result are JSON text.
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
