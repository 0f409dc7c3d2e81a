"""The host's side of `outbound.db`, which the sandbox writes and may write wrongly on purpose.

It is never opened as a database where it lies. Its bytes are read from a plain file that is no
link and no larger than it may be, under the lock by which a writer keeps readers out, and opened in
memory with everything turned off that a schema can do by itself. So nothing in it is executed, no
path in it is followed, and no journal of it is played back here: that may name any file of ours to
be deleted. Whoever is inside plays its own journals back.
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

from corral.adapters.sandbox_bridge.rows import Out, Snapshot, Strange
from corral.adapters.sandbox_bridge.schema import Folder

MOST_BYTES = 64 << 20
MOST_ROWS = 20_000
MOST_CONTENT = 1 << 20
MOST_AHEAD = 1_000_000
"""A number is no further than this above the largest that either side has used."""
MOST_STEPS = 20_000_000  # of SQLite's own, for the whole file
WAIT_SECONDS = 1.0
MOST_ASIDE = 3
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
# Where SQLite keeps its locks in a file.
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
_TABLE = b"CREATE TABLE".hex().upper()  # and not CREATE VIRTUAL TABLE


class Busy(Exception):
    """Somebody inside is writing it, or holds it: look again later."""


class Torn(Exception):
    """Whoever wrote it died in the middle; it has to be mended inside first."""


class Damaged(Exception):
    """The agent's program cannot have written this file. `details["reason"]` is the cause."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.details = {"reason": reason}


def stamp(folder: Folder) -> tuple[int, int, int] | None:
    """Something that changes when the file does; None while there is none."""
    try:
        found = os.lstat(folder.outbound)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def put_aside(folder: Folder) -> str:
    """Move a file that is not believed out of the way, and its journal; gives the folder in which
    they are now. The inside begins a new one; of those before, the newest are kept."""
    before = sorted(Path(folder.top).glob("refused-*"), key=lambda each: each.stat().st_mtime)
    for each in before[: -(MOST_ASIDE - 1)]:
        shutil.rmtree(each, ignore_errors=True)
    aside = tempfile.mkdtemp(prefix="refused-", dir=folder.top)
    for name in os.listdir(folder.outside):
        if name.startswith("outbound.db"):
            with suppress(OSError):
                os.rename(os.path.join(folder.outside, name), os.path.join(aside, name))
    return aside


def begin_turn(folder: Folder, run_id: str) -> bool:
    """A run's turn begins here. What another run said, and nobody has taken over, is put aside: its
    turn was ended by another machine, and its letters were given out again. Whether there was."""
    try:
        before = Path(folder.turn).read_text(encoding="utf-8")
    except FileNotFoundError:
        before = run_id
    if before != run_id:
        put_aside(folder)
    part = f"{folder.turn}.new"
    with open(part, "w", encoding="utf-8") as file:
        file.write(run_id)
    os.replace(part, folder.turn)
    return before != run_id


def end_turn(folder: Folder) -> None:
    """All that it said is taken over."""
    with suppress(FileNotFoundError):
        os.unlink(folder.turn)


def read(folder: Folder, *, taken: int, above: int) -> Snapshot:
    """What the inside has written: messages with numbers over `taken`, acks and state. `above` is
    the largest number that the host gave.

    Raises Busy, Torn or Damaged; nothing else, whatever the file is.
    """
    data = _bytes_of(folder)
    if not data:
        return Snapshot([], [], frozenset(), {}, {})
    if data[:16] != b"SQLite format 3\0":
        raise Damaged("it is no SQLite database", "not_sqlite")
    if data[18:20] != b"\1\1":
        raise Damaged("it is not in rollback-journal mode", "journal_mode")
    try:
        with _opened(data) as connection:
            _check_schema(connection)
            return _told(connection, taken, max(taken, above))
    except apsw.InterruptError:
        raise Damaged("reading it takes for ever", "too_slow") from None
    except apsw.Error as error:
        raise Damaged(f"it cannot be read ({type(error).__name__})", "unreadable") from None
    except UnicodeDecodeError:
        raise Damaged("it holds text that is not UTF-8", "not_utf8") from None


# -- the bytes ------------------------------------------------------------------------------------


def _bytes_of(folder: Folder) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(folder.outbound, flags)
    except FileNotFoundError:
        return b""
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.EMLINK)
        raise Damaged(
            "it is a link" if link else f"it cannot be opened: {error.strerror}",
            "symlink" if link else "unreadable",
        ) from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Damaged("it is no plain file", "not_a_file")
        if found.st_nlink != 1:
            raise Damaged("it has several names", "hard_linked")
        _lock(handle)
        if _is_torn(folder, handle):
            raise Torn
        size = os.fstat(handle).st_size
        if size > MOST_BYTES:
            raise Damaged(f"it has more than {MOST_BYTES:,} bytes", "too_large")
        return _read(handle, size)
    finally:
        os.close(handle)  # the locks go with it


def _read(handle: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.read(handle, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _lock(handle: int) -> None:
    """Keep writers from changing the file, as any reader of it does."""
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
                raise Busy from None
        time.sleep(0.005)


def _is_torn(folder: Folder, handle: int) -> bool:
    """Whether a journal is there that nobody works with: half of a change may be in the file."""
    try:
        journal = os.lstat(f"{folder.outbound}-journal")
    except OSError:
        return False
    if journal.st_size == 0 and stat.S_ISREG(journal.st_mode):
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, RESERVED)
    except OSError:
        return False  # a writer lives, and has not touched the file: we keep it from doing so
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
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.limit(apsw.SQLITE_LIMIT_COLUMN, 50)
        connection.limit(apsw.SQLITE_LIMIT_EXPR_DEPTH, 50)
        connection.execute("PRAGMA cell_size_check = ON")
        steps = iter(range(MOST_STEPS // 1_000))
        connection.set_progress_handler(lambda: next(steps, None) is None, 1_000)
        connection.authorizer = _allow
        yield connection


def _allow(action: int, first: Any, second: Any, *_: Any) -> int:
    """Reading, by the few functions that our own questions use; nothing else is prepared."""
    if action in (apsw.SQLITE_SELECT, apsw.SQLITE_READ):
        return int(apsw.SQLITE_OK)
    if action == apsw.SQLITE_FUNCTION and second in FUNCTIONS:
        return int(apsw.SQLITE_OK)
    if action == apsw.SQLITE_PRAGMA and first == "table_xinfo":
        return int(apsw.SQLITE_OK)
    return int(apsw.SQLITE_DENY)


def _check_schema(connection: apsw.Connection) -> None:
    """Plain tables with the columns that they have, and their indexes; nothing that acts."""
    found = connection.execute(
        "SELECT type, name, hex(substr(sql, 1, 12)) FROM sqlite_schema LIMIT 100"
    ).fetchall()
    if len(found) >= 100:
        raise Damaged("it has too many tables", "too_many_tables")
    kinds = {name: (kind, sql) for kind, name, sql in found}
    if any(kind not in ("table", "index") for kind, _ in kinds.values()):
        raise Damaged("it has triggers or views", "triggers_or_views")
    for table, columns in TABLES.items():
        kind, sql = kinds.get(table, (None, None))
        if kind != "table" or sql != _TABLE:
            raise Damaged(f"its table {table} is missing, or is none", "missing_table")
        told = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
        names = " ".join(str(column[1]) for column in told)
        if names != columns or any(column[6] for column in told):
            raise Damaged(f"its table {table} has other columns", "other_columns")


def _blob(column: str, most: int) -> str:
    """A column's bytes as they are, if it is a text that is short enough; 0 if not."""
    fits = f"typeof({column}) = 'text' AND octet_length({column}) <= {most}"
    return f"iif({fits}, CAST({column} AS BLOB), iif({column} IS NULL, NULL, 0))"


def _told(connection: apsw.Connection, taken: int, above: int) -> Snapshot:
    read = connection.execute(
        f"SELECT iif(typeof(seq) = 'integer', seq, NULL), {_blob('id', 100)}, "
        f"{_blob('in_reply_to', 200)}, {_blob('kind', 20)}, {_blob('platform_id', 400)}, "
        f"{_blob('channel_type', 200)}, {_blob('thread_id', 400)}, {_blob('deliver_after', 20)}, "
        f"{_blob('recurrence', 20)}, "
        f"iif(seq <= ?1, NULL, {_blob('content', MOST_CONTENT)}) "
        "FROM messages_out NOT INDEXED LIMIT ?2",
        (taken, MOST_ROWS + 1),
    )
    rows: list[Out] = []
    strange: list[Strange] = []
    old: set[str] = set()
    for count, (seq, *values) in enumerate(read):
        if count >= MOST_ROWS:
            raise Damaged(f"it has more than {MOST_ROWS:,} messages", "too_many_rows")
        try:
            id = _text(values[0]) or ""
        except ValueError:
            id = ""
        if not _ID.fullmatch(id):
            raise Damaged("a message has an id that nobody inside makes", "bad_id")
        why = _strangeness(seq, above)
        try:
            if why is None and seq <= taken:
                old.add(id)
            elif why is None:
                rows.append(_out(id, seq, *map(_text, values[1:])))
        except ValueError:
            why = "something in it is no text, or too long"
        if why is not None:
            strange.append(Strange(id, why))
    ids = [row.id for row in rows] + [each.id for each in strange]
    if len({*ids, *old}) != len(ids) + len(old) or len({row.seq for row in rows}) != len(rows):
        raise Damaged("it has an id or a number twice", "duplicate")
    return Snapshot(
        sorted(rows, key=lambda row: row.seq),
        strange,
        frozenset(old),
        _pairs(connection, "processing_ack", "message_id", "status", 20),
        _pairs(connection, "session_state", "key", "value", 8_000),
    )


def _out(
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
) -> Out:
    later = deliver_after is not None or recurrence is not None
    return Out(
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


def _strangeness(seq: int | None, above: int) -> str | None:
    if seq is None:
        return "its number is none"
    if seq < 1 or seq % 2 == 0:
        return f"{seq} is no number of the inside; those are odd"
    if seq > above + MOST_AHEAD:
        return f"{seq} is too far ahead"
    return None


def _text(value: bytes | int | None) -> str | None:
    """ValueError of what is no text that can be kept."""
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else "\0"
    if "\0" in text:
        raise ValueError
    return text


def _pairs(
    connection: apsw.Connection, table: str, key: str, value: str, most: int
) -> dict[str, str]:
    read = connection.execute(
        f"SELECT {_blob(key, 200)}, {_blob(value, most)} FROM {table} NOT INDEXED LIMIT {MOST_ROWS}"
    )
    found: dict[str, str] = {}
    for pair in read:
        with suppress(ValueError):
            name, said = map(_text, pair)
            if name is not None and said is not None:
                found[name] = said
    return found
