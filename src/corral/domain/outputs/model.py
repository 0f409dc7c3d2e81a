"""An output is all that a run wrote; a log line is something said about it, with a level.

The bytes are in files of the machine on which the run ran, and, in stores that several machines
share, in the store too once they are sealed. The row says which, and holds the head and the tail.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import Moves, move


class OutputState(StrEnum):
    OPEN = "open"  # its file may still grow
    SEALED = "sealed"  # whole, packed, and known by its hash
    LOST = "lost"  # its files are gone, or were never found
    DELETED = "deleted"  # somebody, or its retention, had it removed


S = OutputState
MOVES = Moves(
    "output",
    OutputState,
    begin="begin",
    initial=S.OPEN,
    verbs={
        # What was lost with a machine may come back with it.
        "seal": move(S.OPEN, S.LOST, to=S.SEALED),
        "lose": move(S.OPEN, S.SEALED, to=S.LOST),
        # The run goes on elsewhere; what it wrote before is lost.
        "reopen": move(S.LOST, to=S.OPEN),
        "delete": move(S.OPEN, S.SEALED, S.LOST, to=S.DELETED),
    },
)

CHUNK = 1024 * 1024
"""Bytes of a sealed file in one row, where the store keeps them."""

STREAMS = ("output", "errors")


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Output(msgspec.Struct, frozen=True):
    id: str
    """The run's."""
    state: OutputState
    host: str
    folder: str | None
    mode: str
    bytes: int
    lines: int | None
    sha256: str | None
    cut_bytes: int
    text_bytes: int | None
    sealed_bytes: int | None
    errors_bytes: int | None
    utf8: int | None
    head: str | None
    tail: str | None
    reason: str | None
    created_at: int
    sealed_at: int | None
    deleted_at: int | None

    @property
    def ends_kept(self) -> str:
        """Where its ends are to be seen without its files."""
        asked = f"SELECT head, tail FROM outputs WHERE run_id = '{self.id}'"
        return f'How it begins and ends is kept: `corral db sql "{asked}"`.'


class LogLine(msgspec.Struct, frozen=True):
    id: str
    run_id: str
    at: int
    level: Level
    message: str
    metadata: Any
    source: str | None
