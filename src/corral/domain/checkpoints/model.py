"""A checkpoint is the state of a thread after a step; its writes are what parts of the next step
have done already.

What is in them is the framework's: Corral keeps the bytes, and knows what belongs together.
"""

from typing import Any

import msgspec


class Write(msgspec.Struct, frozen=True):
    """Something that a part of a step wrote to a channel."""

    ns: str
    checkpoint: str
    task: str
    place: int
    path: str
    channel: str
    format: str
    value: bytes


class NewWrite(msgspec.Struct, frozen=True):
    """A write to be kept."""

    place: int
    channel: str
    format: str
    value: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    seq: int
    thread: str
    ns: str
    id: str
    parent: str | None
    format: str
    body: bytes
    metadata: dict[str, Any]
    at: int
    writes: list[Write] = []
    """In the order in which the framework applies them."""


class Kept(msgspec.Struct, frozen=True):
    """A checkpoint, without its state."""

    seq: int
    thread: str
    ns: str
    id: str
    parent: str | None
    bytes: int
    at: int


class Head(msgspec.Struct, frozen=True):
    """The latest checkpoint of a part of a thread."""

    ns: str
    id: str
