"""Care of a SQLite store: the engine's age, a copy, whether it is sound, what a query gives."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import apsw

from corral.db.database import Finding, RowsOf, Table
from corral.db.sqlite_connection import damaged
from corral.db.sqlite_deferred_indexes import wrongly_filed
from corral.db.sqlite_errors import translate
from corral.db.statement import Row
from corral.kernel.errors import Invalid, StoreUnavailable

APPLICATION_ID = 0x436F7272  # "Corr": tells a Corral store from any other SQLite file
OLDEST_SQLITE = (3, 51, 3)  # before it, a checkpoint could race a writer and damage the file
MOST_FAULTS = 20
STEPS_BETWEEN_LOOKS = 10_000  # of SQLite's machine, between two looks at the clock


def require_current_sqlite() -> None:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreUnavailable(
            f"SQLite {apsw.sqlite_lib_version()} can damage a store that several processes write; "
            f"install apsw {oldest} or newer (`pip install -U apsw`).",
            reason="old_sqlite",
        )


def refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    """Leave alone a file that some other program made."""
    try:
        # One snapshot: another process may be making the store at this moment.
        connection.execute("BEGIN")
        marked = connection.pragma("application_id") == APPLICATION_ID
        empty = marked or not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        connection.execute("COMMIT")
    except apsw.Error as error:
        raise translate(error, path) from error
    if not empty:
        raise StoreUnavailable(
            f"{path} is a database of another program; give another path with --store.",
            reason="foreign",
            path=str(path),
        )


def copy_whole(connection: apsw.Connection, target: Path) -> None:
    """Fill an empty file with the store as it is at one moment, however much is written meanwhile;
    the connection is left in that snapshot."""
    copy = apsw.Connection(str(target))
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        with copy.backup("main", connection, "main") as task:
            while not task.done:
                task.step(2_000)
        # A file on its own: whoever gets it needs no -wal beside it.
        copy.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        copy.close()


def replace_pages(connection: apsw.Connection, source: Path) -> None:
    """Replace all pages of a store with those of another file, in one write transaction."""
    from_file = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        with connection.backup("main", from_file, "main") as task:
            task.step(-1)  # all at once: no other process sees half of it
    finally:
        from_file.close()
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
        told = connection.execute(f"PRAGMA {pragma}({MOST_FAULTS})").fetchall()
        faults = [str(row[0]) for row in told if row != ("ok",)]
        lost = connection.execute("PRAGMA foreign_key_check").fetchall() if thorough else []
        wrong = wrongly_filed(connection) if thorough and not faults else []
        cells = list(_unreadable(connection)) if thorough and not faults else []
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return [Finding("file", "broken", str(error))]
    findings = [
        Finding("file", "broken", "; ".join(faults))
        if faults
        else Finding("file", "ok", f"SQLite's {pragma} found nothing wrong.")
    ]
    if lost:
        text = f"{len(lost)} rows point to a missing one, first in {lost[0][0]}."
        findings.append(Finding("references", "broken", text))
    if wrong:
        text = f"{', '.join(wrong)} does not hold what it should; restore a back-up."
        findings.append(Finding("indexes", "broken", text))
    if cells:
        text = f"{'; '.join(cells)}; restore a back-up from before."
        findings.append(Finding("cells", "broken", text))
    return findings


def _is_ours(connection: apsw.Connection) -> bool:
    from corral.db.migrate import newest
    from corral.db.schema_drift import made_until, shape_of, without_fence
    from corral.db.write_fence import AWAY

    version = int(connection.pragma("user_version")) % AWAY
    # The schema of a newer Corral is unknown here; the schema finding reports that.
    known = min(version, newest())
    return without_fence(shape_of(connection)) == without_fence(made_until(known))


def _check_pages(connection: apsw.Connection) -> list[Finding]:
    from corral.db.schema import tables
    from corral.untrusted_sqlite import without_checks

    existing = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    faults: list[str] = []
    with without_checks(connection):
        for table in (each.name for each in tables() if each.name in existing):
            rows = connection.execute(f"PRAGMA quick_check({table})").fetchall()
            faults += [str(row[0]) for row in rows if row != ("ok",)]
    if faults:
        return [Finding("file", "broken", "; ".join(faults[:MOST_FAULTS]))]
    text = (
        "The pages of Corral's tables are intact; no more was checked, as the schema was changed."
    )
    return [Finding("file", "ok", text)]


def _unreadable(connection: apsw.Connection) -> Iterator[str]:
    """Cells that SQLite keeps and nobody can read: JSON that is none, text that is not UTF-8."""
    from corral.db.schema import tables

    there = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    for table in (each for each in tables() if each.name in there):
        told = [column.name for column in table.columns if column.type.startswith("json")]
        wrong = ", ".join(f"count(*) FILTER (WHERE NOT json_valid({name}))" for name in told)
        counted = connection.execute(f"SELECT {wrong} FROM {table.name}").fetchall() if told else []
        for name, count in zip(told, counted[0] if counted else (), strict=True):
            if count:
                yield f"{count:,} rows of {table.name} with a {name} that is no JSON"
        try:
            for _ in connection.execute(f"SELECT * FROM {table.name}"):
                pass
        except UnicodeDecodeError as error:
            yield f"{damaged(error)}, in {table.name}"


@contextmanager
def reading(connection: apsw.Connection) -> Iterator[RowsOf]:
    """The rows of tables on a connection that is closed afterwards, see `Database.reading`."""

    def rows_of(table: str, columns: list[str], key: str) -> Iterator[Row]:
        try:
            yield from connection.execute(
                f"SELECT {', '.join(columns)} FROM {table} ORDER BY {key}"
            )
        except UnicodeDecodeError as error:
            raise translate(damaged(error), Path(connection.filename)) from None
        except apsw.Error as error:
            raise translate(error, Path(connection.filename)) from error

    try:
        connection.execute("BEGIN")
        yield rows_of
    finally:
        connection.close()


def run_query(connection: apsw.Connection, sql: str, *, limit: int, timeout_ms: int) -> Table:
    """One reading statement on a connection that is used for nothing else."""
    deadline = time.monotonic() + timeout_ms / 1_000
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_LOOKS)
    # The connection cannot write the store; the authorizer also keeps it from other files.
    connection.set_authorizer(_only_reading)
    columns: list[str] = []

    def describe(cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
        # Before the first row, because there may be none.
        if columns:
            raise Invalid("Give one query at a time.")
        columns.extend(column[0] for column in cursor.get_description())
        return True

    try:
        cursor = connection.cursor()
        cursor.exec_trace = describe
        rows = [list(row) for row in islice(cursor.execute(sql), limit + 1)]
    except apsw.InterruptError:
        raise Invalid(
            f"The query took more than {timeout_ms} ms; narrow it, or give it more time with "
            "--timeout.",
            timeout_ms=timeout_ms,
        ) from None
    except (apsw.AuthError, apsw.ReadOnlyError):
        raise Invalid(
            "Only reading is allowed here; change things by Corral's own commands."
        ) from None
    except UnicodeDecodeError:
        raise Invalid("The answer holds text that is not UTF-8; ask for hex(…).") from None
    except apsw.SQLError as error:
        raise Invalid(f"The query is wrong: {error}.", reason="bad_query") from None
    if not columns:
        raise Invalid("The query is empty; write a SELECT.")
    return Table(columns, rows[:limit], truncated=len(rows) > limit)


def _only_reading(action: int, *_: object) -> int:
    allowed = (apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE)
    return apsw.SQLITE_OK if action in allowed else apsw.SQLITE_DENY
