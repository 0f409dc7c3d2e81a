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

from corral.db.database import CLOSED, Database
from corral.db.notifications import CommitNotifier, NotifyListener
from corral.db.pooler import query_value, refuse_transaction_pooler
from corral.db.postgres_connection import PostgresConnection, keepalive_options
from corral.db.postgres_errors import (
    TOO_MANY_CLIENTS,
    no_free_connection,
    unreachable,
    without_password,
    without_secrets,
)
from corral.db.server_clock import ServerClock
from corral.db.statement import Row
from corral.db.types import Listener, Probe
from corral.kernel.clock import Clock
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


class PostgresPool(Database):
    """The part of a PostgreSQL store that opens, pools and closes connections."""

    engine = "postgres"

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None,
        actor: str,
        probe: Probe | None = None,
    ) -> None:
        """Connect to the server. Without `clock`, the server's time is used."""
        super().__init__()
        self._conninfo = self.address = url
        self.url, self.pointer = without_password(url), without_secrets(url)
        self.actor = actor
        self._probe = probe
        self._idle: list[PostgresConnection] = []
        self._free_slots: SimpleQueue[None] = SimpleQueue()
        """One entry for each connection that this process may still use."""
        for _ in range(MAX_CONNECTIONS):
            self._free_slots.put(None)
        self._is_checked = False
        """Whether it was checked that no pooler in transaction mode is in between."""
        self._is_pooled = False
        """Whether the URL leads to a pooler in session mode."""
        self._idle_seconds = IDLE_SECONDS
        self._max_age = math.inf
        self._notifier = CommitNotifier(self._send_notification, self._close_unused)
        first = self._take()
        self.clock = clock or ServerClock(
            self._query_time, at_first=lambda: self._server_time(first)
        )
        self._idle.append(first)
        self._notifier.watch_connections()

    def _connect(self, *, wait: bool = True) -> PostgresConnection:
        """Open a connection; with `wait`, retry while the server has no free one."""
        return self._retry_while_full(self._connect_once, wait=wait)

    def _retry_while_full(
        self, connect: Callable[[], PostgresConnection], *, wait: bool
    ) -> PostgresConnection:
        """Call `connect`; with `wait`, retry while the server has no free connection."""
        deadline, backoff = time.monotonic() + self._max_wait, MIN_BACKOFF
        while True:
            try:
                return connect()
            except StoreUnavailable as error:
                is_full = error.reason == TOO_MANY_CLIENTS
                if not (is_full and wait) or self.is_exiting or time.monotonic() > deadline:
                    raise
                backoff = back_off(backoff, deadline)

    @property
    def _max_wait(self) -> float:
        limit = self.thread.max_server_wait
        return MAX_SERVER_WAIT if limit is None else limit

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
                **keepalive_options(self._conninfo),
            )
        except psycopg.ProgrammingError:
            # The driver's message is not repeated: it quotes the URL, perhaps with a password.
            raise Invalid(
                "The store's URL is invalid. Expected a URL like postgresql://user@host/database.",
                reason="bad_url",
            ) from None
        except psycopg.Error as error:
            raise unreachable(self.url, error) from error
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
        connection.adapters.register_dumper(int, Int8Dumper)
        set_json_loads(_unchanged, connection)  # `record_maker` decodes JSON
        connection.prepared_max = MAX_PREPARED
        if self._is_pooled and not for_pool:
            self._query_first(connection, "SELECT 1")
        return PostgresConnection(connection)

    def _query_first(
        self,
        connection: "psycopg.Connection[Row]",
        text: str,
        stop_when: Callable[[], object] = bool,
    ) -> str:
        """Return the result of the first query on a new connection.

        A pooler in session mode accepts clients, and blocks their first statement until a server
        connection is free. Raises StoreUnavailable (too many clients) if no result comes in time,
        or `stop_when` returns a true value first.
        """
        try:
            result = query_value(
                connection, text.encode(), timeout=CONNECT_TIMEOUT, stop_when=stop_when
            )
        except psycopg.OperationalError as error:
            connection.close()
            raise unreachable(self.url, error) from error
        except BaseException:
            connection.close()
            raise
        if result is None:
            connection.close()
            raise no_free_connection(self.url, "a connection pooler provided none in time")
        return result

    def _take(self, *, wait: bool = True) -> PostgresConnection:
        """Return an idle or a new connection; with `wait`, retry while the server has none free."""
        return self._retry_while_full(self._take_idle_or_open, wait=wait)

    def _take_idle_or_open(self) -> PostgresConnection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._open()
            if connection.is_silent:
                return connection
            connection.close()

    def _open(self) -> PostgresConnection:
        """Open a connection for the pool."""
        connection = self._connect_once(for_pool=True)
        script = f"{SESSION_SETTINGS}; SELECT pg_backend_pid()"
        # Stop waiting for the new connection when one of the pool becomes idle.
        process = int(
            self._query_first(connection.connection, script, stop_when=lambda: self._idle)
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
        self._notifier.watch_connections()
        return connection

    def _run_first(self, connection: PostgresConnection, text: str) -> list[Row]:
        """Run a statement on a new connection; raises StoreUnavailable if the connection breaks."""
        try:
            return connection.run(text)
        except psycopg.OperationalError as error:
            connection.close()
            raise unreachable(self.url, error) from error

    def _give_back(self, connection: PostgresConnection) -> None:
        """Return a connection to the pool, or close it."""
        if not connection.is_idle and connection.is_usable:
            with suppress(psycopg.Error):
                connection.run("ROLLBACK")
        if connection.is_idle:
            connection.returned_at = time.monotonic()
            if connection.returned_at - connection.opened_at > self._max_age:
                connection.close()
                return
            self._idle.append(connection)
            if self.unusable == CLOSED:  # another thread closed the store in the meantime
                self._close_idle()
        elif connection.is_usable:  # interrupted in the middle of a statement
            connection.close()
        else:
            # When one connection broke, the idle ones probably broke too.
            while self._idle:
                with suppress(psycopg.Error, IndexError):
                    self._idle.pop().close()

    def _query_time(self) -> int:
        # Without `_reserve_slot`: the caller may already hold the last slot.
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect(wait=False)
        try:
            return self._server_time(connection)
        finally:
            connection.close()

    def _server_time(self, connection: PostgresConnection) -> int:
        (row,) = self._run_first(connection, "SELECT extract(epoch FROM clock_timestamp()) * 1000")
        return int(row[0])

    def release_connections_early(self) -> None:
        self._idle_seconds, self._max_age = EARLY_IDLE_SECONDS, EARLY_MAX_AGE
        self._notifier.watch_connections()

    def _close_unused(self) -> float | None:
        """Close connections that were not used for a while; called by the helper thread."""
        unused_since = time.monotonic() - self._idle_seconds
        for connection in [idle for idle in self._idle if idle.returned_at <= unused_since]:
            with suppress(ValueError, psycopg.Error):  # another thread took it
                self._idle.remove(connection)
                connection.close()
        for listener in list(self._listeners):
            if isinstance(listener, NotifyListener) and listener.paused_at <= unused_since:
                with suppress(ValueError):
                    self._listeners.remove(listener)
                    listener.close()
        in_use = self._free_slots.qsize() < MAX_CONNECTIONS
        return self._idle_seconds if in_use or self._idle or self._listeners else None

    def _reserve_slot(self) -> None:
        """Reserve one of this process's connections; waits while all are in use."""
        try:
            self._free_slots.get(timeout=MAX_SERVER_WAIT)
        except Empty:
            raise StoreUnavailable(
                f"All {MAX_CONNECTIONS} connections of this process to {self.url} were busy for "
                f"{MAX_SERVER_WAIT:.0f} s. Use fewer threads, or end the operations that use them.",
                reason="locked",
            ) from None

    def _send_notification(self) -> None:
        raise NotImplementedError

    def listen(self) -> Listener:
        return NotifyListener(lambda: self._connect(wait=False))

    def _close(self) -> None:
        self._notifier.close()
        self._close_idle()

    def _close_idle(self) -> None:
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
