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
from corral.db.tx import NOTE
from corral.kernel.errors import StoreUnavailable

# A line that is dead without a word (a cable, a machine without power) is noticed within about ten
# seconds: a keeper that waits for it for longer than its lease could not end its agent in time.
NOTICED = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

_HAS_ROWS = psycopg.pq.ExecStatus.TUPLES_OK
_IDLE = psycopg.pq.TransactionStatus.IDLE
_OK = psycopg.pq.ConnStatus.OK


def noticed(conninfo: str) -> dict[str, Any]:
    """When a dead line is noticed, where the store's URL does not say it."""
    chosen = psycopg.conninfo.conninfo_to_dict(conninfo)
    return {name: value for name, value in NOTICED.items() if name not in chosen}


class Gone(Exception):
    """The connection broke. `asked_to_commit`: the server may have committed the work. `refused`:
    the error that prevented the connection from being opened."""

    def __init__(
        self,
        asked_to_commit: bool,
        cause: psycopg.Error,
        refused: StoreUnavailable | None = None,
    ) -> None:
        super().__init__(str(cause))
        self.asked_to_commit = asked_to_commit
        self.cause = cause
        self.refused = refused

    @property
    def is_full(self) -> bool:
        """Whether the server had no free connection."""
        return self.refused is not None and self.refused.reason == TOO_MANY_CLIENTS


class Link:
    engine: Engine = "postgres"

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self.connection = connection
        self.opened = self.rested = time.monotonic()
        """When the connection was opened, and when it was last returned to the pool."""
        self._server = connection.pgconn
        self._cursor = psycopg.RawCursor(connection)
        self._socket = select.poll()
        self._socket.register(connection.fileno(), select.POLLIN)

    def execute(self, statement: Statement, params: Params) -> list[Row]:
        values = statement.postgres.values(params)
        self._cursor.execute(statement.for_server, values, prepare=True)
        return self._rows()

    def execute_each(self, statement: Statement, given: Sequence[Params]) -> list[list[Row]]:
        values = statement.postgres.values
        self._cursor.executemany(statement.for_server, map(values, given), returning=True)
        return [self._rows() for _ in self._cursor.results()]

    def note(self, values: Row) -> None:
        self.execute(NOTE, dict(zip(NOTE.postgres.names, values, strict=True)))

    def noted(self, count: int) -> None:
        pass  # its indexes are always full

    def begin(self) -> None:
        # Whatever the server's default is: `Tx.serialize` needs each statement to see anew.
        self.run("BEGIN ISOLATION LEVEL READ COMMITTED")

    def run(self, text: str) -> list[Row]:
        self._cursor.execute(text, prepare=False)
        return self._rows()

    def _rows(self) -> list[Row]:
        # The status and not the description, which describes every column anew.
        result = self._cursor.pgresult
        return self._cursor.fetchall() if result and result.status == _HAS_ROWS else []

    @property
    def usable(self) -> bool:
        return self._server.status == _OK

    @property
    def idle(self) -> bool:
        """Whether it is usable, and in no transaction."""
        return self._server.transaction_status == _IDLE

    @property
    def silent(self) -> bool:
        """Whether nothing came while it lay on the shelf; only a farewell would."""
        return not self._socket.poll(0)


def is_gone(link: Link, error: psycopg.Error) -> bool:
    """Whether it is the connection that broke, and nothing that was asked."""
    return not link.usable or isinstance(error, pg.AdminShutdown | pg.CrashShutdown)


def raise_if_gone(link: Link, error: psycopg.Error, *, asked_to_commit: bool) -> None:
    if is_gone(link, error):
        # The server ended an idle transaction before COMMIT reached it: nothing was saved.
        ended = isinstance(error, pg.IdleInTransactionSessionTimeout)
        raise Gone(asked_to_commit and not ended, error) from error
