"""The records that the host writes to `inbound.db` and reads from `outbound.db`."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec


class InboundRow(msgspec.Struct, frozen=True):
    """A message for the sandbox."""

    id: str
    kind: Literal["chat", "task", "system"]
    timestamp: int
    content: str
    tries: int = 0
    platform_id: str | None = None
    channel_type: str | None = None
    thread_id: str | None = None


class DestinationRow(msgspec.Struct, frozen=True):
    """A name that the agent may send to."""

    name: str
    display_name: str | None
    type: Literal["channel", "agent"]
    channel_type: str | None = None
    platform_id: str | None = None
    agent_group_id: str | None = None


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """The outcome of a message from the sandbox."""

    message_out_id: str
    platform_message_id: str | None
    status: Literal["delivered", "failed", "unknown"]
    delivered_at: int


class InboundView(msgspec.Struct, frozen=True):
    """The content that `inbound.db` should have. None leaves that part unchanged."""

    rows: Sequence[InboundRow] = ()
    """New messages. Messages that the file has already stay unchanged."""
    ended: Mapping[str, str] = {}
    """Messages that have ended, with their status: completed or failed."""
    only: bool = False
    """Whether pending messages that are not among `rows` become failed."""
    destinations: Sequence[DestinationRow] | None = None
    routing: tuple[str | None, str | None, str | None] | None = None
    """Channel, place and thread of the default reply."""
    outcomes: Sequence[DeliveryOutcome] = ()
    above: int = 0
    """The largest number that the sandbox is known to have used: new numbers are above it."""


class ViewState(msgspec.Struct, frozen=True):
    """The state of `inbound.db` after a write."""

    largest: int
    """The largest number that the host has used."""
    known: frozenset[str]
    """The messages of the sandbox whose outcome is in the file."""
    rebuilt: bool
    """Whether the file was missing or damaged and was created again."""


class OutboundRow(msgspec.Struct, frozen=True):
    """A message from the sandbox. Only its form is validated, its content is not trusted."""

    id: str
    seq: int
    kind: str
    content: str
    in_reply_to: str | None = None
    platform_id: str | None = None
    channel_type: str | None = None
    thread_id: str | None = None
    later: bool = False
    """Whether it asks for delayed or repeated delivery."""


class InvalidRow(NamedTuple):
    """A row with a forbidden number or with values of a wrong type or size."""

    id: str
    why: str


class OutboundSnapshot(msgspec.Struct, frozen=True):
    """The content of `outbound.db` at one moment."""

    rows: list[OutboundRow]
    """New messages, by number."""
    invalid: list[InvalidRow]
    old: frozenset[str]
    """The ids of messages that were ingested before."""
    acks: dict[str, str]
    """The status of each inbound message, as the sandbox reports it."""
    state: dict[str, str]
    """The agent's session state."""
