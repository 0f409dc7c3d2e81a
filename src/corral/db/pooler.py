"""Detection of connection poolers that share one server connection among several clients.

Corral needs the state of its own session: settings (`SET`), prepared statements, advisory locks
that end with their holder, and LISTEN. A pooler in session mode (pgbouncer: pool_mode = session)
keeps all of it. In transaction mode a client may get another server connection for each
transaction: a lock would stay on a connection that another client uses next, and notifications
would be lost.
"""

import selectors
import time
from collections.abc import Callable

import psycopg

from corral.db.statement import Row
from corral.kernel.errors import StoreUnavailable

ANSWER_TIMEOUT = 5.0
MAX_TRIES = 3

_POLL_INTERVAL = 0.1
_BACKEND_PID = b"SELECT pg_backend_pid()"


def refuse_transaction_pooler(
    connection: psycopg.Connection[Row],
    process: int,
    connect: Callable[[], psycopg.Connection[Row]],
    url: str,
) -> bool:
    """Return whether `connection` leads to a pooler; raises StoreUnavailable in transaction mode.

    `process` is the result of pg_backend_pid(). On a direct connection it equals the pid that the
    client received at connect time, so the usual case costs nothing. Behind a proxy the pids
    differ; then a second connection shows whether both clients can get the same server process.
    """
    if connection.info.backend_pid == process:
        return False
    second = connect()
    try:
        for _ in range(MAX_TRIES):
            first_pid = query_value(connection, _BACKEND_PID)
            if query_value(second, b"BEGIN") is None:
                return True  # session mode, and no server connection is free for the second client
            second_pid = query_value(second, _BACKEND_PID)
            first_pid_again = query_value(connection, _BACKEND_PID)
            # No result: the second client's transaction holds the only server connection.
            if first_pid_again is None or first_pid != first_pid_again or second_pid == first_pid:
                raise _transaction_pooler_error(url)
            query_value(second, b"ROLLBACK")
    except psycopg.Error:
        # Statement mode refuses BEGIN.
        raise _transaction_pooler_error(url) from None
    finally:
        second.close()
    return True


def never() -> bool:
    """Do not stop waiting: the default of `stop_when`."""
    return False


def query_value(
    connection: psycopg.Connection[Row],
    text: bytes,
    *,
    timeout: float | None = None,
    stop_when: Callable[[], bool] = never,
) -> str | None:
    """Run a query and return its first value; None if the result does not come in time.

    The wait also ends when `stop_when` returns True; it is called several times a second.
    After None the connection can only be closed.
    """
    server = connection.pgconn
    server.send_query(text)
    deadline = time.monotonic() + (ANSWER_TIMEOUT if timeout is None else timeout)
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        while server.is_busy():
            remaining = deadline - time.monotonic()
            if selector.select(max(min(remaining, _POLL_INTERVAL), 0)):
                server.consume_input()
            elif remaining <= 0 or stop_when():
                return None
    value: bytes | None = b""
    while result := server.get_result():
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
        if result.ntuples:
            value = result.get_value(0, 0)
    return (value or b"").decode()


def _transaction_pooler_error(url: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"Cannot use {url}: it leads to a connection pooler that shares server connections between "
        "clients (pgbouncer with pool_mode = transaction or statement). Set pool_mode = session "
        "for this database, or give the URL of the server itself.",
        reason="pooler",
        url=url,
    )
