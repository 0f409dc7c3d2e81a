"""Rows of the two files, as the host knows them: what it shows, and what it was told."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec


class Row(msgspec.Struct, frozen=True):
    """A message for the inside."""

    id: str
    kind: Literal["chat", "task", "system"]
    timestamp: int
    content: str
    tries: int = 0
    platform_id: str | None = None
    channel_type: str | None = None
    thread_id: str | None = None


class Target(msgspec.Struct, frozen=True):
    """A name that the agent may send to."""

    name: str
    display_name: str | None
    type: Literal["channel", "agent"]
    channel_type: str | None = None
    platform_id: str | None = None
    agent_group_id: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What became of a message of the inside."""

    message_out_id: str
    platform_message_id: str | None
    status: Literal["delivered", "failed", "unknown"]
    delivered_at: int


class Picture(msgspec.Struct, frozen=True):
    """What the file is to show; None: that part stays as it is."""

    rows: Sequence[Row] = ()
    """New messages; those that are there already stay as they are."""
    ended: Mapping[str, str] = {}
    """Messages that are over, with their state: completed or failed."""
    only: bool = False
    """Whether messages that are still open, and not among `rows`, failed."""
    destinations: Sequence[Target] | None = None
    routing: tuple[str | None, str | None, str | None] | None = None
    """Channel, place and thread of the default reply."""
    outcomes: Sequence[Outcome] = ()
    above: int = 0
    """The largest number of the other side that is known: new ones are above it."""


class Shown(msgspec.Struct, frozen=True):
    """What the file shows now."""

    largest: int
    """The largest number that the host gave."""
    known: frozenset[str]
    """The messages of the inside whose outcome it tells."""
    rebuilt: bool
    """Whether it was missing or damaged, and is new."""


class Out(msgspec.Struct, frozen=True):
    """A message of the inside, as far as its form goes; what it says is not believed yet."""

    id: str
    seq: int
    kind: str
    content: str
    in_reply_to: str | None = None
    platform_id: str | None = None
    channel_type: str | None = None
    thread_id: str | None = None
    later: bool = False
    """Whether it is to be sent later, or again and again."""


class Strange(NamedTuple):
    """A row that the inside has no right to, or that is not what its column says."""

    id: str
    why: str


class Snapshot(msgspec.Struct, frozen=True):
    """What the file says at one moment."""

    rows: list[Out]
    """New messages, in the order of their numbers."""
    strange: list[Strange]
    old: frozenset[str]
    """The messages with numbers that were taken before."""
    acks: dict[str, str]
    state: dict[str, str]
