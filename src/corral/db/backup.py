"""Backup and restore of whole stores.

A backup is always a SQLite file: a SQLite store is copied as it is, and a PostgreSQL store is
written to a new file with the same tables. So a backup can be opened, inspected and restored on
either engine without other tools.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from corral.db import store_move
from corral.db.bulk_insert import advance_sequences, copy_rows
from corral.db.lock_file import QUEUE_LOCK_SUFFIX, TURN_LOCK_SUFFIX
from corral.db.migrations import ensure_schema, latest_version
from corral.db.schema_drift import (
    build_expected_schema,
    compare_schemas,
    describe_differences,
    drop_statements,
    read_schema,
    remove_write_guard,
)
from corral.db.sqlite import SqliteDatabase
from corral.db.sqlite_deferred_indexes import fill_deferred_indexes
from corral.db.sqlite_errors import translate
from corral.db.sqlite_maintenance import APPLICATION_ID, read_snapshot
from corral.db.statement import Statement
from corral.db.write_guard import MOVED_OFFSET, list_content_tables, remove
from corral.kernel.errors import Invalid
from corral.scratch_folders import scratch_folder

if TYPE_CHECKING:
    from corral.db.postgres import PostgresDatabase


def check_backup(path: Path) -> None:
    """Raise Invalid unless the file is an intact backup of this or an older version of Corral.

    The schema is checked before anything else is read: a foreign schema may contain code.
    """
    if not path.is_file():
        raise Invalid(f"No backup at {path}. Check the path.", path=str(path))
    try:
        file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            version = int(file.pragma("user_version"))
            if file.pragma("application_id") != APPLICATION_ID or version < 1:
                raise _damaged_error(path)
            if version % MOVED_OFFSET > latest_version():
                raise Invalid(
                    f"{path} was made by a newer version of Corral. Upgrade Corral first.",
                    path=str(path),
                )
            _require_known_schema(file, path)
            # A store that was moved away (gone) is complete; one that is being filled is not.
            if version > MOVED_OFFSET and _read_phase(file) != "gone":
                raise Invalid(
                    f"{path} is incomplete: a store is being moved there. Use another backup.",
                    reason="half_moved",
                )
            if file.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                raise _damaged_error(path)
        finally:
            file.close()
    except apsw.Error:
        raise _damaged_error(path) from None


def _damaged_error(path: Path) -> Invalid:
    return Invalid(
        f"{path} is damaged or not a backup of a Corral store. Use another backup.",
        path=str(path),
        reason="damaged",
    )


def _require_known_schema(file: apsw.Connection, path: Path) -> None:
    """Raise Invalid if the schema differs from what the migrations create.

    The write guard of a move is allowed: a restore removes it.
    """
    expected = build_expected_schema(int(file.pragma("user_version")) % MOVED_OFFSET)
    unexpected = compare_schemas(remove_write_guard(read_schema(file)), expected)
    if not unexpected:
        return
    repair = "If you know the cause, repair it with an SQLite tool"
    if (statements := drop_statements(unexpected)) is not None:
        command = shlex.join(["sqlite3", str(path), statements])
        repair = f"If you know the cause, remove it with `{command}`"
    raise Invalid(
        f"Cannot restore {path}: {describe_differences(unexpected)}. {repair}; otherwise use "
        "another backup.",
        path=str(path),
        reason="foreign_schema",
    )


def require_restorable(path: Path) -> None:
    """Raise Invalid if a restore would refuse the schema of a backup that was just made."""
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        _require_known_schema(file, path)
    finally:
        file.close()


@contextmanager
def current_copy(source: Path) -> Iterator[Path]:
    """Provide a temporary copy of a backup, migrated to the current schema."""
    with scratch_folder("restore") as directory:
        copy = directory / "copy.db"
        _copy_file(source, copy)
        _reopen(copy, source)
        database = SqliteDatabase(copy, actor="corral")
        try:
            # The backup may be from during a move, or an excerpt.
            database.write(remove)
            ensure_schema(database)
            store_move.keep_here(database)
        finally:
            database.close()
        yield copy


def _read_phase(file: apsw.Connection) -> str:
    return str(file.execute("SELECT phase FROM store_moves").get)


def _reopen(copy: Path, source: Path) -> None:
    """Make the copy of a store that was moved away openable again."""
    file = apsw.Connection(str(copy))
    try:
        _require_known_schema(
            file, source
        )  # again: the source may have changed since the first check
        version = int(file.pragma("user_version"))
        if version > MOVED_OFFSET:
            file.execute("UPDATE store_moves SET phase = 'leaving'")
            file.pragma("user_version", version - MOVED_OFFSET)
    finally:
        file.close()


def _copy_file(source: Path, target: Path) -> None:
    """Copy with SQLite's backup API: the latest commits of a live store may still be in its log."""
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
    """Write one snapshot of a PostgreSQL store into a new SQLite file."""
    database = SqliteDatabase(target, clock=source.clock, actor=source.actor)
    try:
        ensure_schema(database)
        with database.transaction() as tx, source.read_snapshot() as read_table:
            for table in list_content_tables():
                copy_rows(tx, table, read_table(table.name, table.names, table.key))
    except BaseException:
        database.close()
        target.unlink(missing_ok=True)
        raise
    database.close()
    finish_file(target)


def copy_from_file(source: Path, target: "PostgresDatabase") -> None:
    """Replace the content of a PostgreSQL store by a backup, in one transaction.

    Other writers wait meanwhile. Sequences are only advanced, because setval() is not rolled back
    with a failed transaction.
    """
    names = [table.name for table in list_content_tables()]
    with target.transaction() as tx:
        tx.run(Statement(f"LOCK TABLE {', '.join(names)} IN EXCLUSIVE MODE"))
        numbers = find_highest_numbers(lambda text: tx.value(Statement(text)))
        prepare_restore(source, numbers, tx.now, tx.actor)
        file = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            for name in reversed(names):
                tx.run(Statement(f"DELETE FROM {name}"))
            with read_snapshot(file) as read_table:
                for table in list_content_tables():
                    copy_rows(tx, table, read_table(table.name, table.names, table.key))
            advance_sequences(tx)
        except apsw.Error as error:
            raise translate(error, source) from error
        finally:
            file.close()


# Sequence numbers of these tables are known outside the store: an owner sends the number of its
# lock, a chat platform remembers that of a message. A number must never be used twice.
NUMBERED_TABLES = ("letters", "events", "turns", "locks", "messages", "charges", "log_lines")

# Larger than any fence in use, so that all owners from before the restore are rejected.
FENCE_INCREMENT = 1_000_000


def find_highest_numbers(query: Callable[[str], Any]) -> dict[str, int]:
    """Return the highest sequence number of each numbered table."""
    return {
        table: int(query(f"SELECT coalesce(max(seq), 0) FROM {table}")) for table in NUMBERED_TABLES
    }


def prepare_restore(copy: Path, numbers: Mapping[str, int], now: int, actor: str) -> None:
    """Prepare a backup to replace the content of a store.

    Sequence numbers continue after those that the store has used, so that ids and cursors stay
    unique. Fences are raised, so that owners from before the restore are rejected. An event records
    the restore.
    """
    file = apsw.Connection(str(copy))
    try:
        file.execute("BEGIN IMMEDIATE")
        for table in ("letters", "nodes", "leaders", "rounds", "runs", "tasks"):
            file.execute(f"UPDATE {table} SET fence = fence + {FENCE_INCREMENT}")
        for table, insert in _PLACEHOLDERS.items():
            file.execute(insert, {"seq": numbers[table], "now": now})
        file.execute(_RESTORE_EVENT, {"seq": numbers["events"], "now": now, "actor": actor})
        file.execute("COMMIT")
    except apsw.Error as error:
        raise translate(error, copy) from error
    finally:
        file.close()


# Placeholder rows in a final state that reserve the highest number from before the restore; SQLite
# assigns max(seq) + 1. Rows that are counted by session or run have '' there, which matches neither
# an id nor NULL. The WHERE clause: only if the backup does not already reach that number.
_PLACEHOLDERS = {
    "letters": """
        INSERT INTO letters (seq, mailbox, body, rank, state, due_at, queue_at, fence, attempts,
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
        INSERT INTO locks (seq, state, project_id, path, path_prefix, mode, owner, reason, ttl_ms,
                           lease_until, notify, created_at, ended_at, ended_by)
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
    # A message needs a place; a store without places has no messages.
    "messages": """
        INSERT INTO messages (seq, channel_id, place_id, direction, kind, event_id, platform_ids,
                              text, state, reason, routes, at, created_at, ended_at)
        SELECT :seq, channel_id, id, 'in', 'text', 'in:restore:' || :seq, '[]', '', 'refused',
               'holds the place of the messages before a restore', '[]', :now, :now, :now
        FROM places WHERE :seq > (SELECT coalesce(max(seq), 0) FROM messages) LIMIT 1
    """,
}

_RESTORE_EVENT = """
    INSERT INTO events (seq, at, actor, kind, verb, subject)
    SELECT max(:seq, coalesce(max(seq), 0)) + 1, :now, :actor, 'store', 'restore', 'store'
    FROM events
"""


def finish_file(path: Path) -> None:
    """Fill the deferred indexes and leave a single file, without a log or lock files beside it."""
    file = apsw.Connection(str(path))
    with file:
        fill_deferred_indexes(file.execute)
    file.execute("PRAGMA journal_mode = DELETE").fetchall()
    file.close()
    for suffix in (TURN_LOCK_SUFFIX, QUEUE_LOCK_SUFFIX, "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
