"""What those who took part wrote down for themselves, each line the moment it was true.

A line is one `write` to a file opened for appending, on a disk that is never full: a process that
is killed has written it or not. Times are of the machine's steady clock, which nobody moves.
"""

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from corral.kernel.states import TransitionTable


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """Something that a worker did and the store said yes to, or that it did in the world."""

    what: str
    subject: str
    who: str
    began: float
    ended: float
    fence: int | None = None
    """What the store gave, or was shown and took."""
    mailbox: str | None = None
    key: str | None = None


class StoreEvent(msgspec.Struct):
    """One line of the store's own record."""

    kind: str
    verb: str
    subject: str
    data: Any = None


class AttemptRecord(msgspec.Struct):
    """What an agent wrote down of one of its attempts, and what the store shows of it."""

    run: str
    pid: int
    wrote: int = 0
    """Lines of output that it has written for sure."""
    end: str | None = None
    """How it said that it would end: exit0, signal11."""
    shown: list[int] | None = None
    """The numbers of its lines in the output as it is shown; None: not asked for."""
    is_lossy: bool = False
    """Whether the end of its output may be missing: a terminal whose supervisor was killed."""


class History(msgspec.Struct):
    """All that the judgement may know."""

    moves: dict[str, TransitionTable]
    events: list[StoreEvent] = []
    notes: list[JournalEntry] = []
    runs: list[AttemptRecord] = []
    """Every attempt of every run, in the order in which they began."""
    seen: list[tuple[str, int]] = []
    """Things and their fences, as somebody who looked again and again saw them."""
    said: list[tuple[str, int]] = []
    """What people said on the platform: place and number."""
    heard: list[int] = []
    """The order in which Corral took that in: the platform mixes it up."""
    shown: list[tuple[str, int]] = []
    """The numbers that were answered there, in the order in which people see that."""
    left: list[str] = []
    """Processes that were still there at the end."""
    signalled: list[str] = []
    """Strangers who got a signal, or are gone."""


class Journal:
    """A file of notes."""

    def __init__(self, path: Path, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.who = who

    def note(self, what: str, subject: str, began: float, **more: Any) -> None:
        line = JournalEntry(what, subject, self.who, began, time.monotonic(), **more)
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def read_notes(folder: Path) -> list[JournalEntry]:
    return [
        msgspec.json.decode(line, type=JournalEntry)
        for file in sorted(folder.glob("*.notes"))
        for line in file.read_bytes().splitlines()
    ]
