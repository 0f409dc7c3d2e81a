"""PostgreSQL databases that are emptied and lent again: making one for each test costs far more
than the test."""

from contextlib import suppress

import psycopg
from psycopg import sql

from tests.support.postgres import PostgresServer

SECONDS = "5s"  # for whoever is still connected to let go

TERMINATE = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# A table without a byte holds no row; asking each for one would cost more than most tests.
FILLED = """
    SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0
"""
USED_SEQUENCES = """
    SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL
"""
# What the schema is made of, and what was set for the database: a test that changed either has
# used it up.
SHAPE = """
    SELECT (SELECT count(*) FROM pg_class), (SELECT sum(relnatts) FROM pg_class),
        (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_constraint),
        (SELECT count(*) FROM pg_trigger),
        (SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON s.setdatabase = d.oid
         WHERE d.datname = current_database())
"""
Connection = psycopg.Connection[tuple[object, ...]]


class Shelf:
    """Databases that are like a template whenever they are lent."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._free: list[str] = []
        with psycopg.connect(server.url(template), autocommit=True) as connection:
            self._shape = connection.execute(SHAPE).fetchone()
            self._given = {name: self._rows(connection, name) for name in self._filled(connection)}

    def lend(self) -> str:
        """The URL of a database that nobody else uses."""
        if self._free:
            return self._free.pop()
        return self._server.new_database(template=self._template)

    def take_back(self, url: str) -> None:
        """Make it as it was when it was lent, or have done with it."""
        if self.empty(url):
            self._free.append(url)
        else:
            self._server.drop_database(url)

    def empty(self, url: str) -> bool:
        """Make it as it was when it was lent; whether that could be done."""
        with suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as connection:
            return self._empty(connection)
        return False

    def _empty(self, connection: Connection) -> bool:
        connection.execute(TERMINATE)
        if connection.execute(SHAPE).fetchone() != self._shape:
            return False
        connection.execute(f"SET lock_timeout = '{SECONDS}'".encode())
        changed = [
            name
            for name in self._filled(connection)
            if self._rows(connection, name) != self._given.get(name)
        ]
        with connection.transaction():
            if changed:
                names = sql.SQL(", ").join(sql.Identifier(name) for name in changed)
                connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(names))
            for (name,) in connection.execute(USED_SEQUENCES).fetchall():
                restart = sql.SQL("ALTER SEQUENCE {} RESTART").format(sql.Identifier(str(name)))
                connection.execute(restart)
            for name, rows in self._given.items():
                if self._rows(connection, name) != rows:
                    self._fill(connection, name, rows)
        return True

    @staticmethod
    def _filled(connection: Connection) -> list[str]:
        return [str(name) for (name,) in connection.execute(FILLED)]

    @staticmethod
    def _rows(connection: Connection, table: str) -> list[tuple[object, ...]]:
        name = sql.Identifier(table)
        text = sql.SQL("SELECT * FROM {} ORDER BY 1 LIMIT 100").format(name)
        return connection.execute(text).fetchall()

    @staticmethod
    def _fill(connection: Connection, table: str, rows: list[tuple[object, ...]]) -> None:
        name = sql.Identifier(table)
        connection.execute(sql.SQL("DELETE FROM {}").format(name))
        places = sql.SQL(", ").join([sql.Placeholder()] * len(rows[0]))
        insert = sql.SQL("INSERT INTO {} VALUES ({})").format(name, places)
        with connection.cursor() as cursor:
            cursor.executemany(insert, rows)
