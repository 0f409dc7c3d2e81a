"""An agent is a lasting identity: a name, and versions of what it is and what it is told."""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.states import Moves, move
from corral.kernel.text import convert


class AgentState(StrEnum):
    ACTIVE = "active"  # may be given work
    RETIRED = "retired"  # kept for its history; gets nothing new


MOVES = Moves(
    "agent",
    AgentState,
    begin="create",
    initial=AgentState.ACTIVE,
    imports=(AgentState.ACTIVE, AgentState.RETIRED),
    verbs={
        "edit": move(AgentState.ACTIVE, to=AgentState.ACTIVE),
        "retire": move(AgentState.ACTIVE, to=AgentState.RETIRED),
        "restore": move(AgentState.RETIRED, to=AgentState.ACTIVE),
    },
)


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent's runs may spend, and how long they may take; None: no limit of its own."""

    budget_micros: int | None = None
    timeout_ms: int | None = None
    idle_ms: int | None = None
    max_runs: int | None = None
    """How many of them at the same time."""


class Content(msgspec.Struct, frozen=True):
    """What a version holds; two of the same content are one version."""

    role: str | None = None
    provider: str | None = None
    model: str | None = None
    command: str | None = None
    instructions: str | None = None
    workspace: str | None = None
    limits: Limits = Limits()


class AgentRow(msgspec.Struct, frozen=True):
    """An agent without its version's content: what a change of its row gives back."""

    id: str
    name: str
    state: AgentState
    version: int
    admin: bool
    created_at: int
    updated_at: int


class Agent(msgspec.Struct, frozen=True):
    """An agent as it is now: its row, and the content of its current version."""

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
    limits: Limits
    hash: str
    created_at: int
    updated_at: int

    @property
    def content(self) -> Content:
        return Content(*(getattr(self, name) for name in Content.__struct_fields__))


class AgentVersion(msgspec.Struct, frozen=True):
    agent_id: str
    number: int
    role: str | None
    provider: str | None
    model: str | None
    command: str | None
    instructions: str | None
    workspace: str | None
    limits: Limits
    hash: str
    created_at: int
    created_by: str


class Grant(msgspec.Struct, frozen=True):
    """What was said of one tool, or of all that a pattern fits."""

    agent_id: str
    tool: str
    allowed: bool
    updated_at: int
    updated_by: str


_MOST = 1 << 53  # what every reader of JSON keeps exactly


def check_limits(given: Limits | dict[str, Any] | None) -> Limits:
    try:
        limits = convert(given or {}, Limits, from_attributes=True)
    except msgspec.ValidationError as error:
        names = ", ".join(Limits.__struct_fields__)
        raise Invalid(
            f"These limits cannot be: {error}. There are {names}, whole numbers all."
        ) from None
    for name in Limits.__struct_fields__:
        value = getattr(limits, name)
        if value is not None and not 1 <= value <= _MOST:
            raise Invalid(
                f"{name} cannot be {value}; give a number above 0, or none for no limit.",
                field=name,
            )
    return limits
