"""The connections of a process to a PostgreSQL server: opened when needed, closed when unused."""

import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import psycopg
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import Int8Dumper

from corral.db.pooler import never, query_value, refuse_transaction_pooler
from corral.db.postgres_connection import PostgresConnection, choose_keepalive_options
from corral.db.postgres_errors import (
    TOO_MANY_CLIENTS,
    full_server_error,
    unreachable_error,
)
from corral.db.statement import Row
from corral.kernel.errors import Invalid, StoreUnavailable

MIN_SERVER_VERSION = 130_000  # the first version with 64-bit transaction ids (xid8)
MAX_CONNECTIONS = 32
# Prepared statements per connection. The daemon's loops use more than the driver's default of 100,
# and an evicted statement has to be planned again.
MAX_PREPARED = 400
CONNECT_TIMEOUT = 5  # seconds
MAX_SERVER_WAIT = 20.0  # seconds to wait for a server that is away
# An unused connection is closed after IDLE_SECONDS. A process that releases connections early
# closes it after EARLY_IDLE_SECONDS, and even one in constant use after EARLY_MAX_AGE: the server
# has a limit (100 by default), and other processes may be waiting.
IDLE_SECONDS = 5.0
EARLY_IDLE_SECONDS, EARLY_MAX_AGE = 0.3, 5.0
MIN_BACKOFF, MAX_BACKOFF = 0.1, 2.0  # seconds between attempts while the server is full

# Commits wait for the server's disk.
#
# Every statement has its index and is planned once: planning it for each value would cost more than
# running it, and a plan based on estimated values could scan a whole table.
#
# A client that is stopped inside a transaction (SIGSTOP, a suspended machine) never commits, and
# its kernel still answers keepalives. Without a limit its row locks would block all other writers,
# and the runs of a stopped machine could not be taken over. A limit set by the server is respected.
SESSION_SETTINGS = """
    SET synchronous_commit = on;
    SET default_transaction_isolation = 'read committed';
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_sort = off;
    SET jit = off;
    SELECT set_config('idle_in_transaction_session_timeout', '30s', false)
    WHERE current_setting('idle_in_transaction_session_timeout') = '0'
"""


class PostgresPool:
    """Opens, lends, checks and closes the connections of one handle. Thread-safe.

    A caller reserves a slot, takes a connection, gives it back and releases the slot. The number of
    slots bounds the connections of this process.
    """

    def __init__(self, conninfo: str, *, url: str, on_open: Callable[[], None]) -> None:
        """Open no connection yet.

        `url` is the location without a password, for error messages. `on_open` is called after a
        connection was opened for the pool.
        """
        self._conninfo = conninfo
        self.url = url
        self._on_open = on_open
        self._idle: list[PostgresConnection] = []
        self._free_slots: SimpleQueue[None] = SimpleQueue()
        """One entry for each connection that this process may still use."""
        for _ in range(MAX_CONNECTIONS):
            self._free_slots.put(None)
        self._is_checked = False
        """Whether it was checked that no pooler in transaction mode is in between."""
        self._is_pooled = False
        """Whether the URL leads to a pooler in session mode."""
        self._is_exiting = False
        self._is_closed = False
        self.idle_seconds = IDLE_SECONDS
        """How long an unused connection stays open."""
        self._max_age = math.inf

    # -- slots ----------------------------------------------------------------------------------

    def reserve_slot(self) -> None:
        """Reserve one of this process's connections; waits while all are in use.

        Raises StoreUnavailable if none becomes free in time.
        """
        try:
            self._free_slots.get(timeout=MAX_SERVER_WAIT)
        except Empty:
            raise StoreUnavailable(
                f"All {MAX_CONNECTIONS} connections of this process to {self.url} were busy for "
                f"{MAX_SERVER_WAIT:.0f} s. Use fewer threads, or end the operations that use them.",
                reason="locked",
            ) from None

    def release_slot(self) -> None:
        self._free_slots.put(None)

    # -- lending --------------------------------------------------------------------------------

    @property
    def has_idle(self) -> bool:
        """Whether an open connection waits for its next use."""
        return bool(self._idle)

    def take(self, *, max_wait: float) -> PostgresConnection:
        """Return an idle or a new connection; the caller has a slot, and gives it back.

        Retries for `max_wait` seconds while the server has no free connection, then raises
        StoreUnavailable.
        """
        return self._retry_while_full(self._take_idle_or_open, max_wait)

    def connect(self, *, max_wait: float) -> PostgresConnection:
        """Open a connection beside the pool, without its settings; the caller closes it.

        Retries like `take`.
        """
        return self._retry_while_full(self._connect_once, max_wait)

    def _retry_while_full(
        self, connect: Callable[[], PostgresConnection], max_wait: float
    ) -> PostgresConnection:
        deadline, backoff = time.monotonic() + max_wait, MIN_BACKOFF
        while True:
            try:
                return connect()
            except StoreUnavailable as error:
                is_full = error.reason == TOO_MANY_CLIENTS
                if not is_full or self._is_exiting or time.monotonic() >= deadline:
                    raise
                backoff = back_off(backoff, deadline)

    def _take_idle_or_open(self) -> PostgresConnection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._open()
            if connection.is_silent:
                return connection
            connection.close()

    def give_back(self, connection: PostgresConnection) -> None:
        """Keep a connection for its next use, after a rollback if needed, or close it."""
        if not connection.is_idle and connection.is_usable:
            with suppress(psycopg.Error):
                connection.run("ROLLBACK")
        if connection.is_idle:
            connection.returned_at = time.monotonic()
            if connection.returned_at - connection.opened_at > self._max_age:
                connection.close()
                return
            self._idle.append(connection)
            if self._is_closed:  # another thread closed the store in the meantime
                self.close_idle()
        elif connection.is_usable:  # interrupted in the middle of a statement
            connection.close()
        else:
            # When one connection broke, the idle ones probably broke too.
            while self._idle:
                with suppress(psycopg.Error, IndexError):
                    self._idle.pop().close()

    # -- opening --------------------------------------------------------------------------------

    def _open(self) -> PostgresConnection:
        """Open a connection for the pool."""
        connection = self._connect_once(for_pool=True)
        script = f"{SESSION_SETTINGS}; SELECT pg_backend_pid()"
        # Stop waiting for the new connection when one of the pool becomes idle.
        process = int(
            self._query_first(connection.connection, script, stop_when=lambda: bool(self._idle))
        )
        try:
            if not self._is_checked:
                self._is_pooled = refuse_transaction_pooler(
                    connection.connection,
                    process,
                    lambda: self._connect_once().connection,
                    self.url,
                )
                self._is_checked = True
        except BaseException:
            connection.close()
            raise
        self._on_open()
        return connection

    def _connect_once(self, *, for_pool: bool = False) -> PostgresConnection:
        """Open a connection and check it if pooled; with `for_pool`, the caller does that."""
        try:
            connection = psycopg.connect(
                self._conninfo,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT,
                application_name="corral",
                client_encoding="UTF8",
                prepare_threshold=0,
                **choose_keepalive_options(self._conninfo),
            )
        except psycopg.ProgrammingError:
            # The driver's message is not repeated: it quotes the URL, perhaps with a password.
            raise Invalid(
                "The store's URL is invalid. Expected a URL like postgresql://user@host/database.",
                reason="bad_url",
            ) from None
        except psycopg.Error as error:
            raise unreachable_error(self.url, error) from error
        self._require_supported_server(connection)
        connection.adapters.register_dumper(int, Int8Dumper)
        set_json_loads(_unchanged, connection)  # `make_record_builder` decodes JSON
        connection.prepared_max = MAX_PREPARED
        if self._is_pooled and not for_pool:
            self._query_first(connection, "SELECT 1")
        return PostgresConnection(connection)

    def _require_supported_server(self, connection: "psycopg.Connection[Row]") -> None:
        """Close the connection and raise StoreUnavailable if Corral cannot use its server."""
        if connection.info.server_version < MIN_SERVER_VERSION:
            connection.close()
            raise StoreUnavailable(
                f"The server of {self.url} is older than PostgreSQL 13. Upgrade it.",
                reason="old_server",
            )
        if connection.info.parameter_status("server_encoding") != "UTF8":
            connection.close()
            raise StoreUnavailable(
                f"The encoding of {self.url} is not UTF-8. Create a database with ENCODING 'UTF8'.",
                reason="encoding",
            )

    def _query_first(
        self,
        connection: "psycopg.Connection[Row]",
        text: str,
        stop_when: Callable[[], bool] = never,
    ) -> str:
        """Return the result of the first query on a new connection.

        A pooler in session mode accepts clients, and blocks their first statement until a server
        connection is free. Raises StoreUnavailable (too many clients) if no result comes in time,
        or `stop_when` returns True first.
        """
        try:
            result = query_value(
                connection, text.encode(), timeout=CONNECT_TIMEOUT, stop_when=stop_when
            )
        except psycopg.OperationalError as error:
            connection.close()
            raise unreachable_error(self.url, error) from error
        except BaseException:
            connection.close()
            raise
        if result is None:
            connection.close()
            raise full_server_error(self.url, "a connection pooler provided none in time")
        return result

    def run_first(self, connection: PostgresConnection, text: str) -> list[Row]:
        """Run a statement on a new connection; raises StoreUnavailable if the connection breaks."""
        try:
            return connection.run(text)
        except psycopg.OperationalError as error:
            connection.close()
            raise unreachable_error(self.url, error) from error

    # -- the server's time ----------------------------------------------------------------------

    def read_time(self) -> int:
        """Return the server's time, in milliseconds. Needs no slot."""
        # The caller may already hold the last slot, so this connection does not stay open.
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.connect(max_wait=0)
        try:
            return self.read_time_on(connection)
        finally:
            connection.close()

    def read_time_on(self, connection: PostgresConnection) -> int:
        """Return the server's time, read on an open connection."""
        (row,) = self.run_first(connection, "SELECT extract(epoch FROM clock_timestamp()) * 1000")
        return int(row[0])

    # -- closing --------------------------------------------------------------------------------

    @property
    def is_in_use(self) -> bool:
        """Whether a connection is open or about to be opened."""
        return bool(self._idle) or self._free_slots.qsize() < MAX_CONNECTIONS

    def release_early(self) -> None:
        """Close connections soon after each use; see `Database.release_connections_early`."""
        self.idle_seconds, self._max_age = EARLY_IDLE_SECONDS, EARLY_MAX_AGE

    def close_unused(self) -> None:
        """Close connections that were not used for `idle_seconds`."""
        unused_since = time.monotonic() - self.idle_seconds
        for connection in [idle for idle in self._idle if idle.returned_at <= unused_since]:
            with suppress(ValueError, psycopg.Error):  # another thread took it
                self._idle.remove(connection)
                connection.close()

    def stop_waiting(self) -> None:
        """Stop waiting for a server without free connections: this process is about to exit."""
        self._is_exiting = True

    def close(self) -> None:
        """Close the idle connections now, and the others when they are given back."""
        self._is_closed = True
        self.close_idle()

    def close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


def back_off(pause: float, deadline: float) -> float:
    """Sleep up to `pause` seconds with jitter, not past the deadline; return the next pause."""
    remaining = max(deadline - time.monotonic(), 0.0)
    time.sleep(min(random.uniform(pause / 2, pause), remaining + 0.01))
    return min(pause * 2, MAX_BACKOFF)


def _unchanged(text: str | bytes) -> str | bytes:
    return text
