"""The `TranscriptReader` protocol, and helpers for files of JSON lines.

A reader yields the facts of a transcript in order, with their times. Each item has the offset after
its line, from which a later call continues. The CLI may be writing the file: an incomplete last
line is left for the next call. A malformed line is skipped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec

from corral.adapters.providers.facts import DenialFact, TurnFact, UsageFact
from corral.adapters.providers.json_lines import MAX_LINE, decode_object

MAX_TITLE = 120


class TranscriptHead(msgspec.Struct, frozen=True):
    """The description of a transcript."""

    session: str
    """The provider's own id, by which the conversation is resumed."""
    cwd: str | None = None
    started_at: int | None = None
    title: str | None = None
    """The first line of the first user message."""
    version: str | None = None
    parent: str | None = None
    """The conversation that started this one as a sub-agent, or that this one is a fork of."""


class TranscriptItem(msgspec.Struct, frozen=True):
    """One fact of a transcript, its time, and the offset from which to continue."""

    at: int | None
    fact: TurnFact | UsageFact | DenialFact
    offset: int
    place: str | None = None
    """Identifies the fact in its transcript if the offset is not unique."""


class TranscriptReader(Protocol):
    """Finds and reads the transcripts of one CLI. A module per CLI has these functions."""

    RECORDS_PROCESSES: bool
    """Whether every process records its session. `list_sessions_since` is then needed only for a
    process that has ended."""
    RECORD_FILES: tuple[str, ...]
    """Globs of the files to read, relative to the data directory."""

    def get_root(self, env: Mapping[str, str]) -> Path:
        """Return the data directory of the CLI for a process with this environment."""
        ...

    def find_transcript(self, folder: Path, session: str) -> Path | None:
        """Return the transcript of a session; None if there is none yet."""
        ...

    def list_open_sessions(self, folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
        """List the sessions that these processes have open, according to the CLI's own files."""
        ...

    def list_sessions_since(self, folder: Path, cwd: str, started_at: int) -> list[str]:
        """List the sessions of a directory that started at `started_at` or later."""
        ...

    def list_subagent_transcripts(self, path: Path) -> list[Path]:
        """List the transcripts of sub-agents, of which only the usage is recorded."""
        ...

    def read_head(self, path: Path) -> TranscriptHead | None:
        """Return the description of a transcript; None if the file is not a transcript."""
        ...

    def iter_items(self, path: Path, *, offset: int = 0) -> Iterator[TranscriptItem]:
        """Yield the facts from `offset` on."""
        ...


# Providers with a reader in this package.
READABLE_PROVIDERS = frozenset({"claude", "codex", "copilot", "gemini", "opencode", "qwen"})


def get_reader(provider: str) -> TranscriptReader | None:
    """Return the reader of a provider; None if there is none."""
    if provider not in READABLE_PROVIDERS:
        return None
    reader: Any = import_module(f"corral.adapters.transcripts.{provider}")
    return reader  # type: ignore[no-any-return]


def filter_sessions_since(
    files: Iterable[Path],
    read_head: Callable[[Path], TranscriptHead | None],
    cwd: str,
    started_at: int,
) -> list[str]:
    """List the sessions of a directory that started at `started_at` or later.

    Sessions of sub-agents are excluded.
    """
    sessions = []
    for path in files:
        if not path.is_file() or path.stat().st_mtime * 1_000 < started_at:
            continue
        transcript = read_head(path)
        if transcript is None or transcript.cwd != cwd or transcript.parent is not None:
            continue
        if (transcript.started_at or 0) >= started_at:
            sessions.append(transcript.session)
    return sessions


def list_sessions_of_pids(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """List the sessions in `<pid>.json` files.

    A file older than the run was left by an earlier process with the same pid.
    """
    sessions = []
    for pid in pids:
        try:
            path = folder / f"{pid}.json"
            content = path.read_bytes() if path.stat().st_mtime * 1_000 >= started_at else b""
        except OSError:
            continue
        record = decode_object(content.strip()) or {}
        session = record.get("sessionId")
        if isinstance(session, str) and session:
            sessions.append(session)
    return sessions


def iter_lines(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the JSON object of each complete line from `offset` on, and the offset after it."""
    with path.open("rb") as file:
        file.seek(offset)
        while line := file.readline(MAX_LINE):
            if not line.endswith(b"\n"):
                if len(line) < MAX_LINE:
                    return  # the line is incomplete: the CLI is writing it
                line += _rest_of_line(file)
            offset = file.tell()
            message = decode_object(line.strip()) if len(line) <= MAX_LINE else None
            if message is not None:
                yield message, offset


def iter_lines_before(path: Path, offset: int, needle: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of the lines before `offset` that contain `needle`.

    They restore the state that a reader needs to continue at the offset.
    """
    with path.open("rb") as file:
        while file.tell() < offset and (line := file.readline(MAX_LINE)):
            if needle in line and (message := decode_object(line.strip())) is not None:
                yield message


def _rest_of_line(file: Any) -> bytes:
    """Skip the rest of an overlong line; return the byte that makes it exceed the limit."""
    while (piece := file.readline(MAX_LINE)) and not piece.endswith(b"\n"):
        pass
    return b"\n"


def parse_time(value: Any) -> int | None:
    """Return an ISO 8601 time in milliseconds; None if the value is not one."""
    if not isinstance(value, str) or not 10 <= len(value) <= 40:
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1_000)


def make_title(content: str) -> str | None:
    """Return the first non-blank line, truncated; None for blank text."""
    line = next((line.strip() for line in content.splitlines() if line.strip()), "")
    return (line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1]}…") or None
