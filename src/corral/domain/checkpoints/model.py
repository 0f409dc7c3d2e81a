"""A checkpoint is the state of a framework's thread after a step.

Its writes are the results of the tasks of the next step that have finished. The contents belong to
the framework: Corral stores bytes and knows which rows belong together.
"""

from typing import Any

import msgspec


class CheckpointWrite(msgspec.Struct, frozen=True):
    """A value that a task of a step wrote to a channel."""

    ns: str
    checkpoint: str
    task: str
    position: int
    path: str
    channel: str
    format: str
    value: bytes


class NewCheckpointWrite(msgspec.Struct, frozen=True):
    """A write to store."""

    position: int
    channel: str
    format: str
    value: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    """The saved state of a thread, with its pending writes."""

    seq: int
    thread: str
    ns: str
    id: str
    parent: str | None
    format: str
    body: bytes
    metadata: dict[str, Any]
    at: int
    writes: list[CheckpointWrite] = []
    """In the order in which the framework applies them."""


class CheckpointInfo(msgspec.Struct, frozen=True):
    """A checkpoint without its state, for lists."""

    seq: int
    thread: str
    ns: str
    id: str
    parent: str | None
    bytes: int
    at: int


class CheckpointHead(msgspec.Struct, frozen=True):
    """The latest checkpoint of a namespace of a thread."""

    ns: str
    id: str
