"""PostgreSQL databases that are emptied and reused, because creating one costs more than a test.

The pool keeps one connection per database: a new server process must first load the catalogue,
which costs more than emptying the tables. For the same reason the connections of the stores are
kept (`connection_cache.py`). All of them use the application name NAME, and a count of the users of
a store leaves them out.
"""

import os
import time
from contextlib import suppress

import psycopg
from psycopg import sql

from tests.support.connection_cache import ConnectionCache
from tests.support.postgres_server import PostgresServer

NAME = "database_pool"
SECONDS = 5.0  # seconds; for other clients to disconnect
# above this size a table is truncated, because every test would read its dead rows
FEW_BYTES = 32_768

TERMINATE = f"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name <> '{NAME}'
"""
OTHERS = f"""
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND backend_type = 'client backend' AND application_name <> '{NAME}'
"""
# A test that changed the schema or a database setting has used the database up. A statement that
# changes the schema writes catalogue rows with its transaction number (xmin); TRUNCATE and data
# changes do not, except in pg_class. Objects below 16384 belong to the server.
SHAPE = """
    SELECT (SELECT count(*) FROM pg_class WHERE oid >= 16384),
        (SELECT sum(CAST(CAST(xmin AS TEXT) AS BIGINT)) FROM pg_attribute WHERE attrelid >= 16384),
        (SELECT sum(CAST(CAST(xmin AS TEXT) AS BIGINT)) FROM pg_index WHERE indexrelid >= 16384),
        (SELECT sum(CAST(CAST(xmin AS TEXT) AS BIGINT)) FROM pg_attrdef),
        (SELECT sum(CAST(CAST(xmin AS TEXT) AS BIGINT)) FROM pg_constraint WHERE oid >= 16384),
        (SELECT sum(CAST(CAST(xmin AS TEXT) AS BIGINT)) FROM pg_trigger WHERE oid >= 16384),
        (SELECT sum(CAST(CAST(xmin AS TEXT) AS BIGINT)) FROM pg_proc WHERE oid >= 16384),
        (SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON s.setdatabase = d.oid
         WHERE d.datname = current_database())
"""
TABLES = """
    SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""
# A store that was moved away or is being filled rejects writes by triggers on all its tables.
DROP_FENCE = "DROP FUNCTION IF EXISTS fence() CASCADE"
RESTART_SEQUENCES = """
    SELECT setval(quote_ident(sequencename)::regclass, start_value, false) FROM pg_sequences
    WHERE schemaname = 'public' AND last_value IS NOT NULL
"""
Connection = psycopg.Connection[tuple[object, ...]]
Rows = list[tuple[object, ...]]

_lent: dict[str, "DatabasePool"] = {}


def filled_tables(url: str) -> set[str] | None:
    """Return the tables that hold a row; None if the pool cannot tell.

    It cannot tell for a store outside the pool, and in a forked child, because the parent owns the
    connection.
    """
    pool = _lent.get(url)
    return None if pool is None or pool.pid != os.getpid() else pool.filled(url)


def others_connected(url: str) -> bool:
    """Return whether a client other than the pool is connected to the database.

    Uses the pool's own connection where it may: a new one costs the server a process.
    """
    pool = _lent.get(url)
    if pool is not None and pool.pid == os.getpid():
        return pool.is_used(url)
    with psycopg.connect(url, autocommit=True) as connection:
        return _is_used(connection)


class DatabasePool:
    """Databases that equal a template whenever they are lent."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self.pid = os.getpid()
        self._server = server
        self._template = template
        self._free: list[str] = []
        self._connections: dict[str, Connection] = {}
        self.kept = ConnectionCache(NAME)
        with psycopg.connect(server.url(template), autocommit=True) as connection:
            self._shape = connection.execute(SHAPE).fetchone()
            names = [str(name) for (name,) in connection.execute(TABLES)]
            self._filled = _filled(names)
            self._given = {
                name: _rows(connection, name) for name, _ in connection.execute(self._filled)
            }

    def lend(self) -> str:
        """Return the URL of a database that no other test uses."""
        if not self._free:
            self._free.append(self._server.new_database(template=self._template))
        url = self._free.pop()
        _lent[url] = self
        self.kept.begin(url)
        return url

    def take_back(self, url: str) -> None:
        """Empty the database for the next test, or drop it."""
        del _lent[url]
        if self.empty(url):
            self._free.append(url)
        else:
            self.kept.end(url)
            self._server.drop_database(url)

    def empty(self, url: str) -> bool:
        """Restore the state of the template; return whether that was possible."""
        with suppress(psycopg.Error):
            if self._empty(self._connection(url)):
                return True
        if url in self._connections:
            self._connections.pop(url).close()
        return False

    def filled(self, url: str) -> set[str]:
        return {str(name) for name, _ in self._connection(url).execute(self._filled)}

    def is_used(self, url: str) -> bool:
        return _is_used(self._connection(url))

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def _connection(self, url: str) -> Connection:
        if url not in self._connections:
            connection: Connection = psycopg.connect(
                url, autocommit=True, prepare_threshold=0, application_name=NAME
            )
            connection.execute(f"SET lock_timeout = '{SECONDS:.0f}s'".encode())
            self._connections[url] = connection
        return self._connections[url]

    def _empty(self, connection: Connection) -> bool:
        if not _alone(connection):
            return False
        if connection.execute(SHAPE).fetchone() != self._shape:
            connection.execute(DROP_FENCE)
            if connection.execute(SHAPE).fetchone() != self._shape:
                return False
        sizes = {str(name): int(str(size)) for name, size in connection.execute(self._filled)}
        changed_tables = [
            name
            for name in sizes
            if name not in self._given or _rows(connection, name) != self._given[name]
        ]
        large = [sql.Identifier(name) for name in changed_tables if sizes[name] > FEW_BYTES]
        with connection.transaction():
            if large:
                names = sql.SQL(", ").join(large)
                connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(names))
            for name in changed_tables:
                if sizes[name] <= FEW_BYTES:
                    connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
            connection.execute(RESTART_SEQUENCES)
            for name, rows in self._given.items():
                if name in changed_tables or name not in sizes:
                    _fill(connection, name, rows)
        return True


def _is_used(connection: Connection) -> bool:
    return connection.execute(OTHERS).fetchall() != [(0,)]


def _alone(connection: Connection) -> bool:
    """Disconnect all other clients and wait until they are gone; return whether they are."""
    deadline = time.monotonic() + SECONDS
    while connection.execute(TERMINATE).fetchall():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _filled(names: list[str]) -> sql.Composed:
    """Return which tables hold a row and their size in bytes, with one query."""
    query = "SELECT {0}, pg_relation_size({0}) WHERE EXISTS (SELECT FROM {1})"
    queries = [sql.SQL(query).format(sql.Literal(name), sql.Identifier(name)) for name in names]
    return sql.SQL(" UNION ALL ").join(queries)


def _rows(connection: Connection, table: str) -> Rows:
    name = sql.Identifier(table)
    text = sql.SQL("SELECT * FROM {} ORDER BY 1 LIMIT 100").format(name)
    return connection.execute(text).fetchall()


def _fill(connection: Connection, table: str, rows: Rows) -> None:
    name = sql.Identifier(table)
    places = sql.SQL(", ").join([sql.Placeholder()] * len(rows[0]))
    insert = sql.SQL("INSERT INTO {} VALUES ({})").format(name, places)
    with connection.cursor() as cursor:
        cursor.executemany(insert, rows)
