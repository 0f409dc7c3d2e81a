"""One connection to PostgreSQL."""

import select
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import errors as pg

from corral.db.dialect import Engine
from corral.db.postgres_errors import TOO_MANY_CLIENTS
from corral.db.statement import Params, Row, Statement
from corral.db.tx import INSERT_EVENT
from corral.kernel.errors import StoreUnavailable

# Detect a dead network connection (unplugged cable, machine without power) within about ten
# seconds: a supervisor that waits longer than its lease could not stop its agent in time.
KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

_HAS_ROWS = psycopg.pq.ExecStatus.TUPLES_OK
_IDLE = psycopg.pq.TransactionStatus.IDLE
_OK = psycopg.pq.ConnStatus.OK


def choose_keepalive_options(conninfo: str) -> dict[str, Any]:
    """Return the connection options of KEEPALIVES that the store's URL does not set itself."""
    chosen = psycopg.conninfo.conninfo_to_dict(conninfo)
    return {name: value for name, value in KEEPALIVES.items() if name not in chosen}


class ConnectionLost(Exception):
    """The connection broke, or could not be opened."""

    def __init__(
        self,
        asked_to_commit: bool,
        cause: psycopg.Error,
        refused: StoreUnavailable | None = None,
    ) -> None:
        super().__init__(str(cause))
        self.asked_to_commit = asked_to_commit
        """Whether COMMIT was sent: the server may have committed the work."""
        self.cause = cause
        self.refused = refused
        """The error that prevented the connection from being opened."""

    @property
    def is_full(self) -> bool:
        """Whether the server had no free connection."""
        return self.refused is not None and self.refused.reason == TOO_MANY_CLIENTS


class PostgresConnection:
    """Runs statements on one connection."""

    engine: Engine = "postgres"

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self.connection = connection
        self.opened_at = self.returned_at = time.monotonic()
        """When the connection was opened, and when it was last returned to the pool."""
        self._server = connection.pgconn
        self._cursor = psycopg.RawCursor(connection)
        self._socket = select.poll()
        self._socket.register(connection.fileno(), select.POLLIN)

    def execute(self, statement: Statement, params: Params) -> list[Row]:
        values = statement.postgres.values(params)
        self._cursor.execute(statement.postgres_bytes, values, prepare=True)
        return self._fetch_rows()

    def execute_batch(self, statement: Statement, param_sets: Sequence[Params]) -> list[list[Row]]:
        values = statement.postgres.values
        self._cursor.executemany(statement.postgres_bytes, map(values, param_sets), returning=True)
        return [self._fetch_rows() for _ in self._cursor.results()]

    def insert_event(self, values: Row) -> None:
        self.execute(INSERT_EVENT, dict(zip(INSERT_EVENT.postgres.names, values, strict=True)))

    def count_inserted_events(self, count: int) -> None:
        pass  # PostgreSQL has no deferred indexes

    def begin(self) -> None:
        # Explicitly, whatever the server's default: after `Tx.serialize` has waited, the next
        # statement must see what the other transaction committed.
        self.run("BEGIN ISOLATION LEVEL READ COMMITTED")

    def run(self, text: str) -> list[Row]:
        self._cursor.execute(text, prepare=False)
        return self._fetch_rows()

    def _fetch_rows(self) -> list[Row]:
        # Checks the status, because `cursor.description` builds objects for every column.
        result = self._cursor.pgresult
        return self._cursor.fetchall() if result and result.status == _HAS_ROWS else []

    def close(self) -> None:
        self.connection.close()

    @property
    def is_usable(self) -> bool:
        return self._server.status == _OK

    @property
    def is_idle(self) -> bool:
        """Whether the connection is usable and outside a transaction."""
        return self._server.transaction_status == _IDLE

    @property
    def is_silent(self) -> bool:
        """Whether no data is pending, so the server has not closed this idle connection."""
        return not self._socket.poll(0)


def is_connection_lost(connection: PostgresConnection, error: psycopg.Error) -> bool:
    """Whether the connection broke, rather than the statement failing."""
    return not connection.is_usable or isinstance(error, pg.AdminShutdown | pg.CrashShutdown)


def raise_if_lost(
    connection: PostgresConnection, error: psycopg.Error, *, asked_to_commit: bool
) -> None:
    """Raise ConnectionLost if the error means that the connection broke."""
    if is_connection_lost(connection, error):
        # The server ended an idle transaction before COMMIT reached it: nothing was saved.
        was_idle = isinstance(error, pg.IdleInTransactionSessionTimeout)
        raise ConnectionLost(asked_to_commit and not was_idle, error) from error
