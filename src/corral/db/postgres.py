"""PostgreSQL through psycopg 3: many machines on one store.

The server groups commits and queues writers by itself, so this is a shelf of connections, one
statement's way to the server, and what to do when the server goes away.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NoReturn, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import Int8Dumper

from corral.db.database import CLOSED, Database, Finding, Listener, Probe, RowsOf, Table, Work
from corral.db.notices import CHANNEL, Bell, NotifyListener, ServerClock
from corral.db.postgres_care import (
    ADOPT_EVENTS,
    check_feed,
    power_loss_risks,
    read_all,
    reading,
    run_query,
)
from corral.db.postgres_errors import (
    translate,
    unknown_outcome,
    unreachable,
    without_password,
    without_secrets,
)
from corral.db.postgres_link import Gone, Link, is_gone, noticed, raise_if_gone
from corral.db.statement import Row, Statement
from corral.db.tx import Mode, Tx
from corral.kernel.clock import Clock
from corral.kernel.errors import CorralError, Invalid, StoreUnavailable

R = TypeVar("R")

MIGRATION_LOCK = 0x436F7272
MOVE_LOCK = MIGRATION_LOCK + 1
OLDEST_SERVER = 130_000  # transaction numbers of 64 bits came with it
MAX_CONNECTIONS = 32
# Plans that a connection keeps. A daemon's rounds, or a thorough look at a store, use more
# statements than the driver's 100, and each that was put out is planned anew at its next turn.
MAX_PREPARED = 400
CONNECT_SECONDS = 5
PATIENCE = 20.0  # how long a server that went away is waited for
MAX_CLASHES = 10  # how often a transaction that met another is run again

# What was accepted is on the server's disk. Every statement of ours has its index and is planned
# once: planning anew for each value would cost more than running it, and a plan that suits a guess
# about values would one day read a whole table.
STEADY_PLANS = """
    SET synchronous_commit = on;
    SET default_transaction_isolation = 'read committed';
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_sort = off;
    SET jit = off
"""


class PostgresDatabase(Database):
    engine = "postgres"
    keeps_output = True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None,
        actor: str,
        probe: Probe | None = None,
    ) -> None:
        """Connect to the server; without a clock of the caller's, the server's time is used."""
        super().__init__()
        self._conninfo = self.address = url
        self.url, self.pointer = without_password(url), without_secrets(url)
        self.actor = actor
        self._probe = probe
        self._idle: list[Link] = []
        self._places: SimpleQueue[None] = SimpleQueue()
        """As many as connections that this process may still make use of."""
        for _ in range(MAX_CONNECTIONS):
            self._places.put(None)
        self._bell = Bell(self._ring)
        first = self._take()
        self.clock = clock or ServerClock(self._ask_time, at_first=lambda: self._time_of(first))
        self._idle.append(first)

    # -- transactions ---------------------------------------------------------------------------

    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        self.require_usable()
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if mode == "many" else None

        def once(link: Link) -> R:
            if begin:
                link.run(begin)
            result = work(self._tx(link, mode))
            if begin:
                link.run("COMMIT")
            return result

        return self._persist(once, repeatable=True)

    def write(
        self, work: Work[R], *, mode: Mode = "many", durable: bool = False, repeatable: bool = False
    ) -> R:
        working = self.working
        if self.unusable or working.here:
            self.require_outside_operation()
        if working.tell is not None:
            work = self.telling(work, working.tell)
        # Every commit waits for the server's disk, if the server does: see `power_loss_risks`.
        if self._probe is not None:
            mode = "many"  # a probe wants to stand at every commit

        def once(link: Link) -> R:
            if mode == "many":
                link.begin()
            tx = self._tx(link, mode)
            working.here = True
            try:
                result = work(tx)
            except psycopg.OperationalError as error:
                # In mode "one" the work's own statement is what commits.
                raise_if_gone(link, error, asked_to_commit=mode == "one")
                raise
            finally:
                working.here = False
            if tx.mode == "many":
                self._commit(link)
            if tx.noted:
                self._bell.ring()
            return result

        return self._persist(once, repeatable=repeatable)

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        self.require_outside_operation()
        self._await_place()
        try:
            link = self._take_begun()
            try:
                tx = self._tx(link, "many")
                self.working.here = True
                yield tx
                self._commit(link)
            except Gone as gone:
                raise unknown_outcome(self.url) from gone
            except psycopg.Error as error:
                if is_gone(link, error):
                    raise unreachable(self.url, error) from error
                self._raise(error)
            finally:
                self.working.here = False
                self._give_back(link)
        finally:
            self._places.put(None)
        if tx.noted:
            self._bell.ring()

    def _await_place(self) -> None:
        """One of the connections that this process may have; those who come late wait."""
        try:
            self._places.get(timeout=PATIENCE)
        except Empty:
            raise StoreUnavailable(
                f"All {MAX_CONNECTIONS} connections of this process to {self.url} were busy for "
                f"{PATIENCE:.0f} s; share the work out, or end what holds them.",
                reason="locked",
            ) from None

    def _take_begun(self) -> Link:
        """A connection in a transaction; one that broke while it lay on the shelf is replaced."""
        while True:
            fresh = not self._idle
            link = self._take()
            try:
                link.begin()
                return link
            except psycopg.Error as error:
                self._give_back(link)
                if fresh or link.usable:
                    self._raise(error)

    def _commit(self, link: Link) -> None:
        if self._probe is not None:
            self._probe("before commit")
        try:
            link.run("COMMIT")
        except psycopg.OperationalError as error:
            # The connection broke in here: that leaves open whether the server kept the work.
            raise_if_gone(link, error, asked_to_commit=True)
            raise
        if self._probe is not None:
            self._probe("after commit")

    def _persist(self, once: Callable[[Link], R], *, repeatable: bool) -> R:
        """Run it until it succeeds, fails for a reason of its own, or patience ends."""
        own = self.working.patience
        patience = PATIENCE if own is None else own
        patience_ends: float | None = None
        for clash in range(MAX_CLASHES):
            while True:
                try:
                    return self._try(once)
                except Gone as gone:
                    if gone.asked_to_commit and not repeatable:
                        raise unknown_outcome(self.url) from gone
                    patience_ends = patience_ends or time.monotonic() + patience
                    if self.hurried or time.monotonic() > patience_ends:
                        raise unreachable(self.url, gone) from gone
                    time.sleep(random.uniform(0.05, 0.3))
                except (pg.SerializationFailure, pg.DeadlockDetected):
                    time.sleep(random.uniform(0, 0.002) * 2**clash)
                    break
                except psycopg.Error as error:
                    self._raise(error)
        raise StoreUnavailable(
            f"Others kept changing the same rows of {self.url}; try again.",
            reason="locked",
        )

    def _try(self, once: Callable[[Link], R]) -> R:
        # Whoever reads inside its own transaction has a place and must not wait for another.
        has_place = self.working.here
        if not has_place:
            self._await_place()
        try:
            try:
                link = self._take()
            except StoreUnavailable as error:
                raise Gone(False, psycopg.OperationalError(str(error))) from None
            try:
                return once(link)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                raise_if_gone(link, error, asked_to_commit=False)
                raise
            finally:
                self._give_back(link)
        finally:
            if not has_place:
                self._places.put(None)

    def _tx(self, link: Link, mode: Mode) -> Tx:
        return Tx(link, self.clock.now(), self.actor, mode, self.redaction, self.origin)

    # -- connections ----------------------------------------------------------------------------

    def _connect(self) -> Link:
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
            # Its own words are not repeated: they quote the URL, and so perhaps a password.
            raise Invalid(
                "The store's URL is wrong; write it like postgresql://user@host/database."
            ) from None
        except psycopg.Error as error:
            raise unreachable(self.url, error) from error
        if connection.info.server_version < OLDEST_SERVER:
            connection.close()
            raise StoreUnavailable(
                f"The server of {self.url} is older than PostgreSQL 13; upgrade it.",
                reason="old_server",
            )
        if connection.info.parameter_status("server_encoding") != "UTF8":
            connection.close()
            raise StoreUnavailable(
                f"{self.url} does not keep UTF-8; make a database with ENCODING 'UTF8'.",
                reason="encoding",
            )
        connection.adapters.register_dumper(int, Int8Dumper)
        set_json_loads(_as_it_is, connection)  # records decode JSON themselves
        connection.prepared_max = MAX_PREPARED
        return Link(connection)

    def _take(self) -> Link:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                link = self._connect()
                self._say_first(link, STEADY_PLANS)
                return link
            if link.silent:
                return link
            link.connection.close()

    def _say_first(self, link: Link, text: str) -> list[Row]:
        """Ask something on a new connection; one that breaks at once was none."""
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
            self._idle.append(link)
            if self.unusable == CLOSED:  # meanwhile, and whoever closed it has seen the shelf empty
                self._close_idle()
        elif link.usable:  # who was interrupted left it in the middle of a statement
            link.connection.close()
        else:
            # When one connection broke, its neighbours probably did too.
            while self._idle:
                with suppress(psycopg.Error, IndexError):
                    self._idle.pop().connection.close()

    def _ask_time(self) -> int:
        # On a connection of its own: whoever asks may hold the last place of the shelf already.
        link = self._connect()
        try:
            return self._time_of(link)
        finally:
            link.connection.close()

    def _time_of(self, link: Link) -> int:
        (answer,) = self._say_first(link, "SELECT extract(epoch FROM clock_timestamp()) * 1000")
        return int(answer[0])

    def _close(self) -> None:
        self._bell.close()
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().connection.close()

    # -- wake-ups -------------------------------------------------------------------------------

    def _ring(self) -> None:
        with suppress(CorralError):
            self._persist(lambda link: link.run(f"NOTIFY {CHANNEL}"), repeatable=True)

    def listen(self) -> Listener:
        return NotifyListener(self._connect)

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
                f"The server of {self.url} does not keep that promise: {'; '.join(risks)}. Change "
                "that in postgresql.conf and reload the server."
            )
        return "normal" if risks else "full"

    def power_loss_risks(self) -> list[str]:
        return self._persist(power_loss_risks, repeatable=True)

    # -- migrations -----------------------------------------------------------------------------

    def schema_version(self) -> int:
        def ask(link: Link) -> int:
            if link.run("SELECT to_regclass('migrations')")[0][0] is None:
                return 0
            return int(link.run("SELECT coalesce(max(number), 0) FROM migrations")[0][0])

        return self._persist(ask, repeatable=True)

    @contextmanager
    def migrating(self) -> Iterator[None]:
        link = self._connect()
        try:
            self._say_first(link, f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
            yield
        finally:
            link.connection.close()

    @contextmanager
    def moving(self) -> Iterator[bool]:
        link = self._connect()
        try:
            yield bool(self._say_first(link, f"SELECT pg_try_advisory_lock({MOVE_LOCK})")[0][0])
            link.run("SELECT pg_advisory_unlock_all()")  # to close it takes the server a moment
        finally:
            link.connection.close()

    def run_migration(self, number: int, statements: list[str]) -> None:
        def once(link: Link) -> None:
            link.begin()
            for statement in statements:
                link.run(statement)
            self._commit(link)

        self._persist(once, repeatable=False)

    # -- care -----------------------------------------------------------------------------------

    def check(self, *, thorough: bool) -> list[Finding]:
        version = self.read(lambda tx: tx.value(Statement("SELECT version()")), mode="one")
        return [
            *(read_all(self) if thorough else []),
            Finding("server", "ok", " ".join(str(version).split()[:2]) + " answers."),
            self._persist(check_feed, repeatable=True),
        ]

    def adopt_events(self) -> int:
        """Make events that another server numbered (a dump that was loaded here) ours.

        The feed goes by this server's transactions; to it, such events lie in the future.
        """
        return len(self.write(lambda tx: tx.run(ADOPT_EVENTS)))

    def backup(self, target: Path) -> None:
        from corral.db.copy import copy_to_file

        copy_to_file(self, target)

    def restore(self, source: Path, kept: Path | None) -> None:
        from corral.db.copy import copy_from_file

        copy_from_file(source, self)

    @contextmanager
    def reading(self) -> Iterator[RowsOf]:
        try:
            with reading(self._connect()) as rows_of:
                yield rows_of
        except psycopg.Error as error:
            self._raise(error)

    def query(self, sql: str, *, limit: int, timeout_ms: int) -> Table:
        link = self._connect()
        try:
            return run_query(link.connection, sql, limit=limit, timeout_ms=timeout_ms)
        except psycopg.Error as error:
            self._raise(error)
        finally:
            link.connection.close()

    def _raise(self, error: psycopg.Error) -> NoReturn:
        raise translate(error, self.url) from error


def _as_it_is(text: str | bytes) -> str | bytes:
    return text
