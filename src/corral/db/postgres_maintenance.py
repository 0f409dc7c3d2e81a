"""Maintenance of a PostgreSQL store: read-only queries, schema and integrity checks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg

from corral.db.database import Database
from corral.db.postgres_connection import PostgresConnection
from corral.db.postgres_errors import extract_first_line, translate
from corral.db.statement import Row, Statement
from corral.db.types import Finding, QueryResult, ReadTable, SchemaObject, SchemaObjects
from corral.kernel.clock import MINUTE, SECOND, format_duration
from corral.kernel.errors import Invalid, Refused

_NOT_READ_ONLY = (pg.ReadOnlySqlTransaction, pg.InvalidCursorDefinition, pg.FeatureNotSupported)


def run_query(
    connection: psycopg.Connection[Row], sql: str, *, limit: int, timeout_ms: int
) -> QueryResult:
    """Run one read-only statement on a connection that is used for nothing else."""
    try:
        connection.execute("BEGIN READ ONLY")
        connection.execute(f"SET LOCAL statement_timeout = {int(timeout_ms)}".encode())
        # A server-side cursor accepts only one statement and sends only the rows that are fetched.
        with connection.cursor("person") as cursor:
            cursor.execute(sql.encode())
            columns = [column.name for column in cursor.description or []]
            rows = [
                [convert_to_plain(value) for value in row] for row in cursor.fetchmany(limit + 1)
            ]
    except pg.QueryCanceled:
        raise Invalid(
            f"The query took longer than {timeout_ms} ms. Narrow it, or raise --timeout.",
            timeout_ms=timeout_ms,
        ) from None
    except _NOT_READ_ONLY:
        raise Invalid(
            "Only read-only queries are allowed. Change data with Corral's own commands."
        ) from None
    except (psycopg.ProgrammingError, psycopg.DataError) as error:
        raise Invalid(f"Invalid query: {extract_first_line(error)}.", reason="bad_query") from None
    return QueryResult(columns, rows[:limit], truncated=len(rows) > limit)


def convert_to_plain(value: Any) -> Any:
    """Convert a value of PostgreSQL to a JSON value.

    Our connections return JSON as bytes: these become text, other bytes become hex. Types of
    PostgreSQL's own become text.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


_BYTEA = psycopg.postgres.types["bytea"].oid


def convert_rows(cursor: "psycopg.ServerCursor[Row]") -> Iterator[Row]:
    """Convert the rows of a table for another engine; unlike `convert_to_plain`, keeps bytes."""
    is_bytea = [column.type_code == _BYTEA for column in cursor.description or ()]
    for row in cursor:
        yield tuple(
            value if keep else convert_to_plain(value)
            for value, keep in zip(row, is_bytea, strict=True)
        )


@contextmanager
def read_snapshot(connection: PostgresConnection) -> Iterator[ReadTable]:
    """Implement `Database.read_snapshot` on a connection that is closed afterwards."""

    def read_table(table: str, columns: list[str], key: str) -> Iterator[Row]:
        with connection.connection.cursor("rows") as cursor:
            cursor.itersize = 1_000
            names = ", ".join(columns)
            cursor.execute(f"SELECT {names} FROM {table} ORDER BY {key}".encode())
            yield from convert_rows(cursor)

    try:
        connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield read_table
    finally:
        connection.close()


def read_all(database: Database) -> list[Finding]:
    """Read every row of every table, so that a damaged page raises an error."""
    from corral.db.migrations import latest_version
    from corral.db.schema import list_nonempty_tables, tables

    is_current = database.schema_version() == latest_version()
    all_tables = tables() if is_current else []
    nonempty = database.read(list_nonempty_tables, mode="one") if is_current else set()
    with database.read_snapshot() as read_table:
        to_read = [table for table in all_tables if table.name in nonempty]
        rows = sum(1 for table in to_read for _ in read_table(table.name, ["*"], table.key))
    return [Finding("tables", "ok", f"{rows:,} rows in {len(all_tables)} tables can be read.")]


# All objects of one PostgreSQL schema, with their definitions. Definitions are without the name of
# the PostgreSQL schema, because the expected objects are created in another one.
_SCHEMA_OBJECTS = """
    WITH ours AS (
        SELECT oid, relname AS name, relkind AS kind, relrowsecurity AS guarded FROM pg_class
        -- tables (including partitioned and foreign ones), views and materialized views
        WHERE relnamespace = {schema} AND relkind IN ('r', 'p', 'f', 'v', 'm')
        -- without objects of an extension (deptype e), such as pg_stat_statements
        AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = CAST('pg_class' AS REGCLASS)
                        AND objid = pg_class.oid AND deptype = 'e')
    )
    SELECT 'table', ours.name, ours.name, guarded || ' ' || string_agg(
        concat_ws(' ', attname, format_type(atttypid, atttypmod), collname,
            CASE WHEN attnotnull THEN 'NOT NULL' END, nullif(attidentity, ''),
            nullif(attgenerated, ''), pg_get_expr(adbin, adrelid)),
        ', ' ORDER BY attname)
    FROM ours
    -- attnum > 0: without system columns
    LEFT JOIN pg_attribute ON attrelid = ours.oid AND attnum > 0 AND NOT attisdropped
    LEFT JOIN pg_attrdef ON adrelid = ours.oid AND adnum = attnum
    LEFT JOIN pg_collation ON pg_collation.oid = attcollation
    WHERE ours.kind NOT IN ('v', 'm') GROUP BY ours.name, guarded
    UNION ALL
    SELECT 'constraint', conname, ours.name, pg_get_constraintdef(pg_constraint.oid)
    -- n: NOT NULL constraints, which only newer servers list and the columns above include
    FROM pg_constraint JOIN ours ON ours.oid = conrelid WHERE contype <> 'n'
    UNION ALL
    SELECT 'index', relname, ours.name, concat_ws(' ', indisunique, indisvalid,
        substring(pg_get_indexdef(indexrelid) FROM ' USING .*'))
    FROM pg_index JOIN ours ON ours.oid = indrelid JOIN pg_class ON pg_class.oid = indexrelid
    UNION ALL
    SELECT 'trigger', tgname, ours.name, pg_get_triggerdef(pg_trigger.oid, true)
    -- internal triggers implement foreign keys
    FROM pg_trigger JOIN ours ON ours.oid = tgrelid WHERE NOT tgisinternal
    UNION ALL
    SELECT 'rule', rulename, ours.name, pg_get_ruledef(pg_rewrite.oid)
    -- _RETURN is the definition of a view
    FROM pg_rewrite JOIN ours ON ours.oid = ev_class WHERE rulename <> '_RETURN'
    UNION ALL
    SELECT 'view', ours.name, ours.name, '' FROM ours WHERE ours.kind IN ('v', 'm')
"""
READ_SCHEMA = Statement(
    _SCHEMA_OBJECTS.format(
        schema="(SELECT relnamespace FROM pg_class WHERE oid = to_regclass('migrations'))"
    )
)

_expected: dict[tuple[object, int], SchemaObjects] = {}
"""Cache by server version and schema version: creating the schema takes a second."""
_SERVER_VERSION = Statement("SELECT current_setting('server_version_num')")


def schema_from_rows(rows: list[Row]) -> SchemaObjects:
    """Convert the rows of READ_SCHEMA."""
    return {SchemaObject(kind, name, table): text for kind, name, table, text in rows}


def build_expected_schema(database: Database, version: int) -> SchemaObjects:
    """Return the schema of a new store of a version, as this server formats it.

    The schema is created as temporary tables. Each statement is a transaction of its own, so that
    the event feed does not wait for a long one.
    """
    from corral.db.migrations import build_schema_statements

    try:
        server_version = database.read(lambda tx: tx.value(_SERVER_VERSION), mode="one")
        key = (server_version, version)
        if key not in _expected:
            with psycopg.connect(database.address, autocommit=True) as raw:
                connection = PostgresConnection(raw)
                connection.run("SET search_path = pg_temp; SET synchronous_commit = off")
                for statement in build_schema_statements(version, "postgres"):
                    connection.run(statement)
                _expected[key] = schema_from_rows(
                    connection.run(_SCHEMA_OBJECTS.format(schema="pg_my_temp_schema()"))
                )
        return _expected[key]
    except pg.InsufficientPrivilege:
        raise Refused(
            "The schema was not compared with the migrations: that needs temporary tables. Grant "
            "the privilege with GRANT TEMPORARY ON DATABASE.",
            reason="no_temporary_tables",
        ) from None
    except psycopg.Error as error:
        raise translate(error, database.url) from error


# -- durability -----------------------------------------------------------------------------------

_SYNC_SETTINGS = """
    SELECT current_setting('fsync'), current_setting('full_page_writes'),
           current_setting('synchronous_commit'), current_setting('wal_sync_method'), version(),
           ARRAY(SELECT CAST(relname AS TEXT) FROM pg_class
                 WHERE relnamespace = (SELECT relnamespace FROM pg_class
                                       WHERE oid = to_regclass('migrations'))
                 AND relkind = 'r' AND relpersistence <> 'p' ORDER BY relname)
"""
# On macOS and Windows, only this method flushes the cache of the disk itself.
_WRITES_THROUGH = "fsync_writethrough"
_CACHES_WRITES = ("darwin", "mingw", "Visual C++", "msvc")


def power_loss_risks(connection: PostgresConnection) -> list[str]:
    """List the reasons why an accepted change may not survive a power cut of the server.

    Checks the settings of this connection and of the server. The cache of the disk itself is not
    visible here.
    """
    fsync, pages, commit, method, version, unlogged = connection.run(_SYNC_SETTINGS)[0]
    risks = []
    if fsync != "on":
        risks.append("fsync is off: accepted changes can be lost and the whole database damaged")
    if pages != "on":
        risks.append("full_page_writes is off: pages that are being written can be damaged")
    if commit == "off":
        risks.append("synchronous_commit is off: the last accepted changes can be lost")
    if method != _WRITES_THROUGH and any(name in version for name in _CACHES_WRITES):
        risks.append(
            f"wal_sync_method is {method}, which stops at the disk's cache on that system; "
            f"{_WRITES_THROUGH} does not"
        )
    if unlogged:
        risks.append(f"{', '.join(unlogged)} is UNLOGGED: a crash of the server empties it")
    return risks


# -- the feed -------------------------------------------------------------------------------------

# A transaction that is open for longer than this is reported; most take milliseconds.
LONG_TRANSACTION_MS = MINUTE

# Events of transactions that have not begun on this server: they were numbered by another one.
_FOREIGN_EVENTS = """
    SELECT 1 FROM events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1
"""

# The feed waits only for transactions of its own database, see `dialect._UNSETTLED`. The start of
# another user's transaction is visible only to members of pg_read_all_stats; otherwise the age is
# NULL.
_OLDEST_WRITER = """
    SELECT pid, coalesce(nullif(application_name, ''), 'no name'), datname,
           CAST(extract(epoch FROM clock_timestamp() - xact_start) * 1000 AS BIGINT)
    FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL  -- it has written
        AND pid <> pg_backend_pid() AND datname = current_database()
    ORDER BY age(backend_xid) DESC LIMIT 1
"""
_OLDEST_PREPARED = """
    SELECT gid, database,
           CAST(extract(epoch FROM clock_timestamp() - prepared) * 1000 AS BIGINT)
    FROM pg_prepared_xacts WHERE database = current_database()
    ORDER BY age(transaction) DESC LIMIT 1
"""
ADOPT_EVENTS = Statement("""
    UPDATE events SET xid = pg_current_xact_id()
    WHERE xid > pg_current_xact_id() RETURNING seq
""")


def check_feed(connection: PostgresConnection) -> Finding:
    """Check whether a long transaction delays the event feed, or its events are foreign."""
    if connection.run(_FOREIGN_EVENTS):
        return Finding(
            "feed",
            "broken",
            "The events were written by another server. Run `corral db migrate` once.",
        )
    for pid, program, database, age in connection.run(_OLDEST_WRITER):
        if age is not None and age >= LONG_TRANSACTION_MS:
            return _describe_delay(
                f"process {pid} ({program}, database {database})",
                age,
                f"SELECT pg_terminate_backend({pid})",
            )
    for name, database, age in connection.run(_OLDEST_PREPARED):
        if age >= LONG_TRANSACTION_MS:
            return _describe_delay(
                f"the prepared transaction {name} (database {database})",
                age,
                f"ROLLBACK PREPARED '{name}'",
            )
    return Finding("feed", "ok", "The event feed is up to date.")


def _describe_delay(cause: str, age: int, remedy: str) -> Finding:
    since = format_duration(age // SECOND * SECOND)
    return Finding(
        "feed",
        "warning",
        f"The event feed waits for {cause}, whose transaction has been open for {since}. Finish "
        f"it, or end it with `{remedy}`.",
    )
