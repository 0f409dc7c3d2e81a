"""Maintenance of a SQLite store: version check, copies, integrity checks, read-only queries."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import apsw

from corral.db.sqlite_connection import invalid_text_error
from corral.db.sqlite_deferred_indexes import find_mismatched_indexes
from corral.db.sqlite_errors import translate
from corral.db.statement import Row
from corral.db.types import Finding, QueryResult, ReadTable
from corral.kernel.errors import Invalid, StoreUnavailable

APPLICATION_ID = 0x436F7272  # "Corr": marks the SQLite files of Corral
MIN_SQLITE = (
    3,
    51,
    3,
)  # older versions have a WAL bug: a checkpoint can race a writer and damage the file
MAX_FAULTS = 20
STEPS_BETWEEN_CHECKS = 10_000  # instructions of SQLite between two checks of the time limit


def require_current_sqlite() -> None:
    """Raise StoreUnavailable if the SQLite library is older than MIN_SQLITE."""
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < MIN_SQLITE:
        oldest = ".".join(map(str, MIN_SQLITE))
        raise StoreUnavailable(
            f"SQLite {apsw.sqlite_lib_version()} can damage a store that several processes write. "
            f"Install apsw {oldest} or newer (`pip install -U apsw`).",
            reason="old_sqlite",
        )


def require_corral_file(connection: apsw.Connection, path: Path) -> None:
    """Raise StoreUnavailable if another program created the database."""
    try:
        # One snapshot: another process may be creating the store at this moment.
        connection.execute("BEGIN")
        is_marked = connection.pragma("application_id") == APPLICATION_ID
        is_usable = (
            is_marked or not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        )
        connection.execute("COMMIT")
    except apsw.Error as error:
        raise translate(error, path) from error
    if not is_usable:
        raise StoreUnavailable(
            f"{path} is a database of another program. Give another path with --store.",
            reason="foreign",
            path=str(path),
        )


def copy_store(connection: apsw.Connection, target: Path) -> None:
    """Fill an empty file with a snapshot of the store, while other processes may write.

    The connection stays in the read transaction of that snapshot.
    """
    copy = apsw.Connection(str(target))
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        with copy.backup("main", connection, "main") as task:
            while not task.done:
                task.step(2_000)
        # So that the copy is complete without a -wal file beside it.
        copy.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        copy.close()


def replace_pages(connection: apsw.Connection, source: Path) -> None:
    """Replace all pages of a store with those of another file, in one write transaction."""
    source_connection = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        with connection.backup("main", source_connection, "main") as task:
            task.step(-1)  # in one step: no other process sees a part of it
    finally:
        source_connection.close()
    connection.execute("PRAGMA journal_mode = WAL").fetchall()


def check_file(connection: apsw.Connection, *, thorough: bool) -> list[Finding]:
    """Check the pages and rows of a store.

    A schema that Corral did not make may contain code (constraints, computed columns, expression
    indexes). Then only the pages of Corral's own tables are checked, without running that code.
    """
    try:
        if not _is_ours(connection):
            return _check_pages(connection)
    except apsw.Error as error:
        return [Finding("file", "broken", str(error))]
    pragma = "integrity_check" if thorough else "quick_check"
    try:
        rows = connection.execute(f"PRAGMA {pragma}({MAX_FAULTS})").fetchall()
        faults = [str(row[0]) for row in rows if row != ("ok",)]
        orphans = connection.execute("PRAGMA foreign_key_check").fetchall() if thorough else []
        mismatched = find_mismatched_indexes(connection) if thorough and not faults else []
        cells = list(_find_unreadable(connection)) if thorough and not faults else []
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return [Finding("file", "broken", str(error))]
    findings = [
        Finding("file", "broken", "; ".join(faults))
        if faults
        else Finding("file", "ok", f"SQLite's {pragma} found no problems.")
    ]
    if orphans:
        text = f"{len(orphans)} rows refer to missing rows, first in {orphans[0][0]}."
        findings.append(Finding("references", "broken", text))
    if mismatched:
        text = f"{', '.join(mismatched)} does not match its table. Restore a backup."
        findings.append(Finding("indexes", "broken", text))
    if cells:
        text = f"{'; '.join(cells)}; restore a backup from before."
        findings.append(Finding("cells", "broken", text))
    return findings


def _is_ours(connection: apsw.Connection) -> bool:
    from corral.db.migrations import latest_version
    from corral.db.schema_drift import build_expected_schema, read_schema, remove_write_guard
    from corral.db.write_guard import MOVED_OFFSET

    version = int(connection.pragma("user_version")) % MOVED_OFFSET
    # The schema of a newer Corral is unknown here; the schema finding reports that.
    supported = min(version, latest_version())
    return remove_write_guard(read_schema(connection)) == remove_write_guard(
        build_expected_schema(supported)
    )


def _check_pages(connection: apsw.Connection) -> list[Finding]:
    from corral.db.schema import tables
    from corral.untrusted_sqlite import without_checks

    existing = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    faults: list[str] = []
    with without_checks(connection):
        for name in (table.name for table in tables() if table.name in existing):
            rows = connection.execute(f"PRAGMA quick_check({name})").fetchall()
            faults += [str(row[0]) for row in rows if row != ("ok",)]
    if faults:
        return [Finding("file", "broken", "; ".join(faults[:MAX_FAULTS]))]
    text = (
        "The pages of Corral's tables are intact. Nothing else was checked: the schema was changed."
    )
    return [Finding("file", "ok", text)]


def _find_unreadable(connection: apsw.Connection) -> Iterator[str]:
    """Describe the values that SQLite stores but Corral cannot read: bad JSON, bad UTF-8."""
    from corral.db.schema import tables

    existing = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    for table in (table for table in tables() if table.name in existing):
        json_columns = [column.name for column in table.columns if column.type.startswith("json")]
        wrong = ", ".join(
            f"count(*) FILTER (WHERE NOT json_valid({name}))" for name in json_columns
        )
        counted = (
            connection.execute(f"SELECT {wrong} FROM {table.name}").fetchall()
            if json_columns
            else []
        )
        for name, count in zip(json_columns, counted[0] if counted else (), strict=True):
            if count:
                yield f"{count:,} rows of {table.name} with invalid JSON in {name}"
        try:
            for _ in connection.execute(f"SELECT * FROM {table.name}"):
                pass
        except UnicodeDecodeError as error:
            yield f"{invalid_text_error(error)}, in {table.name}"


@contextmanager
def read_snapshot(connection: apsw.Connection) -> Iterator[ReadTable]:
    """Implement `Database.read_snapshot` on a connection that is closed afterwards."""

    def read_table(table: str, columns: list[str], key: str) -> Iterator[Row]:
        try:
            yield from connection.execute(
                f"SELECT {', '.join(columns)} FROM {table} ORDER BY {key}"
            )
        except UnicodeDecodeError as error:
            raise translate(invalid_text_error(error), Path(connection.filename)) from None
        except apsw.Error as error:
            raise translate(error, Path(connection.filename)) from error

    try:
        connection.execute("BEGIN")
        yield read_table
    finally:
        connection.close()


def run_query(connection: apsw.Connection, sql: str, *, limit: int, timeout_ms: int) -> QueryResult:
    """Run one read-only statement on a connection that is used for nothing else."""
    deadline = time.monotonic() + timeout_ms / 1_000
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_CHECKS)
    # The connection is read-only; the authorizer also prevents ATTACH and other files.
    connection.set_authorizer(_authorize_read)
    columns: list[str] = []

    def describe(cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
        # Called before the first row, because the query may return none.
        if columns:
            raise Invalid("Only one query is allowed at a time.")
        columns.extend(column[0] for column in cursor.get_description())
        return True

    try:
        cursor = connection.cursor()
        cursor.exec_trace = describe
        rows = [list(row) for row in islice(cursor.execute(sql), limit + 1)]
    except apsw.InterruptError:
        raise Invalid(
            f"The query took longer than {timeout_ms} ms. Narrow it, or raise --timeout.",
            timeout_ms=timeout_ms,
        ) from None
    except (apsw.AuthError, apsw.ReadOnlyError):
        raise Invalid(
            "Only read-only queries are allowed. Change data with Corral's own commands."
        ) from None
    except UnicodeDecodeError:
        raise Invalid(
            "The result contains text that is not UTF-8. Select hex(…) instead."
        ) from None
    except apsw.SQLError as error:
        raise Invalid(f"Invalid query: {error}.", reason="bad_query") from None
    if not columns:
        raise Invalid("The query is empty. Write a SELECT statement.")
    return QueryResult(columns, rows[:limit], truncated=len(rows) > limit)


def _authorize_read(action: int, *_: object) -> int:
    allowed = (apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE)
    return apsw.SQLITE_OK if action in allowed else apsw.SQLITE_DENY
