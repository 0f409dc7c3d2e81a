"""An output is everything a run wrote; a log line is a message about the run, with a level.

The bytes are in files on the machine of the run. In a store that several machines share, sealed
outputs are in the store as well. The row says which, and contains the head and the tail.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import TransitionTable, allow


class OutputState(StrEnum):
    OPEN = "open"  # its file may still grow
    SEALED = "sealed"  # complete, compressed, with a hash
    LOST = "lost"  # its files are missing
    DELETED = "deleted"  # deleted on request or by retention


TRANSITIONS = TransitionTable(
    "output",
    OutputState,
    create_verb="begin",
    initial=OutputState.OPEN,
    verbs={
        # A lost output can be sealed when its machine comes back.
        "seal": allow(OutputState.OPEN, OutputState.LOST, to=OutputState.SEALED),
        "lose": allow(OutputState.OPEN, OutputState.SEALED, to=OutputState.LOST),
        # The run continues on another machine; its earlier output is lost.
        "reopen": allow(OutputState.LOST, to=OutputState.OPEN),
        "delete": allow(
            OutputState.OPEN, OutputState.SEALED, OutputState.LOST, to=OutputState.DELETED
        ),
    },
)

CHUNK_BYTES = 1024 * 1024
"""The maximum size of one row of a sealed file, where the store contains it."""

STREAMS = ("output", "stderr")


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Output(msgspec.Struct, frozen=True):
    """The output of a run."""

    id: str
    """The id of the run."""
    state: OutputState
    host: str
    folder: str | None
    mode: str
    bytes: int
    lines: int | None
    sha256: str | None
    dropped_bytes: int
    text_bytes: int | None
    sealed_bytes: int | None
    stderr_bytes: int | None
    utf8: int | None
    head: str | None
    tail: str | None
    reason: str | None
    created_at: int
    sealed_at: int | None
    deleted_at: int | None

    @property
    def ends_kept(self) -> str:
        """A hint how to read the stored head and tail without the files."""
        query = f"SELECT head, tail FROM outputs WHERE run_id = '{self.id}'"
        return f'Its head and tail are stored: `corral db sql "{query}"`.'


class LogLine(msgspec.Struct, frozen=True):
    """One line of a run's log."""

    id: str
    run_id: str
    at: int
    level: LogLevel
    message: str
    metadata: Any
    source: str | None
