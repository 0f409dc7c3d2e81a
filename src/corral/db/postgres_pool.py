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

from corral.db.database import CLOSED, Database, Listener, Probe
from corral.db.notifications import Bell, NotifyListener, ServerClock
from corral.db.pooler import ask, refuse_transaction_pooler
from corral.db.postgres_connection import Link, noticed
from corral.db.postgres_errors import (
    TOO_MANY_CLIENTS,
    no_free_connection,
    unreachable,
    without_password,
    without_secrets,
)
from corral.db.statement import Row
from corral.kernel.clock import Clock
from corral.kernel.errors import Invalid, StoreUnavailable

OLDEST_SERVER = 130_000  # transaction numbers of 64 bits came with it
MAX_CONNECTIONS = 32
# Prepared statements per connection. The daemon's loops use more than the driver's default of 100,
# and an evicted statement has to be planned again.
MAX_PREPARED = 400
CONNECT_SECONDS = 5
PATIENCE = 20.0  # maximum wait for a server that is away
# An unused connection is closed after LINGER seconds. A process that spares connections closes it
# after SPARE_LINGER, and closes one in constant use after SPARE_HOLD: the server has a limit (100
# by default), and other processes may be waiting.
LINGER = 5.0
SPARE_LINGER, SPARE_HOLD = 0.3, 5.0
SHORTEST_BACKOFF, LONGEST_BACKOFF = 0.1, 2.0  # while the server has no free connection

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


class PostgresConnections(Database):
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
        self._idle: list[Link] = []
        self._places: SimpleQueue[None] = SimpleQueue()
        """One entry for each connection that this process may still open."""
        for _ in range(MAX_CONNECTIONS):
            self._places.put(None)
        self._is_checked = False
        """Whether the URL is known to lead to no pooler in transaction mode."""
        self._is_pooled = False
        """Whether it leads to a pooler in session mode."""
        self._linger = LINGER
        self._hold = math.inf
        self._bell = Bell(self._send_notice, self._close_unused)
        first = self._take()
        self.clock = clock or ServerClock(self._ask_time, at_first=lambda: self._time_of(first))
        self._idle.append(first)
        self._bell.attend()

    def _connect(self, *, wait: bool = True) -> Link:
        """Open a connection; with `wait`, retry while the server has no free one."""
        ends, backoff = time.monotonic() + self._patience, SHORTEST_BACKOFF
        while True:
            try:
                return self._connect_once()
            except StoreUnavailable as error:
                full = error.reason == TOO_MANY_CLIENTS
                if not (full and wait) or self.hurried or time.monotonic() > ends:
                    raise
                backoff = back_off(backoff, ends)

    @property
    def _patience(self) -> float:
        own = self.working.patience
        return PATIENCE if own is None else own

    def _connect_once(self, *, for_pool: bool = False) -> Link:
        """Open a connection. That a pooler serves it is checked, unless the caller does so."""
        try:
            connection = psycopg.connect(
                self._conninfo,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                application_name="corral",
                client_encoding="UTF8",
                prepare_threshold=0,
                **noticed(self._conninfo),
            )
        except psycopg.ProgrammingError:
            # The driver's message is not repeated: it quotes the URL, perhaps with a password.
            raise Invalid(
                "The store's URL is invalid. Expected a URL like postgresql://user@host/database.",
                reason="bad_url",
            ) from None
        except psycopg.Error as error:
            raise unreachable(self.url, error) from error
        if connection.info.server_version < OLDEST_SERVER:
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
        set_json_loads(_as_it_is, connection)  # records decode JSON themselves
        connection.prepared_max = MAX_PREPARED
        if self._is_pooled and not for_pool:
            self._ask_first(connection, "SELECT 1")
        return Link(connection)

    def _ask_first(
        self,
        connection: "psycopg.Connection[Row]",
        text: str,
        unless: Callable[[], object] = bool,
    ) -> str:
        """The answer to the first question on a new connection.

        Raises StoreUnavailable (too many clients) if no answer comes in time, or `unless` gives
        something true first: a pooler in session mode accepts clients, and lets their first
        statement wait until a server connection is free.
        """
        try:
            answer = ask(connection, text.encode(), seconds=CONNECT_SECONDS, unless=unless)
        except psycopg.OperationalError as error:
            connection.close()
            raise unreachable(self.url, error) from error
        except BaseException:
            connection.close()
            raise
        if answer is None:
            connection.close()
            raise no_free_connection(self.url, "a connection pooler gave none in time")
        return answer

    def _take(self, *, wait: bool = True) -> Link:
        """An idle connection, else a new one; with `wait`, retry while the server has none free."""
        ends, backoff = time.monotonic() + self._patience, SHORTEST_BACKOFF
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                try:
                    return self._open()
                except StoreUnavailable as error:
                    full = error.reason == TOO_MANY_CLIENTS
                    if not (full and wait) or self.hurried or time.monotonic() > ends:
                        raise
                    backoff = back_off(backoff, ends)
                    continue
            if link.silent:
                return link
            link.connection.close()

    def _open(self) -> Link:
        """A new connection for the pool."""
        link = self._connect_once(for_pool=True)
        script = f"{SESSION_SETTINGS}; SELECT pg_backend_pid()"
        # An idle connection of this process is as good: then the new one is not waited for.
        process = int(self._ask_first(link.connection, script, unless=lambda: self._idle))
        try:
            if not self._is_checked:
                self._is_pooled = refuse_transaction_pooler(
                    link.connection, process, lambda: self._connect_once().connection, self.url
                )
                self._is_checked = True
        except BaseException:
            link.connection.close()
            raise
        self._bell.attend()
        return link

    def _say_first(self, link: Link, text: str) -> list[Row]:
        """Run a statement on a new connection; raises StoreUnavailable if the connection breaks."""
        try:
            return link.run(text)
        except psycopg.OperationalError as error:
            link.connection.close()
            raise unreachable(self.url, error) from error

    def _give_back(self, link: Link) -> None:
        if not link.idle and link.usable:
            with suppress(psycopg.Error):
                link.run("ROLLBACK")
        if link.idle:
            link.rested = time.monotonic()
            if link.rested - link.opened > self._hold:
                link.connection.close()
                return
            self._idle.append(link)
            if self.unusable == CLOSED:  # closed by another thread in the meantime
                self._close_idle()
        elif link.usable:  # interrupted in the middle of a statement
            link.connection.close()
        else:
            # When one connection broke, the idle ones probably did too.
            while self._idle:
                with suppress(psycopg.Error, IndexError):
                    self._idle.pop().connection.close()

    def _ask_time(self) -> int:
        # Without `_await_place`: the caller may already hold the last place.
        try:
            link = self._idle.pop()
        except IndexError:
            link = self._connect(wait=False)
        try:
            return self._time_of(link)
        finally:
            link.connection.close()

    def _time_of(self, link: Link) -> int:
        (answer,) = self._say_first(link, "SELECT extract(epoch FROM clock_timestamp()) * 1000")
        return int(answer[0])

    def spare_connections(self) -> None:
        self._linger, self._hold = SPARE_LINGER, SPARE_HOLD
        self._bell.attend()

    def _close_unused(self) -> float | None:
        """Close connections that were not used for a while; called by the helper thread."""
        unused_since = time.monotonic() - self._linger
        for link in [each for each in self._idle if each.rested <= unused_since]:
            with suppress(ValueError, psycopg.Error):  # another thread took it
                self._idle.remove(link)
                link.connection.close()
        for listener in list(self._listeners):
            if isinstance(listener, NotifyListener) and listener.rested <= unused_since:
                with suppress(ValueError):
                    self._listeners.remove(listener)
                    listener.close()
        in_use = self._places.qsize() < MAX_CONNECTIONS
        return self._linger if in_use or self._idle or self._listeners else None

    def _await_place(self) -> None:
        """Reserve one of this process's connections; waits while all are in use."""
        try:
            self._places.get(timeout=PATIENCE)
        except Empty:
            raise StoreUnavailable(
                f"All {MAX_CONNECTIONS} connections of this process to {self.url} were busy for "
                f"{PATIENCE:.0f} s. Use fewer threads, or end the operations that hold them.",
                reason="locked",
            ) from None

    def _send_notice(self) -> None:
        raise NotImplementedError

    def listen(self) -> Listener:
        return NotifyListener(lambda: self._connect(wait=False))

    def _close(self) -> None:
        self._bell.close()
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().connection.close()


def back_off(pause: float, ends: float) -> float:
    """Sleep up to `pause` seconds, not beyond `ends`; returns the next, longer pause."""
    left = max(ends - time.monotonic(), 0.0)
    time.sleep(min(random.uniform(pause / 2, pause), left + 0.01))
    return min(pause * 2, LONGEST_BACKOFF)


def _as_it_is(text: str | bytes) -> str | bytes:
    return text
