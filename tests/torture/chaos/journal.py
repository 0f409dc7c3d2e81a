"""The participants' own records, written as soon as each fact is true.

A line is one `write` to a file opened for appending, on a disk that is never full: a killed process
has written a line completely or not at all. Times are those of the monotonic clock.
"""

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from corral.kernel.states import TransitionTable


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """An action of a worker that the store accepted, or that had an outside effect."""

    action: str
    subject: str
    worker: str
    started: float
    ended: float
    fence: int | None = None
    """The fence that the store returned or accepted."""
    mailbox: str | None = None
    key: str | None = None


class StoreEvent(msgspec.Struct):
    """One event of the store."""

    kind: str
    verb: str
    subject: str
    data: Any = None


class AttemptRecord(msgspec.Struct):
    """An agent's own record of an attempt, and what the store shows of it."""

    run: str
    pid: int
    wrote: int = 0
    """Lines of output that were certainly written."""
    end: str | None = None
    """How the agent intended to end: exit0, signal11."""
    shown: list[int] | None = None
    """The numbers of its lines in the shown output; None: not read."""
    is_lossy: bool = False
    """Whether the end of the output may be lost: a terminal whose supervisor was killed."""


class History(msgspec.Struct):
    """All input of the checker."""

    moves: dict[str, TransitionTable]
    events: list[StoreEvent] = []
    notes: list[JournalEntry] = []
    runs: list[AttemptRecord] = []
    """Every attempt of every run, in start order."""
    seen: list[tuple[str, int]] = []
    """Ids and their fences, as an observer polled them."""
    said: list[tuple[str, int]] = []
    """Messages that people posted: place and number."""
    heard: list[int] = []
    """The order in which Corral received them; the platform reorders."""
    shown: list[tuple[str, int]] = []
    """Answers in the order in which people see them: place and number."""
    left: list[str] = []
    """Processes that were still running at the end."""
    signalled: list[str] = []
    """Unrelated processes that got a signal or exited."""


class Journal:
    """A file of entries."""

    def __init__(self, path: Path, worker: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.worker = worker

    def record(self, action: str, subject: str, started: float, **details: Any) -> None:
        line = JournalEntry(action, subject, self.worker, started, time.monotonic(), **details)
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def read_entries(folder: Path) -> list[JournalEntry]:
    return [
        msgspec.json.decode(line, type=JournalEntry)
        for file in sorted(folder.glob("*.journal"))
        for line in file.read_bytes().splitlines()
    ]
