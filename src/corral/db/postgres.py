"""PostgreSQL through psycopg 3: many machines on one store.

The server itself groups commits and queues writers. This module runs transactions on pooled
connections, and retries after conflicts and while the server is away.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import psycopg
from psycopg import errors as pg

from corral.db import postgres_pool
from corral.db.database import Database, Work
from corral.db.move_check import MoveCheck
from corral.db.notifications import CHANNEL, CommitNotifier, NotifyListener
from corral.db.postgres_connection import (
    ConnectionLost,
    PostgresConnection,
    is_connection_lost,
    raise_if_lost,
)
from corral.db.postgres_errors import (
    remove_password,
    remove_secrets,
    translate,
    unknown_outcome_error,
    unreachable_error,
)
from corral.db.postgres_maintenance import (
    ADOPT_EVENTS,
    check_feed,
    power_loss_risks,
    read_all,
    read_snapshot,
    run_query,
)
from corral.db.postgres_pool import MIN_BACKOFF, PostgresPool, back_off
from corral.db.server_clock import ServerClock
from corral.db.statement import Statement
from corral.db.tx import Mode, Tx
from corral.db.types import Finding, Listener, Probe, QueryResult, ReadTable
from corral.db.write_guard import MOVED_OFFSET
from corral.kernel.clock import Clock
from corral.kernel.errors import CorralError, Invalid, StoreUnavailable

R = TypeVar("R")

MIGRATION_LOCK = 0x436F7272
MOVE_LOCK = MIGRATION_LOCK + 1
MIGRATION_LOCK_TIMEOUT = 60  # seconds to wait for a migration by another process
MAX_CONFLICT_RETRIES = 10  # retries after serialization failures and deadlocks
MAX_MOVE_CHECK_AGE = 1.0
"""How old the last check may be that the store was not moved; each check is one round trip."""


def _is_moved(connection: PostgresConnection) -> bool:
    query = f"SELECT EXISTS (SELECT 1 FROM migrations WHERE number > {MOVED_OFFSET})"
    return bool(connection.run(query)[0][0])


class PostgresDatabase(Database):
    """A handle on a PostgreSQL store."""

    engine = "postgres"
    stores_output = True

    def __init__(
        self, url: str, *, clock: Clock | None, actor: str, probe: Probe | None = None
    ) -> None:
        """Connect to the server. Without `clock`, the server's time is used."""
        super().__init__()
        self.address = url
        self.url, self.pointer = remove_password(url), remove_secrets(url)
        self.actor = actor
        self.probe = probe
        self._move_check = MoveCheck(_is_moved, max_age=MAX_MOVE_CHECK_AGE)
        self._notifier = CommitNotifier(self._send_notification, self._close_unused)
        self._pool = pool = PostgresPool(
            url, url=self.url, on_open=self._notifier.watch_connections
        )
        connection = pool.take(max_wait=self._max_wait)
        self.clock = clock or ServerClock(
            pool.read_time, at_first=lambda: pool.read_time_on(connection)
        )
        pool.give_back(connection)
        self._notifier.watch_connections()  # taken without a slot, it did not count as in use

    # -- transactions ---------------------------------------------------------------------------

    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        self.require_usable()
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if mode == "many" else None

        def once(connection: PostgresConnection) -> R:
            if begin:
                connection.run(begin)
            self._require_not_moved(connection)
            result = work(self._make_tx(connection, mode))
            if begin:
                connection.run("COMMIT")
            return result

        return self._run_with_retry(once, repeatable=True)

    def write(
        self, work: Work[R], *, mode: Mode = "many", durable: bool = False, repeatable: bool = False
    ) -> R:
        thread = self.thread
        if self.unusable or thread.is_writing:
            self.require_outside_operation()
        if thread.on_redaction is not None:
            work = self.report_redactions_of(work, thread.on_redaction)
        # Every commit waits for the server's disk, unless server settings prevent it: see
        # `power_loss_risks`.
        if self.probe is not None:
            mode = "many"  # the probe is called at an explicit commit

        def once(connection: PostgresConnection) -> R:
            if mode == "many":
                connection.begin()
            self._require_not_moved(connection)
            tx = self._make_tx(connection, mode)
            thread.is_writing = True
            try:
                result = work(tx)
            except CorralError as error:
                self._raise_if_moved(error, connection)
                raise
            except psycopg.Error as error:
                # In mode "one" the statement of the work commits by itself.
                raise_if_lost(connection, error, asked_to_commit=mode == "one")
                raise
            finally:
                thread.is_writing = False
            if tx.mode == "many":
                self._commit(connection)
            if tx.has_events:
                self._notifier.notify()
            return result

        return self._run_with_retry(once, repeatable=repeatable)

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        self.require_outside_operation()
        self._pool.reserve_slot()
        try:
            connection = self._take_begun()
            try:
                self._move_check.expire()
                self._require_not_moved(connection)
                tx = self._make_tx(connection, "many")
                self.thread.is_writing = True
                yield tx
                self._commit(connection)
            except ConnectionLost as lost:
                if lost.asked_to_commit:
                    raise unknown_outcome_error(self.url) from lost
                raise unreachable_error(self.url, lost.cause) from lost
            except psycopg.Error as error:
                if is_connection_lost(connection, error):
                    raise unreachable_error(self.url, error) from error
                self._raise(error)
            finally:
                self.thread.is_writing = False
                self._pool.give_back(connection)
        finally:
            self._pool.release_slot()
        if tx.has_events:
            self._notifier.notify()

    def _require_not_moved(self, connection: PostgresConnection) -> None:
        self._move_check.require_not_moved(self, connection, time.monotonic())

    def _raise_if_moved(self, error: CorralError, connection: PostgresConnection) -> None:
        """Raise StoreUnavailable instead of an error that was caused by stale content."""
        with suppress(psycopg.Error):  # the transaction may already be aborted
            moved = self._move_check.error_instead_of(error, self, connection)
            if moved is not None:
                raise moved from None

    def _take_begun(self) -> PostgresConnection:
        """Return a connection in a transaction; one that broke while it was idle is replaced."""
        while True:
            is_new = not self._pool.has_idle
            connection = self._pool.take(max_wait=self._max_wait)
            try:
                connection.begin()
                return connection
            except psycopg.Error as error:
                self._pool.give_back(connection)
                if is_new or connection.is_usable:
                    self._raise(error)

    def _commit(self, connection: PostgresConnection) -> None:
        if self.probe is not None:
            self.probe("before commit")
        try:
            connection.run("COMMIT")
        except psycopg.Error as error:
            # If the connection broke here, it is unknown whether the server committed.
            raise_if_lost(connection, error, asked_to_commit=True)
            raise
        if self.probe is not None:
            self.probe("after commit")

    def _run_with_retry(self, once: Callable[[PostgresConnection], R], *, repeatable: bool) -> R:
        """Run `once`; retry after conflicts, and while the server is away, up to the time limit."""
        max_wait = self._max_wait
        deadline: float | None = None
        backoff = MIN_BACKOFF
        for attempt in range(MAX_CONFLICT_RETRIES):
            while True:
                try:
                    return self._run_once(once)
                except ConnectionLost as lost:
                    if lost.asked_to_commit and not repeatable:
                        raise unknown_outcome_error(self.url) from lost
                    deadline = deadline or time.monotonic() + max_wait
                    if self.is_exiting or time.monotonic() > deadline:
                        raise (lost.refused or unreachable_error(self.url, lost)) from lost
                    if lost.is_full:
                        backoff = back_off(backoff, deadline)
                    else:
                        time.sleep(random.uniform(0.05, 0.3))
                except (pg.SerializationFailure, pg.DeadlockDetected):
                    time.sleep(random.uniform(0, 0.002) * 2**attempt)
                    break
                except psycopg.Error as error:
                    self._raise(error)
        raise StoreUnavailable(
            f"Other transactions kept changing the same rows of {self.url}. Try again.",
            reason="locked",
        )

    def _run_once(self, once: Callable[[PostgresConnection], R]) -> R:
        # A read inside an open transaction already has a slot; waiting for another could deadlock.
        has_slot = self.thread.is_writing
        if not has_slot:
            self._pool.reserve_slot()
        try:
            try:
                connection = self._pool.take(max_wait=0)
            except StoreUnavailable as error:
                raise ConnectionLost(False, psycopg.OperationalError(str(error)), error) from None
            try:
                return once(connection)
            except psycopg.Error as error:
                raise_if_lost(connection, error, asked_to_commit=False)
                raise
            finally:
                self._pool.give_back(connection)
        finally:
            if not has_slot:
                self._pool.release_slot()

    def _make_tx(self, connection: PostgresConnection, mode: Mode) -> Tx:
        return Tx(connection, self.clock.now(), self.actor, mode, self.redaction, self.run_id)

    # -- connections ----------------------------------------------------------------------------

    @property
    def _max_wait(self) -> float:
        """How long this thread waits for a server that is away, in seconds."""
        limit = self.thread.max_server_wait
        return postgres_pool.MAX_SERVER_WAIT if limit is None else limit

    def _connect_beside_pool(self) -> PostgresConnection:
        return self._pool.connect(max_wait=self._max_wait)

    def release_connections_early(self) -> None:
        self._pool.release_early()
        self._notifier.watch_connections()

    def stop_waiting(self) -> None:
        super().stop_waiting()
        self._pool.stop_waiting()

    def _close_unused(self) -> float | None:
        """Close unused connections and listeners; return when to check again, in seconds.

        Called by the helper thread. None: not before the next connection is opened.
        """
        self._pool.close_unused()
        unused_since = time.monotonic() - self._pool.idle_seconds
        for listener in list(self._listeners):
            if isinstance(listener, NotifyListener) and listener.paused_at <= unused_since:
                with suppress(ValueError):
                    self._listeners.remove(listener)
                    listener.close()
        return self._pool.idle_seconds if self._pool.is_in_use or self._listeners else None

    def _close(self) -> None:
        self._notifier.close()
        self._pool.close()

    # -- wake-ups -------------------------------------------------------------------------------

    def listen(self) -> Listener:
        return NotifyListener(lambda: self._pool.connect(max_wait=0))

    def _send_notification(self) -> None:
        with suppress(CorralError):
            self._run_with_retry(
                lambda connection: connection.run(f"NOTIFY {CHANNEL}"), repeatable=True
            )

    # -- durability -----------------------------------------------------------------------------

    def durability(self, wanted: str | None = None) -> str:
        if wanted == "normal":
            raise Invalid(
                "On PostgreSQL every commit waits for the server's disk; this cannot be lowered "
                "for one store."
            )
        risks = self.power_loss_risks()
        if risks and wanted == "full":
            raise Invalid(
                f"The server of {self.url} cannot guarantee that: {'; '.join(risks)}. Change the "
                "settings in postgresql.conf and reload the server."
            )
        return "normal" if risks else "full"

    def power_loss_risks(self) -> list[str]:
        return self._run_with_retry(power_loss_risks, repeatable=True)

    # -- migrations -----------------------------------------------------------------------------

    def schema_version(self) -> int:
        def read_version(connection: PostgresConnection) -> int:
            if connection.run("SELECT to_regclass('migrations')")[0][0] is None:
                return 0
            return int(connection.run("SELECT coalesce(max(number), 0) FROM migrations")[0][0])

        return self._run_with_retry(read_version, repeatable=True)

    @contextmanager
    def _advisory_lock_connection(self) -> Iterator[PostgresConnection]:
        """Open a connection for an advisory lock, and release the lock at the end of the block."""
        connection = self._connect_beside_pool()
        try:
            yield connection
        finally:
            # The server notices a closed connection only later.
            with suppress(psycopg.Error):
                connection.run("SELECT pg_advisory_unlock_all()")
            connection.close()

    @contextmanager
    def migration_lock(self) -> Iterator[None]:
        with self._advisory_lock_connection() as connection:
            self._pool.run_first(connection, f"SET lock_timeout = '{MIGRATION_LOCK_TIMEOUT}s'")
            try:
                connection.run(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
            except pg.LockNotAvailable:
                raise StoreUnavailable(
                    f"Another process has been migrating {self.url} for {MIGRATION_LOCK_TIMEOUT} "
                    "s. Wait until it is done, or end it.",
                    reason="locked",
                ) from None
            except psycopg.Error as error:
                raise unreachable_error(self.url, error) from error
            yield

    @contextmanager
    def move_lock(self) -> Iterator[bool]:
        with self._advisory_lock_connection() as connection:
            yield bool(
                self._pool.run_first(connection, f"SELECT pg_try_advisory_lock({MOVE_LOCK})")[0][0]
            )

    def run_migration(self, number: int, statements: list[str]) -> None:
        def once(connection: PostgresConnection) -> None:
            connection.begin()
            for statement in statements:
                connection.run(statement)
            self._commit(connection)

        self._run_with_retry(once, repeatable=False)

    # -- maintenance ----------------------------------------------------------------------------

    def check(self, *, thorough: bool) -> list[Finding]:
        version = self.read(lambda tx: tx.value(Statement("SELECT version()")), mode="one")
        return [
            *(read_all(self) if thorough else []),
            Finding("server", "ok", " ".join(str(version).split()[:2]) + " answers."),
            self._run_with_retry(check_feed, repeatable=True),
        ]

    def adopt_events(self) -> int:
        """Assign events of another server (from a loaded dump) to a transaction of this server.

        The feed is ordered by transaction ids of this server, and those of another server may lie
        in its future.
        """
        return len(self.write(lambda tx: tx.run(ADOPT_EVENTS)))

    def backup(self, target: Path) -> None:
        from corral.db.backup import copy_to_file

        copy_to_file(self, target)

    def restore(self, source: Path, kept: Path | None) -> None:
        from corral.db.backup import copy_from_file

        copy_from_file(source, self)

    @contextmanager
    def read_snapshot(self) -> Iterator[ReadTable]:
        try:
            with read_snapshot(self._connect_beside_pool()) as read_table:
                yield read_table
        except psycopg.Error as error:
            self._raise(error)

    def query(self, sql: str, *, limit: int, timeout_ms: int) -> QueryResult:
        connection = self._connect_beside_pool()
        try:
            return run_query(connection.connection, sql, limit=limit, timeout_ms=timeout_ms)
        except psycopg.Error as error:
            self._raise(error)
        finally:
            connection.close()

    def _raise(self, error: psycopg.Error) -> NoReturn:
        raise translate(error, self.url) from error
