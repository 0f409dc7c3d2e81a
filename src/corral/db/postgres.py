"""PostgreSQL through psycopg 3: many machines on one store.

The server groups commits and queues writers by itself, so this is a shelf of connections, one
statement's way to the server, and what to do when the server goes away.
"""

import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import Int8Dumper

from corral.db.database import Database, Finding, Listener, Table, Work
from corral.db.dialect import Engine
from corral.db.notices import CHANNEL, Bell, NotifyListener, ServerClock
from corral.db.postgres_care import plain, run_query
from corral.db.postgres_errors import (
    first_line,
    translate,
    unknown_outcome,
    unreachable,
    without_password,
)
from corral.db.statement import Params, Row, Statement
from corral.db.tx import Mode, Tx
from corral.kernel.clock import Clock
from corral.kernel.errors import CorralError, Invalid, StoreUnavailable

R = TypeVar("R")
Probe = Callable[[str], None]

MIGRATION_LOCK = 0x436F7272
MAX_CONNECTIONS = 32
CONNECT_SECONDS = 5
PATIENCE = 20.0  # how long a server that went away is waited for
MAX_CLASHES = 10  # how often a transaction that met another is run again

# Every statement of ours has its index and is planned once. Planning anew for each value would cost
# more than running it, and a plan that suits a guess about values would one day read a whole table.
STEADY_PLANS = """
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_sort = off;
    SET jit = off
"""


class Gone(Exception):
    """The connection broke. `asked_to_commit`: whether the server may have kept the work."""

    def __init__(self, asked_to_commit: bool, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.asked_to_commit = asked_to_commit


class Session:
    engine: Engine = "postgres"

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self.connection = connection
        self._cursor = psycopg.RawCursor(connection)
        self._socket = select.poll()
        self._socket.register(connection.fileno(), select.POLLIN)

    def execute(self, statement: Statement, params: Params) -> list[Row]:
        text, names = statement.postgres
        self._cursor.execute(text, [params[name] for name in names], prepare=True)
        return self._rows()

    def begin(self) -> None:
        self.run("BEGIN")

    def run(self, text: str) -> list[Row]:
        self._cursor.execute(text, prepare=False)
        return self._rows()

    def _rows(self) -> list[Row]:
        # The status and not the description, which describes every column anew.
        result = self._cursor.pgresult
        return self._cursor.fetchall() if result and result.status == _HAS_ROWS else []

    @property
    def usable(self) -> bool:
        return not self.connection.closed

    @property
    def silent(self) -> bool:
        """Whether nothing came while it lay on the shelf; only a farewell would."""
        return not self._socket.poll(0)


class PostgresDatabase(Database):
    engine = "postgres"

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
        self._conninfo = url
        self.url = without_password(url)
        self.actor = actor
        self._probe = probe
        self._idle: list[Session] = []
        self._places = threading.Semaphore(MAX_CONNECTIONS)
        self._bell = Bell(self._ring)
        self._idle.append(self._take())
        self.clock = clock or ServerClock(self._ask_time)

    # -- transactions ---------------------------------------------------------------------------

    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        self.require_same_process()
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if mode == "many" else None

        def once(session: Session) -> R:
            if begin:
                session.run(begin)
            result = work(self._tx(session, mode))
            if begin:
                session.run("COMMIT")
            return result

        return self._persist(once, repeatable=True)

    def write(
        self, work: Work[R], *, mode: Mode = "many", durable: bool = False, repeatable: bool = False
    ) -> R:
        self.require_outside_operation()
        # The server commits with an fsync in any case: `durable` asks for nothing more.
        if self._probe is not None:
            mode = "many"  # a probe wants to stand at every commit

        def once(session: Session) -> R:
            if mode == "many":
                session.begin()
            tx = self._tx(session, mode)
            self.working.here = True
            try:
                # In mode "one" the work's own statement is what commits.
                with nullcontext() if mode == "many" else self._committing(session):
                    result = work(tx)
            finally:
                self.working.here = False
            if tx.mode == "many":
                self._commit(session)
            if tx.noted:
                self._bell.ring()
            return result

        return self._persist(once, repeatable=repeatable)

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        self.require_outside_operation()
        with self._places:
            session = self._take_begun()
            try:
                tx = self._tx(session, "many")
                self.working.here = True
                yield tx
                self._commit(session)
            except Gone as gone:
                raise unknown_outcome(self.url) from gone
            except psycopg.Error as error:
                self._raise(error)
            finally:
                self.working.here = False
                self._give_back(session)
        if tx.noted:
            self._bell.ring()

    def _take_begun(self) -> Session:
        """A connection in a transaction; one that broke while it lay on the shelf is replaced."""
        while True:
            fresh = not self._idle
            session = self._take()
            try:
                session.begin()
                return session
            except psycopg.Error as error:
                self._give_back(session)
                if fresh or session.usable:
                    self._raise(error)

    def _commit(self, session: Session) -> None:
        if self._probe is not None:
            self._probe("before commit")
        with self._committing(session):
            session.run("COMMIT")
        if self._probe is not None:
            self._probe("after commit")

    @contextmanager
    def _committing(self, session: Session) -> Iterator[None]:
        """A connection that breaks in here leaves open whether the server kept the work."""
        try:
            yield
        except psycopg.OperationalError as error:
            self._raise_if_gone(session, error, asked_to_commit=True)
            raise

    def _persist(self, once: Callable[[Session], R], *, repeatable: bool) -> R:
        """Run it until it succeeds, fails for a reason of its own, or patience ends."""
        patience_ends: float | None = None
        for clash in range(MAX_CLASHES):
            while True:
                try:
                    return self._try(once)
                except Gone as gone:
                    if gone.asked_to_commit and not repeatable:
                        raise unknown_outcome(self.url) from gone
                    patience_ends = patience_ends or time.monotonic() + PATIENCE
                    if time.monotonic() > patience_ends:
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

    def _try(self, once: Callable[[Session], R]) -> R:
        with self._places:
            try:
                session = self._take()
            except StoreUnavailable as error:
                raise Gone(False, psycopg.OperationalError(str(error))) from None
            try:
                return once(session)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                self._raise_if_gone(session, error, asked_to_commit=False)
                raise
            finally:
                self._give_back(session)

    @staticmethod
    def _raise_if_gone(session: Session, error: psycopg.Error, *, asked_to_commit: bool) -> None:
        if not session.usable or isinstance(error, pg.AdminShutdown | pg.CrashShutdown):
            raise Gone(asked_to_commit, error) from error

    def _tx(self, session: Session, mode: Mode) -> Tx:
        return Tx(session, self.clock.now(), self.actor, mode)

    # -- connections ----------------------------------------------------------------------------

    def _connect(self) -> Session:
        try:
            connection = psycopg.connect(
                self._conninfo,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                application_name="corral",
                prepare_threshold=0,
            )
        except psycopg.ProgrammingError as error:
            raise Invalid(
                f"The store's URL is wrong: {first_line(error)}; write it like "
                "postgresql://user@host/database."
            ) from None
        except psycopg.Error as error:
            raise unreachable(self.url, error) from error
        connection.adapters.register_dumper(int, Int8Dumper)
        set_json_loads(_as_it_is, connection)  # records decode JSON themselves
        return Session(connection)

    def _take(self) -> Session:
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                session = self._connect()
                session.run(STEADY_PLANS)
                return session
            if session.silent:
                return session
            session.connection.close()

    def _give_back(self, session: Session) -> None:
        if session.usable and session.connection.info.transaction_status != _IDLE:
            with suppress(psycopg.Error):
                session.run("ROLLBACK")
        if session.usable:
            self._idle.append(session)
            return
        # When one connection broke, its neighbours probably did too.
        while self._idle:
            with suppress(psycopg.Error, IndexError):
                self._idle.pop().connection.close()

    def _ask_time(self) -> int:
        # On a connection of its own: whoever asks may hold the last place of the shelf already.
        session = self._connect()
        try:
            (answer,) = session.run("SELECT extract(epoch FROM clock_timestamp()) * 1000")
            return int(answer[0])
        finally:
            session.connection.close()

    def _close(self) -> None:
        self._bell.close()
        while self._idle:
            self._idle.pop().connection.close()

    # -- wake-ups -------------------------------------------------------------------------------

    def _ring(self) -> None:
        with suppress(CorralError):
            self._persist(lambda session: session.run(f"NOTIFY {CHANNEL}"), repeatable=True)

    def listen(self) -> Listener:
        return NotifyListener(self._connect)

    # -- durability -----------------------------------------------------------------------------

    def durability(self, wanted: str | None = None) -> str:
        if wanted == "normal":
            raise Invalid(
                "On PostgreSQL a commit is always on the server's disk; there is nothing "
                "to lower here."
            )
        return "full"

    # -- migrations -----------------------------------------------------------------------------

    def schema_version(self) -> int:
        def ask(session: Session) -> int:
            if session.run("SELECT to_regclass('migrations')")[0][0] is None:
                return 0
            return int(session.run("SELECT coalesce(max(number), 0) FROM migrations")[0][0])

        return self._persist(ask, repeatable=True)

    @contextmanager
    def migrating(self) -> Iterator[None]:
        session = self._connect()
        try:
            session.run(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
            yield
        finally:
            session.connection.close()

    def run_migration(self, number: int, statements: list[str]) -> None:
        def once(session: Session) -> None:
            session.begin()
            for statement in statements:
                session.run(statement)
            self._commit(session)

        self._persist(once, repeatable=False)

    # -- care -----------------------------------------------------------------------------------

    def check(self, *, thorough: bool) -> list[Finding]:
        version = self.read(lambda tx: tx.value(Statement("SELECT version()")), mode="one")
        foreign = self.read(lambda tx: tx.value(_FOREIGN_EVENTS), mode="one")
        return [
            Finding("server", "ok", " ".join(str(version).split()[:2]) + " answers."),
            Finding(
                "feed",
                "broken",
                "The events come from another server and its transactions; "
                "run `corral db migrate` once.",
            )
            if foreign
            else Finding("feed", "ok", "Its events are of this server."),
        ]

    def adopt_events(self) -> int:
        """Make events that another server numbered (a dump that was loaded here) ours.

        The feed goes by this server's transactions; to it, such events lie in the future.
        """
        return len(self.write(lambda tx: tx.run(_ADOPT_EVENTS)))

    def backup(self, target: Path) -> None:
        from corral.db.copy import copy_to_file

        copy_to_file(self, target)

    def restore(self, source: Path) -> None:
        from corral.db.copy import copy_from_file

        copy_from_file(source, self)

    @contextmanager
    def reading(self) -> Iterator[Callable[[str, list[str]], Iterator[Row]]]:
        """The rows of any table, all as they were at one moment, without holding them in memory."""
        session = self._connect()

        def rows_of(table: str, columns: list[str]) -> Iterator[Row]:
            listed = ", ".join(columns)
            with session.connection.cursor("rows") as cursor:
                cursor.execute(f"SELECT {listed} FROM {table} ORDER BY 1")
                for row in cursor:
                    yield tuple(map(plain, row))

        try:
            session.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield rows_of
        except psycopg.Error as error:
            self._raise(error)
        finally:
            session.connection.close()

    def query(self, sql: str, *, limit: int, timeout_ms: int) -> Table:
        session = self._connect()
        try:
            return run_query(session.connection, sql, limit=limit, timeout_ms=timeout_ms)
        except psycopg.Error as error:
            self._raise(error)
        finally:
            session.connection.close()

    def _raise(self, error: psycopg.Error) -> NoReturn:
        raise translate(error, self.url) from error


_FOREIGN_EVENTS = Statement("""
    SELECT 1 FROM events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1
""")

_ADOPT_EVENTS = Statement("""
    UPDATE events SET xid = pg_current_xact_id()
    WHERE xid > pg_current_xact_id() RETURNING seq
""")

_HAS_ROWS = psycopg.pq.ExecStatus.TUPLES_OK
_IDLE = psycopg.pq.TransactionStatus.IDLE


def _as_it_is(text: str | bytes) -> str | bytes:
    return text
