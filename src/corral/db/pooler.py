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

ANSWER_SECONDS = 5.0
TRIES = 3

_GLANCE = 0.1
_WHICH = b"SELECT pg_backend_pid()"


def refuse_transaction_pooler(
    connection: psycopg.Connection[Row],
    process: int,
    connect: Callable[[], psycopg.Connection[Row]],
    url: str,
) -> bool:
    """Whether `connection` leads to a pooler; raise StoreUnavailable if in transaction mode.

    `process` is the result of pg_backend_pid(). On a direct connection it equals the pid that the
    client received at connect time, so the usual case costs nothing. Behind a proxy the
    numbers differ; then a second connection shows whether both clients can get the same server
    process.
    """
    if connection.info.backend_pid == process:
        return False
    second = connect()
    try:
        for _ in range(TRIES):
            mine = ask(connection, _WHICH)
            if ask(second, b"BEGIN") is None:
                return True  # session mode, and no server connection is free for the second client
            theirs = ask(second, _WHICH)
            again = ask(connection, _WHICH)
            # No answer: the second client's transaction holds the only server connection.
            if again is None or mine != again or theirs == mine:
                raise _refusal(url)
            ask(second, b"ROLLBACK")
    except psycopg.Error:
        # Statement mode refuses BEGIN.
        raise _refusal(url) from None
    finally:
        second.close()
    return True


def ask(
    connection: psycopg.Connection[Row],
    text: bytes,
    *,
    seconds: float | None = None,
    unless: Callable[[], object] = bool,
) -> str | None:
    """The first value of the answer; None if the answer does not come in time.

    The wait also ends when `unless` gives something true; it is asked several times a second. After
    None the connection can only be closed.
    """
    server = connection.pgconn
    server.send_query(text)
    ends = time.monotonic() + (ANSWER_SECONDS if seconds is None else seconds)
    with selectors.DefaultSelector() as answer:
        answer.register(connection.fileno(), selectors.EVENT_READ)
        while server.is_busy():
            left = ends - time.monotonic()
            if answer.select(max(min(left, _GLANCE), 0)):
                server.consume_input()
            elif left <= 0 or unless():
                return None
    value: bytes | None = b""
    while result := server.get_result():
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
        if result.ntuples:
            value = result.get_value(0, 0)
    return (value or b"").decode()


def _refusal(url: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"Cannot use {url}: it leads to a connection pooler that shares server connections between "
        "clients (pgbouncer with pool_mode = transaction or statement). Set pool_mode = session "
        "for this database, or give the URL of the server itself.",
        reason="pooler",
        url=url,
    )
