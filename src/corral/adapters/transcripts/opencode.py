"""opencode's transcripts: the database `~/.local/share/opencode/opencode.db`, opened read-only.

A part of a message is a row that changes until it is complete. The offset of an item is the time of
the row's last change, so `read` can yield a row of that same millisecond again, with the same key
and place. Sessions of sub-agents name their parent; their usage counts.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from corral.adapters.providers.facts import DenialFact, TurnFact, UsageFact
from corral.adapters.providers.json_lines import (
    get_dict,
    get_int,
    get_micros,
    get_text,
    shorten,
    text_facts,
    tool_call,
    tool_result,
)
from corral.adapters.providers.opencode import is_denial
from corral.adapters.transcripts.reader import TranscriptHead, TranscriptItem, make_title

DATABASE = "opencode.db"
MAX_SECONDS = 5.0
MAX_VALUE = 32 << 20
MAX_SIZE = 256 << 20

_SESSIONS = """
    WITH RECURSIVE family(id) AS (
        SELECT :session UNION SELECT session.id FROM session JOIN family ON parent_id = family.id
    )
"""
# The index on the session makes this cheap; rows older than the offset are filtered out.
_PARTS = f"""
    {_SESSIONS}
    SELECT part.id, part.session_id, part.time_created, part.time_updated, part.data, message.data
    FROM part JOIN message ON message.id = part.message_id
    WHERE part.session_id IN (SELECT id FROM family) AND part.time_updated >= :offset
    ORDER BY part.time_updated, part.id
"""
_HEAD = "SELECT directory, time_created, title, version, parent_id FROM session WHERE id = :session"
_SINCE = """
    SELECT id FROM session
    WHERE directory = :cwd AND time_created >= :started_at AND parent_id IS NULL
"""

RECORDS_PROCESSES = False
# The WAL first: pages that a checkpoint moves in the meantime are then in both copies.
RECORD_FILES = ("opencode.db-wal", "opencode.db")


def get_root(env: Mapping[str, str]) -> Path:
    data = env.get("XDG_DATA_HOME")
    return Path(data or Path(env.get("HOME") or Path.home()) / ".local/share") / "opencode"


def find_transcript(folder: Path, session: str) -> Path | None:
    """Return a path that names one session: the database's path, then the session id."""
    path = folder / DATABASE
    return path / session if path.is_file() and read_head(path / session) is not None else None


def list_open_sessions(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """Return nothing: opencode does not record which process has a session."""
    return []


def list_sessions_since(folder: Path, cwd: str, started_at: int) -> list[str]:
    """List the sessions of a directory that started at `started_at` or later."""
    rows = _rows(folder / DATABASE, _SINCE, cwd=cwd, started_at=started_at)
    return [str(id) for (id,) in rows]


def list_subagent_transcripts(path: Path) -> list[Path]:
    return []  # sub-agents are in the same database


def read_head(path: Path) -> TranscriptHead | None:
    for cwd, created, title, version, parent in _rows(path.parent, _HEAD, session=path.name):
        return TranscriptHead(
            path.name, str(cwd), int(created), make_title(str(title)), str(version), parent
        )
    return None


def iter_items(path: Path, *, offset: int = 0) -> Iterator[TranscriptItem]:
    """Yield the facts from `offset` on."""
    for id, session, created, updated, data, message in _rows(
        path.parent, _PARTS, session=path.name, offset=offset
    ):
        part, about = _json(data), _json(message)
        is_own = session == path.name
        for fact in _facts(str(id), part, about, own=is_own):
            yield TranscriptItem(int(created), fact, int(updated), str(id))


def _facts(
    id: str, part: dict[str, Any], about: dict[str, Any], *, own: bool
) -> list[TurnFact | UsageFact | DenialFact]:
    kind = part.get("type")
    if kind == "step-finish":
        return _usage(id, part, about)
    if not own:
        return []  # a sub-agent's messages are not part of this conversation
    if kind == "text":
        content = get_text(part, "text") or ""
        if about.get("role") == "user":
            return [TurnFact("user", shorten(content))] if content.strip() else []
        # The text of an answer is complete when it has an end time.
        is_over = bool(get_int(part, "time", "end"))
        return (
            [fact for fact in text_facts(content) if isinstance(fact, TurnFact)] if is_over else []
        )
    if kind == "tool":
        return _tool(part)
    return []


def _tool(part: dict[str, Any]) -> list[TurnFact | UsageFact | DenialFact]:
    call, name, state = get_text(part, "callID"), get_text(part, "tool"), get_dict(part, "state")
    status = get_text(state, "status")
    if status not in ("completed", "error"):
        return []
    failed = status == "error"
    content = get_text(state, "error" if failed else "output") or ""
    facts: list[TurnFact | UsageFact | DenialFact] = [
        tool_call(call, name, state.get("input")),
        tool_result(call, name, content, result=state.get("metadata"), is_error=failed),
    ]
    return [*facts, *([DenialFact(name or "?", call)] if failed and is_denial(content) else [])]


def _usage(
    id: str, part: dict[str, Any], about: dict[str, Any]
) -> list[TurnFact | UsageFact | DenialFact]:
    tokens = get_dict(part, "tokens")
    return [
        UsageFact(
            get_text(about, "modelID"),
            input=get_int(tokens, "input"),
            output=get_int(tokens, "output"),
            cache_read=get_int(tokens, "cache", "read"),
            cache_write=get_int(tokens, "cache", "write"),
            reasoning=get_int(tokens, "reasoning"),
            # opencode reports 0 for models whose prices it does not know.
            cost_micros=get_micros(part, "cost") or None,
            key=id,
        )
    ]


def _json(data: Any) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(str(data))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _rows(database: Path, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query on a database that another program may be writing.

    The result is empty if the database cannot be read or has another schema. Raises OSError if it
    does not exist. The program may be hostile: it can replace tables by views and generated
    columns. Therefore time, the size of a value and the size of all rows are bounded.
    """
    import apsw

    if not database.is_file():
        raise FileNotFoundError(str(database))
    until = time.monotonic() + MAX_SECONDS
    rows: list[tuple[Any, ...]] = []
    size = 0
    try:
        with closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as opened:
            opened.set_busy_timeout(500)
            opened.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_VALUE)
            opened.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            opened.execute("PRAGMA trusted_schema = OFF; PRAGMA mmap_size = 0")
            for row in opened.execute(statement, values):
                size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
                if size > MAX_SIZE:
                    return []
                rows.append(row)
            return rows
    except (apsw.Error, UnicodeError):
        return []
