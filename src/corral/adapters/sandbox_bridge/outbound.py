"""The host's side of `outbound.db`, which a hostile sandbox may write.

The host never opens the file as a database in place. It reads the bytes of a regular file of
limited size, under SQLite's shared lock, and opens them in memory with triggers, views, extensions
and all functions but a few disabled. So nothing in the file is executed and no path in it is
followed. A journal is never replayed here, because it can name any file of the host for deletion.
The sandbox replays its own journals.
"""

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from corral.adapters.sandbox_bridge.rows import InvalidRow, OutboundRow, OutboundSnapshot
from corral.adapters.sandbox_bridge.schema import SessionFolder

MAX_BYTES = 64 << 20
MAX_ROWS = 20_000
MAX_CONTENT = 1 << 20
MAX_AHEAD = 1_000_000
"""Maximum distance of a number from the largest one that either side has used."""
MAX_STEPS = 20_000_000  # virtual machine instructions for one read
WAIT_SECONDS = 1.0
MAX_QUARANTINED = 3
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
# The byte ranges of SQLite's file locks.
PENDING, RESERVED, SHARED, SHARED_BYTES = 0x4000_0000, 0x4000_0001, 0x4000_0002, 510
TABLES = {
    "messages_out": (
        "id seq in_reply_to timestamp deliver_after recurrence kind platform_id channel_type "
        "thread_id content"
    ),
    "processing_ack": "message_id status status_changed",
    "session_state": "key value updated_at",
}
FUNCTIONS = frozenset({"typeof", "octet_length", "substr", "iif", "hex"})
_CREATE_TABLE = b"CREATE TABLE".hex().upper()  # excludes CREATE VIRTUAL TABLE


class FileBusy(Exception):
    """The sandbox holds a lock on the file. Retry later."""


class HotJournal(Exception):
    """The writer was killed during a transaction. The sandbox must roll back its journal first."""


class InvalidFile(Exception):
    """The file is not one that the sandbox's client writes.

    The message says why; `details["reason"]` is a code for the same cause.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.details = {"reason": reason}


def file_stamp(folder: SessionFolder) -> tuple[int, int, int] | None:
    """Return a value that changes with the file; None when the file does not exist."""
    try:
        info = os.lstat(folder.outbound)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def quarantine(folder: SessionFolder) -> str:
    """Move an invalid file and its journal into a folder of their own; return that folder.

    The sandbox begins a new file. Only the newest quarantined files are kept.
    """
    older = sorted(Path(folder.top).glob("refused-*"), key=lambda path: path.stat().st_mtime)
    for path in older[: -(MAX_QUARANTINED - 1)]:
        shutil.rmtree(path, ignore_errors=True)
    quarantine_folder = tempfile.mkdtemp(prefix="refused-", dir=folder.top)
    for name in os.listdir(folder.outside):
        if name.startswith("outbound.db"):
            with suppress(OSError):
                os.rename(os.path.join(folder.outside, name), os.path.join(quarantine_folder, name))
    return quarantine_folder


def begin_turn(folder: SessionFolder, run_id: str) -> bool:
    """Begin a run's turn on this machine; return whether the file of another run was quarantined.

    The turn of that run was ended by another machine and its letters were given out again, so its
    messages must not be ingested.
    """
    try:
        before = Path(folder.turn).read_text(encoding="utf-8")
    except FileNotFoundError:
        before = run_id
    if before != run_id:
        quarantine(folder)
    temporary = f"{folder.turn}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(run_id)
    os.replace(temporary, folder.turn)
    return before != run_id


def end_turn(folder: SessionFolder) -> None:
    """End the turn: all its messages are ingested."""
    with suppress(FileNotFoundError):
        os.unlink(folder.turn)


def read_snapshot(folder: SessionFolder, *, ingested_seq: int, above: int) -> OutboundSnapshot:
    """Read messages with numbers above `ingested_seq`, acknowledgements and session state.

    `above` is the largest number that the host has used. Raises only FileBusy, HotJournal or
    InvalidFile, whatever the file contains.
    """
    data = _read_bytes(folder)
    if not data:
        return OutboundSnapshot([], [], frozenset(), {}, {})
    if data[:16] != b"SQLite format 3\0":
        raise InvalidFile("it is not an SQLite database", "not_sqlite")
    if data[18:20] != b"\1\1":
        raise InvalidFile("it is not in rollback-journal mode", "journal_mode")
    try:
        with _opened(data) as connection:
            _check_schema(connection)
            return _read_tables(connection, ingested_seq, max(ingested_seq, above))
    except apsw.InterruptError:
        raise InvalidFile("reading it takes too long", "too_slow") from None
    except apsw.Error as error:
        raise InvalidFile(f"it cannot be read ({type(error).__name__})", "unreadable") from None
    except UnicodeDecodeError:
        raise InvalidFile("it holds text that is not UTF-8", "not_utf8") from None


# -- the bytes ------------------------------------------------------------------------------------


def _read_bytes(folder: SessionFolder) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(folder.outbound, flags)
    except FileNotFoundError:
        return b""
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.EMLINK)
        raise InvalidFile(
            "it is a link" if link else f"it cannot be opened: {error.strerror}",
            "symlink" if link else "unreadable",
        ) from None
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise InvalidFile("it is not a regular file", "not_a_file")
        if info.st_nlink != 1:
            raise InvalidFile("it has several hard links", "hard_linked")
        _lock(handle)
        if _has_hot_journal(folder, handle):
            raise HotJournal
        size = os.fstat(handle).st_size
        if size > MAX_BYTES:
            raise InvalidFile(f"it has more than {MAX_BYTES:,} bytes", "too_large")
        return _read_fully(handle, size)
    finally:
        os.close(handle)  # releases the locks


def _read_fully(handle: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.read(handle, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _lock(handle: int) -> None:
    """Take SQLite's SHARED lock, as any reader does. It keeps writers from changing the file."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, PENDING)
            fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB, SHARED_BYTES, SHARED)
            fcntl.lockf(handle, fcntl.LOCK_UN, 1, PENDING)
            return
        except OSError:
            fcntl.lockf(handle, fcntl.LOCK_UN, 1, PENDING)
            if time.monotonic() > deadline:
                raise FileBusy from None
        time.sleep(0.005)


def _has_hot_journal(folder: SessionFolder, handle: int) -> bool:
    """Whether a journal exists without a live writer: the file may hold half a transaction."""
    try:
        journal = os.lstat(f"{folder.outbound}-journal")
    except OSError:
        return False
    if journal.st_size == 0 and stat.S_ISREG(journal.st_mode):
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, RESERVED)
    except OSError:
        return False  # a live writer, which cannot change the file under our lock
    return True


# -- the database ---------------------------------------------------------------------------------


@contextmanager
def _opened(data: bytes) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(":memory:")) as connection:
        connection.deserialize("main", data)
        for option, value in (
            (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
            (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
            (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
            (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
            (apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0),
        ):
            connection.config(option, value)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_BYTES)
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.limit(apsw.SQLITE_LIMIT_COLUMN, 50)
        connection.limit(apsw.SQLITE_LIMIT_EXPR_DEPTH, 50)
        connection.execute("PRAGMA cell_size_check = ON")
        steps = iter(range(MAX_STEPS // 1_000))
        connection.set_progress_handler(lambda: next(steps, None) is None, 1_000)
        connection.authorizer = _allow
        yield connection


def _allow(action: int, first: Any, second: Any, *_: Any) -> int:
    """Authorize only reads, with the few functions that our own queries use."""
    if action in (apsw.SQLITE_SELECT, apsw.SQLITE_READ):
        return int(apsw.SQLITE_OK)
    if action == apsw.SQLITE_FUNCTION and second in FUNCTIONS:
        return int(apsw.SQLITE_OK)
    if action == apsw.SQLITE_PRAGMA and first == "table_xinfo":
        return int(apsw.SQLITE_OK)
    return int(apsw.SQLITE_DENY)


def _check_schema(connection: apsw.Connection) -> None:
    """Accept only ordinary tables with the expected columns, and indexes."""
    rows = connection.execute(
        "SELECT type, name, hex(substr(sql, 1, 12)) FROM sqlite_schema LIMIT 100"
    ).fetchall()
    if len(rows) >= 100:
        raise InvalidFile("it has too many tables", "too_many_tables")
    kinds = {name: (kind, sql) for kind, name, sql in rows}
    if any(kind not in ("table", "index") for kind, _ in kinds.values()):
        raise InvalidFile("it has triggers or views", "triggers_or_views")
    for table, columns in TABLES.items():
        kind, sql = kinds.get(table, (None, None))
        if kind != "table" or sql != _CREATE_TABLE:
            raise InvalidFile(f"its table {table} is missing or not a table", "missing_table")
        info = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
        names = " ".join(str(column[1]) for column in info)
        if names != columns or any(column[6] for column in info):
            raise InvalidFile(f"its table {table} has unexpected columns", "other_columns")


def _as_blob(column: str, limit: int) -> str:
    """Return SQL for the bytes of a text column within a limit; 0 for any other value."""
    fits = f"typeof({column}) = 'text' AND octet_length({column}) <= {limit}"
    return f"iif({fits}, CAST({column} AS BLOB), iif({column} IS NULL, NULL, 0))"


def _read_tables(connection: apsw.Connection, ingested_seq: int, above: int) -> OutboundSnapshot:
    cursor = connection.execute(
        f"SELECT iif(typeof(seq) = 'integer', seq, NULL), {_as_blob('id', 100)}, "
        f"{_as_blob('in_reply_to', 200)}, {_as_blob('kind', 20)}, {_as_blob('platform_id', 400)}, "
        f"{_as_blob('channel_type', 200)}, {_as_blob('thread_id', 400)}, "
        f"{_as_blob('deliver_after', 20)}, {_as_blob('recurrence', 20)}, "
        f"iif(seq <= ?1, NULL, {_as_blob('content', MAX_CONTENT)}) "
        "FROM messages_out NOT INDEXED LIMIT ?2",
        (ingested_seq, MAX_ROWS + 1),
    )
    rows: list[OutboundRow] = []
    invalid: list[InvalidRow] = []
    old: set[str] = set()
    for count, (seq, *values) in enumerate(cursor):
        if count >= MAX_ROWS:
            raise InvalidFile(f"it has more than {MAX_ROWS:,} messages", "too_many_rows")
        try:
            id = _decode_text(values[0]) or ""
        except ValueError:
            id = ""
        if not _ID.fullmatch(id):
            raise InvalidFile("a message has an invalid id", "bad_id")
        reason = _check_number(seq, above)
        try:
            if reason is None and seq <= ingested_seq:
                old.add(id)
            elif reason is None:
                rows.append(_build_row(id, seq, *map(_decode_text, values[1:])))
        except ValueError:
            reason = "a value is not text or is too long"
        if reason is not None:
            invalid.append(InvalidRow(id, reason))
    ids = [row.id for row in rows] + [row.id for row in invalid]
    if len({*ids, *old}) != len(ids) + len(old) or len({row.seq for row in rows}) != len(rows):
        raise InvalidFile("it has a duplicate id or number", "duplicate")
    return OutboundSnapshot(
        sorted(rows, key=lambda row: row.seq),
        invalid,
        frozenset(old),
        _read_pairs(connection, "processing_ack", "message_id", "status", 20),
        _read_pairs(connection, "session_state", "key", "value", 8_000),
    )


def _build_row(
    id: str,
    seq: int,
    in_reply_to: str | None,
    kind: str | None,
    platform_id: str | None,
    channel_type: str | None,
    thread_id: str | None,
    deliver_after: str | None,
    recurrence: str | None,
    content: str | None,
) -> OutboundRow:
    later = deliver_after is not None or recurrence is not None
    return OutboundRow(
        id,
        seq,
        kind or "",
        content or "",
        in_reply_to=in_reply_to,
        platform_id=platform_id,
        channel_type=channel_type,
        thread_id=thread_id,
        later=later,
    )


def _check_number(seq: int | None, above: int) -> str | None:
    if seq is None:
        return "its number is not an integer"
    if seq < 1 or seq % 2 == 0:
        return f"{seq} is not a number of the sandbox, which are odd"
    if seq > above + MAX_AHEAD:
        return f"{seq} is too far ahead"
    return None


def _decode_text(value: bytes | int | None) -> str | None:
    """Decode a value of `_as_blob`; raises ValueError for anything but text without NUL."""
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else "\0"
    if "\0" in text:
        raise ValueError
    return text


def _read_pairs(
    connection: apsw.Connection, table: str, key: str, value: str, limit: int
) -> dict[str, str]:
    cursor = connection.execute(
        f"SELECT {_as_blob(key, 200)}, {_as_blob(value, limit)} FROM {table} NOT INDEXED "
        f"LIMIT {MAX_ROWS}"
    )
    pairs: dict[str, str] = {}
    for row in cursor:
        with suppress(ValueError):
            name, text = map(_decode_text, row)
            if name is not None and text is not None:
                pairs[name] = text
    return pairs
