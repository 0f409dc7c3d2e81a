"""Whole stores, from one file or engine to another.

A back-up is always a SQLite file: a SQLite store is copied as it is, and a PostgreSQL store is
written out into a new file with the same tables. So a back-up can be opened, looked into and
restored on either engine without any other tool.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from corral.db import store_move
from corral.db.bulk_copy import pour, raise_sequences
from corral.db.migrate import newest, open_schema
from corral.db.schema_drift import differences, made_until, shape_of, told, undoing, without_fence
from corral.db.sqlite import SqliteDatabase
from corral.db.sqlite_deferred_indexes import file_behind
from corral.db.sqlite_errors import translate
from corral.db.sqlite_maintenance import APPLICATION_ID, reading
from corral.db.statement import Statement
from corral.db.write_fence import AWAY, content, take_down
from corral.kernel.errors import Invalid
from corral.scratch_folders import scratch_folder

if TYPE_CHECKING:
    from corral.db.postgres import PostgresDatabase


def check_backup(path: Path) -> None:
    """Refuse what is no back-up of Corral's, or of a newer Corral; nothing in it may act before its
    schema is known to be ours."""
    if not path.is_file():
        raise Invalid(f"There is no back-up at {path}; check the path.", path=str(path))
    try:
        file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            version = int(file.pragma("user_version"))
            if file.pragma("application_id") != APPLICATION_ID or version < 1:
                raise _unsound(path)
            if version % AWAY > newest():
                raise Invalid(
                    f"{path} was made by a newer Corral; upgrade this one first.", path=str(path)
                )
            _refuse_strange(file, path)
            if version > AWAY and _phase(file) != "gone":  # then it holds all that it had
                raise Invalid(
                    f"{path} holds half of a store that is moved there; take another one.",
                    reason="half_moved",
                )
            if file.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                raise _unsound(path)
        finally:
            file.close()
    except apsw.Error:
        raise _unsound(path) from None


def _unsound(path: Path) -> Invalid:
    return Invalid(
        f"{path} is no sound back-up of a Corral store; take another one.",
        path=str(path),
        reason="damaged",
    )


def _refuse_strange(file: apsw.Connection, path: Path) -> None:
    """Refuse a schema that is not what our migrations make; a fence is taken down by us."""
    made = made_until(int(file.pragma("user_version")) % AWAY)
    strange = differences(without_fence(shape_of(file)), made)
    if not strange:
        return
    repair = "repair it with a tool for SQLite if you know how that came"
    if (statements := undoing(strange)) is not None:
        words = shlex.join(["sqlite3", str(path), statements])
        repair = f"take that out if you know how it came (`{words}`)"
    raise Invalid(
        f"{path} cannot be restored as it is ({told(strange)}); {repair}, else take another one.",
        path=str(path),
        reason="foreign_schema",
    )


def require_plain(path: Path) -> None:
    """Refuse a back-up that was just made where a restore would refuse its schema."""
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        _refuse_strange(file, path)
    finally:
        file.close()


@contextmanager
def current_copy(source: Path) -> Iterator[Path]:
    """The back-up with today's schema, in a file of its own that is gone afterwards."""
    with scratch_folder("restore") as folder:
        copy = folder / "copy.db"
        _copy_file(source, copy)
        _reopen(copy, source)
        database = SqliteDatabase(copy, actor="corral")
        try:
            # It may have been made while the store was moved, or be a part.
            database.write(take_down)
            open_schema(database)
            store_move.stay(database)
        finally:
            database.close()
        yield copy


def _phase(file: apsw.Connection) -> str:
    return str(file.execute("SELECT phase FROM relocation").get)


def _reopen(copy: Path, source: Path) -> None:
    """Let a copy be opened of a store that was moved away."""
    file = apsw.Connection(str(copy))
    try:
        _refuse_strange(file, source)  # once more: the source may have been changed meanwhile
        version = int(file.pragma("user_version"))
        if version > AWAY:
            file.execute("UPDATE relocation SET phase = 'leaving'")
            file.pragma("user_version", version - AWAY)
    finally:
        file.close()


def _copy_file(source: Path, target: Path) -> None:
    """Copy by SQLite's own means: what a live store has accepted may still be in its log."""
    reader, writer = apsw.Connection(str(source)), apsw.Connection(str(target))
    try:
        with writer.backup("main", reader, "main") as task:
            task.step(-1)
    except apsw.Error as error:
        raise translate(error, target) from error
    finally:
        reader.close()
        writer.close()


def copy_to_file(source: "PostgresDatabase", target: Path) -> None:
    """Write a PostgreSQL store, as it was at one moment, into a new SQLite file."""
    database = SqliteDatabase(target, clock=source.clock, actor=source.actor)
    try:
        open_schema(database)
        with database.transaction() as into, source.reading() as rows_of:
            for table in content():
                pour(into, table, rows_of(table.name, table.names, table.key))
    except BaseException:
        database.close()
        target.unlink(missing_ok=True)
        raise
    database.close()
    tidy(target)


def copy_from_file(source: Path, target: "PostgresDatabase") -> None:
    """Replace all that a PostgreSQL store holds by a back-up, in one transaction.

    Others wait meanwhile. Sequences are only ever raised: that outlives a transaction that fails.
    """
    names = [table.name for table in content()]
    with target.transaction() as into:
        into.run(Statement(f"LOCK TABLE {', '.join(names)} IN EXCLUSIVE MODE"))
        numbers = given_out(lambda text: into.value(Statement(text)))
        go_on_behind(source, numbers, into.now, into.actor)
        file = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            for name in reversed(names):
                into.run(Statement(f"DELETE FROM {name}"))
            with reading(file) as rows_of:
                for table in content():
                    pour(into, table, rows_of(table.name, table.names, table.key))
            raise_sequences(into)
        except apsw.Error as error:
            raise translate(error, source) from error
        finally:
            file.close()


# Rows of these are known by their numbers outside of the store: an owner shows that of its lock, a
# platform remembers that of a message, somebody wrote down that of a charge. None is given out
# twice.
NUMBERED = ("letters", "events", "turns", "locks", "messages", "charges", "log_lines")

# Further than any fence of before can be: whoever had something out has no say in it any more.
FENCE_LEAP = 1_000_000


def given_out(ask: Callable[[str], Any]) -> dict[str, int]:
    """The highest number of each table that the store has given out."""
    return {table: int(ask(f"SELECT coalesce(max(seq), 0) FROM {table}")) for table in NUMBERED}


def go_on_behind(copy: Path, numbers: Mapping[str, int], now: int, actor: str) -> None:
    """Prepare a back-up to take a store's place, as something that happens to it.

    Numbers go on behind those that the store has given out, so that ids and cursors stay true;
    fences leap, so that owners of before are refused; and the record says that it was restored.
    """
    file = apsw.Connection(str(copy))
    try:
        file.execute("BEGIN IMMEDIATE")
        for table in ("letters", "nodes", "leaders", "rounds", "runs", "tasks"):
            file.execute(f"UPDATE {table} SET fence = fence + {FENCE_LEAP}")
        for table, keep_place in _KEEP_PLACE.items():
            file.execute(keep_place, {"seq": numbers[table], "now": now})
        file.execute(_RESTORED, {"seq": numbers["events"], "now": now, "actor": actor})
        file.execute("COMMIT")
    except apsw.Error as error:
        raise translate(error, copy) from error
    finally:
        file.close()


# A row that has ended, in the place of the newest one before the restore. One that would be counted
# is of no session or run, not even of none: '' instead of NULL.
_KEEP_PLACE = {
    "letters": """
        INSERT INTO letters (seq, mailbox, body, rank, state, due_at, line_at, fence, attempts,
                             last_error, created_at, ended_at)
        SELECT :seq, 'user:corral', '"a restore"', 0, 'refused', :now, :now, 0, 0,
               'holds the place of the letters before a restore', :now, :now
        WHERE :seq > (SELECT coalesce(max(seq), 0) FROM letters)
    """,
    "turns": """
        INSERT INTO turns (seq, session_id, number, role, content, is_error, at)
        SELECT :seq, '', :seq, 'system', '', 0, :now
        WHERE :seq > (SELECT coalesce(max(seq), 0) FROM turns)
    """,
    "locks": """
        INSERT INTO locks (seq, state, project_id, path, head, mode, owner, reason, ttl_ms,
                           lease_until, tells, created_at, ended_at, ended_by)
        SELECT :seq, 'released', '', '.', '', 'exclusive', 'user:corral',
               'holds the place of the locks before a restore', 0, :now, 0, :now, :now, 'corral'
        WHERE :seq > (SELECT coalesce(max(seq), 0) FROM locks)
    """,
    "charges": """
        INSERT INTO charges (seq, run_id, input, output, cache_read, cache_write, reasoning, at)
        SELECT :seq, '', 0, 0, 0, 0, 0, :now
        WHERE :seq > (SELECT coalesce(max(seq), 0) FROM charges)
    """,
    "log_lines": """
        INSERT INTO log_lines (seq, run_id, at, level, message)
        SELECT :seq, '', :now, 'debug', 'holds the place of the log lines before a restore'
        WHERE :seq > (SELECT coalesce(max(seq), 0) FROM log_lines)
    """,
    # Messages are of a place; in a store without one, nobody has said anything.
    "messages": """
        INSERT INTO messages (seq, channel_id, place_id, direction, kind, event_id, platform_ids,
                              text, state, reason, routes, at, created_at, ended_at)
        SELECT :seq, channel_id, id, 'in', 'text', 'in:restore:' || :seq, '[]', '', 'refused',
               'holds the place of the messages before a restore', '[]', :now, :now, :now
        FROM places WHERE :seq > (SELECT coalesce(max(seq), 0) FROM messages) LIMIT 1
    """,
}

_RESTORED = """
    INSERT INTO events (seq, at, actor, kind, verb, subject)
    SELECT max(:seq, coalesce(max(seq), 0)) + 1, :now, :actor, 'store', 'restore', 'store'
    FROM events
"""


def tidy(path: Path) -> None:
    """Leave one file that needs nothing beside it, its indexes filled."""
    file = apsw.Connection(str(path))
    with file:
        file_behind(file.execute)
    file.execute("PRAGMA journal_mode = DELETE").fetchall()
    file.close()
    for beside in ("-line", "-line-door", "-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
