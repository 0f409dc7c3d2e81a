"""Reading a transcript: a file of JSON lines that its CLI may be writing at this moment.

A reader gives what each line says, in order, as facts with their time. It can go on where it
stopped: an item tells the offset behind its line, and a line that is not complete yet is left for
the next time. A line that cannot be read is passed over.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec

from corral.adapters.providers.facts import Denied, Said, Used
from corral.adapters.providers.lines import MAX_LINE, decode

MAX_TITLE = 120


class Head(msgspec.Struct, frozen=True):
    """What a transcript is about."""

    session: str
    """The provider's own id, with which the conversation can be resumed."""
    cwd: str | None = None
    started_at: int | None = None
    title: str | None = None
    """The first words of the person."""
    version: str | None = None
    parent: str | None = None
    """The conversation that this one is a part of or began as a copy of."""


class Item(msgspec.Struct, frozen=True):
    """One fact of a record, its time, and the offset from which to continue."""

    at: int | None
    fact: Said | Used | Denied
    offset: int
    place: str | None = None
    """Identifies the fact in its record where the offset is not unique."""


class TranscriptReader(Protocol):
    """Finds and reads the records of one CLI; each CLI has a module with these functions."""

    RECORDS_PROCESSES: bool
    """Whether each of its processes records which session it has, so that `since` is only asked
    for a process that has ended."""
    RECORD_FILES: tuple[str, ...]
    """Patterns of the files that are read, relative to `root`."""

    def root(self, env: Mapping[str, str]) -> Path:
        """The CLI's own folder, for a process with these variables."""
        ...

    def find(self, folder: Path, session: str) -> Path | None:
        """The record of a session; None while there is none."""
        ...

    def sessions_of(self, folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
        """The sessions that one of these processes has open, as the CLI itself records it."""
        ...

    def since(self, folder: Path, cwd: str, started_at: int) -> list[str]:
        """The sessions of a directory that began at `started_at` or later."""
        ...

    def children(self, path: Path) -> list[Path]:
        """The records of sub-agents, of which only the usage counts."""
        ...

    def head(self, path: Path) -> Head | None: ...

    def read(self, path: Path, *, offset: int = 0) -> Iterator[Item]: ...


# Providers whose records can be read.
READABLE = frozenset({"claude", "codex", "copilot", "gemini", "opencode", "qwen"})


def reader_of(provider: str) -> TranscriptReader | None:
    """Return the reader of a provider's records; None when its records cannot be read."""
    if provider not in READABLE:
        return None
    reader: Any = import_module(f"corral.adapters.transcripts.{provider}")
    return reader  # type: ignore[no-any-return]


def sessions_since(
    files: Iterable[Path], head: Callable[[Path], Head | None], cwd: str, started_at: int
) -> list[str]:
    """List the sessions of a directory that began at `started_at` or later, without those of
    sub-agents."""
    found = []
    for path in files:
        if not path.is_file() or path.stat().st_mtime * 1_000 < started_at:
            continue
        about = head(path)
        if about is None or about.cwd != cwd or about.parent is not None:
            continue
        if (about.started_at or 0) >= started_at:
            found.append(about.session)
    return found


def sessions_of_pids(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """List the sessions named by `<pid>.json` files. A file older than the run was left by an
    earlier process with the same pid."""
    found = []
    for pid in pids:
        try:
            path = folder / f"{pid}.json"
            content = path.read_bytes() if path.stat().st_mtime * 1_000 >= started_at else b""
        except OSError:
            continue
        about = decode(content.strip()) or {}
        session = about.get("sessionId")
        if isinstance(session, str) and session:
            found.append(session)
    return found


def lines_of(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Each complete line from `offset` on that is a JSON object, and the offset behind it."""
    with path.open("rb") as file:
        file.seek(offset)
        while line := file.readline(MAX_LINE):
            if not line.endswith(b"\n"):
                if len(line) < MAX_LINE:
                    return  # it is being written
                line += _rest_of_line(file)
            offset = file.tell()
            message = decode(line.strip()) if len(line) <= MAX_LINE else None
            if message is not None:
                yield message, offset


def lines_before(path: Path, offset: int, needle: bytes) -> Iterator[dict[str, Any]]:
    """The lines before `offset` that hold some bytes: what a reading must know to go on there."""
    with path.open("rb") as file:
        while file.tell() < offset and (line := file.readline(MAX_LINE)):
            if needle in line and (message := decode(line.strip())) is not None:
                yield message


def _rest_of_line(file: Any) -> bytes:
    """Pass over the rest of a line that is too long; the one byte says that it was."""
    while (piece := file.readline(MAX_LINE)) and not piece.endswith(b"\n"):
        pass
    return b"\n"


def moment(value: Any) -> int | None:
    """Milliseconds of a time as the CLIs write it; None when it is none."""
    if not isinstance(value, str) or not 10 <= len(value) <= 40:
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1_000)


def title_of(words: str) -> str | None:
    line = next((line.strip() for line in words.splitlines() if line.strip()), "")
    return (line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1]}…") or None
