"""An agent is a named identity with numbered, immutable versions of its definition."""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.states import TransitionTable, allow
from corral.kernel.validation import convert


class AgentState(StrEnum):
    ACTIVE = "active"  # can be given work
    RETIRED = "retired"  # kept for its history; gets no new work


TRANSITIONS = TransitionTable(
    "agent",
    AgentState,
    create_verb="create",
    initial=AgentState.ACTIVE,
    import_states=(AgentState.ACTIVE, AgentState.RETIRED),
    verbs={
        "edit": allow(AgentState.ACTIVE, to=AgentState.ACTIVE),
        "retire": allow(AgentState.ACTIVE, to=AgentState.RETIRED),
        "restore": allow(AgentState.RETIRED, to=AgentState.ACTIVE),
    },
)


class AgentLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of an agent's runs; None: no limit of its own."""

    budget_micros: int | None = None
    timeout_ms: int | None = None
    idle_ms: int | None = None
    max_runs: int | None = None
    """The number of concurrent runs."""


class AgentContent(msgspec.Struct, frozen=True):
    """The content of a version. Equal content does not create a new version."""

    role: str | None = None
    provider: str | None = None
    model: str | None = None
    command: str | None = None
    instructions: str | None = None
    workspace: str | None = None
    limits: AgentLimits = AgentLimits()


class AgentRow(msgspec.Struct, frozen=True):
    """The row of an agent, without the content of its version."""

    id: str
    name: str
    state: AgentState
    version: int
    admin: bool
    created_at: int
    updated_at: int


class Agent(msgspec.Struct, frozen=True):
    """An agent with the content of its current version."""

    id: str
    name: str
    state: AgentState
    version: int
    admin: bool
    role: str | None
    provider: str | None
    model: str | None
    command: str | None
    instructions: str | None
    workspace: str | None
    limits: AgentLimits
    hash: str
    created_at: int
    updated_at: int

    @property
    def content(self) -> AgentContent:
        return AgentContent(*(getattr(self, name) for name in AgentContent.__struct_fields__))


class AgentVersion(msgspec.Struct, frozen=True):
    """One immutable version of an agent."""

    agent_id: str
    number: int
    role: str | None
    provider: str | None
    model: str | None
    command: str | None
    instructions: str | None
    workspace: str | None
    limits: AgentLimits
    hash: str
    created_at: int
    created_by: str


class ToolGrant(msgspec.Struct, frozen=True):
    """A rule that allows or denies a tool, or all tools that match a pattern."""

    agent_id: str
    tool: str
    allowed: bool
    updated_at: int
    updated_by: str


_MAX_LIMIT = 1 << 53  # the largest integer that every JSON reader represents exactly


def check_limits(value: AgentLimits | dict[str, Any] | None) -> AgentLimits:
    """Return valid limits; raises Invalid."""
    try:
        limits = convert(value or {}, AgentLimits, from_attributes=True)
    except msgspec.ValidationError as error:
        names = ", ".join(AgentLimits.__struct_fields__)
        raise Invalid(f"Invalid limits: {error}. Use integers for {names}.") from None
    for name in AgentLimits.__struct_fields__:
        limit = getattr(limits, name)
        if limit is not None and not 1 <= limit <= _MAX_LIMIT:
            raise Invalid(
                f"Invalid {name} {limit}: expected a positive number, or none for no limit.",
                field=name,
            )
    return limits
