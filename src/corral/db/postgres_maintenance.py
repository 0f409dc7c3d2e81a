"""Looking into a PostgreSQL store: what does a person's query give, and what holds up its feed?"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg

from corral.db.database import Database, Finding, RowsOf, Shape, Table, Thing
from corral.db.postgres_connection import Link
from corral.db.postgres_errors import first_line, translate
from corral.db.statement import Row, Statement
from corral.kernel.clock import MINUTE, SECOND, format_duration
from corral.kernel.errors import Invalid, Refused

_NO_READING = (pg.ReadOnlySqlTransaction, pg.InvalidCursorDefinition, pg.FeatureNotSupported)


def run_query(
    connection: psycopg.Connection[Row], sql: str, *, limit: int, timeout_ms: int
) -> Table:
    """One reading statement on a connection that is used for nothing else."""
    try:
        connection.execute("BEGIN READ ONLY")
        connection.execute(f"SET LOCAL statement_timeout = {int(timeout_ms)}".encode())
        # A cursor on the server: it takes a single statement, and gives no more than is asked for.
        with connection.cursor("person") as cursor:
            cursor.execute(sql.encode())
            columns = [column.name for column in cursor.description or []]
            rows = [[plain(value) for value in row] for row in cursor.fetchmany(limit + 1)]
    except pg.QueryCanceled:
        raise Invalid(
            f"The query took more than {timeout_ms} ms; narrow it, or give it more time with "
            "--timeout.",
            timeout_ms=timeout_ms,
        ) from None
    except _NO_READING:
        raise Invalid(
            "Only reading is allowed here; change things by Corral's own commands."
        ) from None
    except (psycopg.ProgrammingError, psycopg.DataError) as error:
        raise Invalid(f"The query is wrong: {first_line(error)}.", reason="bad_query") from None
    return Table(columns, rows[:limit], truncated=len(rows) > limit)


def plain(value: Any) -> Any:
    """JSON comes as bytes from our connections, everybody else wants text; what is no text, in hex;
    types of PostgreSQL's own as it writes them."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


_BYTEA = psycopg.postgres.types["bytea"].oid


def plain_rows(cursor: "psycopg.ServerCursor[Row]") -> Iterator[Row]:
    """The rows of a table as another engine takes them: all plain, but bytes stay bytes."""
    raw = [column.type_code == _BYTEA for column in cursor.description or ()]
    for row in cursor:
        yield tuple(
            value if is_raw else plain(value) for value, is_raw in zip(row, raw, strict=True)
        )


@contextmanager
def reading(link: Link) -> Iterator[RowsOf]:
    """The rows of tables on a connection that is closed afterwards, see `Database.reading`."""

    def rows_of(table: str, columns: list[str], key: str) -> Iterator[Row]:
        with link.connection.cursor("rows") as cursor:
            cursor.itersize = 1_000
            listed = ", ".join(columns)
            cursor.execute(f"SELECT {listed} FROM {table} ORDER BY {key}".encode())
            yield from plain_rows(cursor)

    try:
        link.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield rows_of
    finally:
        link.connection.close()


def read_all(database: Database) -> list[Finding]:
    """Read every row of every table: a damaged page shows itself."""
    from corral.db.migrate import newest
    from corral.db.schema import filled_tables, tables

    is_current = database.schema_version() == newest()
    known = tables() if is_current else []
    filled = database.read(filled_tables, mode="one") if is_current else set()
    with database.reading() as rows_of:
        walked = [table for table in known if table.name in filled]
        rows = sum(1 for table in walked for _ in rows_of(table.name, ["*"], table.key))
    return [Finding("tables", "ok", f"{rows:,} rows in {len(known)} tables can be read.")]


# What others brought along as an extension is no part of the store. Names of schemas are left out:
# what is compared with it is made elsewhere.
_SHAPE = """
    WITH ours AS (
        SELECT oid, relname AS name, relkind AS kind, relrowsecurity AS guarded FROM pg_class
        WHERE relnamespace = {schema} AND relkind IN ('r', 'p', 'f', 'v', 'm')
        AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = CAST('pg_class' AS REGCLASS)
                        AND objid = pg_class.oid AND deptype = 'e')
    )
    SELECT 'table', ours.name, ours.name, guarded || ' ' || string_agg(
        concat_ws(' ', attname, format_type(atttypid, atttypmod), collname,
            CASE WHEN attnotnull THEN 'NOT NULL' END, nullif(attidentity, ''),
            nullif(attgenerated, ''), pg_get_expr(adbin, adrelid)),
        ', ' ORDER BY attname)
    FROM ours
    LEFT JOIN pg_attribute ON attrelid = ours.oid AND attnum > 0 AND NOT attisdropped
    LEFT JOIN pg_attrdef ON adrelid = ours.oid AND adnum = attnum
    LEFT JOIN pg_collation ON pg_collation.oid = attcollation
    WHERE ours.kind NOT IN ('v', 'm') GROUP BY ours.name, guarded
    UNION ALL
    SELECT 'constraint', conname, ours.name, pg_get_constraintdef(pg_constraint.oid)
    FROM pg_constraint JOIN ours ON ours.oid = conrelid WHERE contype <> 'n'
    UNION ALL
    SELECT 'index', relname, ours.name, concat_ws(' ', indisunique, indisvalid,
        substring(pg_get_indexdef(indexrelid) FROM ' USING .*'))
    FROM pg_index JOIN ours ON ours.oid = indrelid JOIN pg_class ON pg_class.oid = indexrelid
    UNION ALL
    SELECT 'trigger', tgname, ours.name, pg_get_triggerdef(pg_trigger.oid, true)
    FROM pg_trigger JOIN ours ON ours.oid = tgrelid WHERE NOT tgisinternal
    UNION ALL
    SELECT 'rule', rulename, ours.name, pg_get_ruledef(pg_rewrite.oid)
    FROM pg_rewrite JOIN ours ON ours.oid = ev_class WHERE rulename <> '_RETURN'
    UNION ALL
    SELECT 'view', ours.name, ours.name, '' FROM ours WHERE ours.kind IN ('v', 'm')
"""
SHAPE = Statement(
    _SHAPE.format(
        schema="(SELECT relnamespace FROM pg_class WHERE oid = to_regclass('migrations'))"
    )
)

_made: dict[tuple[object, int], Shape] = {}
"""By the version of the server and of the schema: to make all of it takes a second."""
_SERVER = Statement("SELECT current_setting('server_version_num')")


def shape(rows: list[Row]) -> Shape:
    """What SHAPE gave."""
    return {Thing(kind, name, table): text for kind, name, table, text in rows}


def made_until(database: Database, version: int) -> Shape:
    """What a new store of that version has on this server, which alone knows how it spells that:
    made among the temporary tables of a connection. Each statement is a transaction of its own, so
    that the feed waits for none of them."""
    from corral.db.migrate import statements_until

    try:
        known = (database.read(lambda tx: tx.value(_SERVER), mode="one"), version)
        if known not in _made:
            with psycopg.connect(database.address, autocommit=True) as connection:
                link = Link(connection)
                link.run("SET search_path = pg_temp; SET synchronous_commit = off")
                for statement in statements_until(version, "postgres"):
                    link.run(statement)
                _made[known] = shape(link.run(_SHAPE.format(schema="pg_my_temp_schema()")))
        return _made[known]
    except pg.InsufficientPrivilege:
        raise Refused(
            "Whether it is what the migrations make was not looked at: that takes temporary "
            "tables; let the user make some (GRANT TEMPORARY ON DATABASE).",
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
# On these systems only this method flushes the disk's own cache.
_WRITES_THROUGH = "fsync_writethrough"
_CACHES_WRITES = ("darwin", "mingw", "Visual C++", "msvc")


def power_loss_risks(link: Link) -> list[str]:
    """List the reasons why an accepted change may not survive a power cut of the server.

    Checks the settings of this connection and of the server. The cache of the disk itself is not
    visible here.
    """
    fsync, pages, commit, method, version, unlogged = link.run(_SYNC_SETTINGS)[0]
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

# Transactions are mostly over in milliseconds.
LONG_OPEN_MS = MINUTE

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
    WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
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


def check_feed(link: Link) -> Finding:
    """Whether events reach those who follow them, and who is in the way if not."""
    if link.run(_FOREIGN_EVENTS):
        return Finding(
            "feed",
            "broken",
            "The events come from another server and its transactions; "
            "run `corral db migrate` once.",
        )
    for pid, program, database, age in link.run(_OLDEST_WRITER):
        if age is not None and age >= LONG_OPEN_MS:
            return _held_up(
                f"process {pid} ({program}, database {database})",
                age,
                f"SELECT pg_terminate_backend({pid})",
            )
    for name, database, age in link.run(_OLDEST_PREPARED):
        if age >= LONG_OPEN_MS:
            return _held_up(
                f"the prepared transaction {name} (database {database})",
                age,
                f"ROLLBACK PREPARED '{name}'",
            )
    return Finding("feed", "ok", "Its events are of this server, and nothing holds them back.")


def _held_up(by: str, age: int, remedy: str) -> Finding:
    since = format_duration(age // SECOND * SECOND)
    return Finding(
        "feed",
        "warning",
        f"Events wait for {by}, whose transaction is open for {since}; finish it, or end it with "
        f"`{remedy}`.",
    )
