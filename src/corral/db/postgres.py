"""PostgreSQL through psycopg 3: many machines on one store.

The server groups commits and queues writers by itself, so this is a shelf of connections, one
statement's way to the server, and what to do when the server goes away.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import psycopg
from psycopg import errors as pg

from corral.db.database import Finding, RowsOf, Table, Work
from corral.db.notifications import CHANNEL
from corral.db.postgres_connection import Gone, Link, is_gone, raise_if_gone
from corral.db.postgres_errors import (
    translate,
    unknown_outcome,
    unreachable,
)
from corral.db.postgres_maintenance import (
    ADOPT_EVENTS,
    check_feed,
    power_loss_risks,
    read_all,
    reading,
    run_query,
)
from corral.db.postgres_pool import SHORTEST_BACKOFF, PostgresConnections, back_off
from corral.db.statement import Statement
from corral.db.tx import Mode, Tx
from corral.db.write_fence import AWAY
from corral.kernel.errors import CorralError, Invalid, StoreUnavailable

R = TypeVar("R")

MIGRATION_LOCK = 0x436F7272
MOVE_LOCK = MIGRATION_LOCK + 1
MIGRATION_SECONDS = 60  # maximum wait for a migration by another process
MAX_CLASHES = 10  # how often a transaction that met another is run again
PRESENCE_TRUST_S = 1.0
"""How old the last check may be that the store was not moved; each check is one round trip."""
IS_AWAY = f"SELECT EXISTS (SELECT 1 FROM migrations WHERE number > {AWAY})"


class PostgresDatabase(PostgresConnections):
    keeps_output = True
    _present_until = 0.0  # until when the last check that the content is here counts

    # -- transactions ---------------------------------------------------------------------------

    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        self.require_usable()
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if mode == "many" else None

        def once(link: Link) -> R:
            if begin:
                link.run(begin)
            self._require_present(link)
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
        # Every commit waits for the server's disk, unless server settings prevent it: see
        # `power_loss_risks`.
        if self._probe is not None:
            mode = "many"  # a probe wants to stand at every commit

        def once(link: Link) -> R:
            if mode == "many":
                link.begin()
            self._require_present(link)
            tx = self._tx(link, mode)
            working.here = True
            try:
                result = work(tx)
            except CorralError as error:
                self._refuse_stale(error, link)
                raise
            except psycopg.Error as error:
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
                self._present_until = 0.0
                self._require_present(link)
                tx = self._tx(link, "many")
                self.working.here = True
                yield tx
                self._commit(link)
            except Gone as gone:
                if gone.asked_to_commit:
                    raise unknown_outcome(self.url) from gone
                raise unreachable(self.url, gone.cause) from gone
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

    def _require_present(self, link: Link) -> None:
        """Raise StoreUnavailable if the content was moved away, or is being replaced."""
        if not self.refuses_moved or (now := time.monotonic()) < self._present_until:
            return
        self._present_until = now + PRESENCE_TRUST_S
        if link.run(IS_AWAY)[0][0]:
            self._present_until = 0.0
            raise self._moved()

    def _refuse_stale(self, error: CorralError, link: Link) -> None:
        """Raise StoreUnavailable if work found its error in content that was moved away.

        The fence rejects writes, but work that fails before it writes has only read. Its
        transaction still holds locks on the tables it read, so no mover has emptied them since.
        """
        if not self.refuses_moved or isinstance(error, StoreUnavailable):
            return
        with suppress(psycopg.Error):  # the transaction may have failed already
            if link.run(IS_AWAY)[0][0]:
                raise self._moved() from None

    def _moved(self) -> StoreUnavailable:
        from corral.db.store_move import sign

        with self.seeing_every_phase():
            return sign(self)

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
        except psycopg.Error as error:
            # The connection broke in here: that leaves open whether the server kept the work.
            raise_if_gone(link, error, asked_to_commit=True)
            raise
        if self._probe is not None:
            self._probe("after commit")

    def _persist(self, once: Callable[[Link], R], *, repeatable: bool) -> R:
        """Run it until it succeeds, fails for a reason of its own, or patience ends."""
        patience = self._patience
        patience_ends: float | None = None
        backoff = SHORTEST_BACKOFF
        for clash in range(MAX_CLASHES):
            while True:
                try:
                    return self._try(once)
                except Gone as gone:
                    if gone.asked_to_commit and not repeatable:
                        raise unknown_outcome(self.url) from gone
                    patience_ends = patience_ends or time.monotonic() + patience
                    if self.hurried or time.monotonic() > patience_ends:
                        raise (gone.refused or unreachable(self.url, gone)) from gone
                    if gone.is_full:
                        backoff = back_off(backoff, patience_ends)
                    else:
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
                link = self._take(wait=False)
            except StoreUnavailable as error:
                raise Gone(False, psycopg.OperationalError(str(error)), error) from None
            try:
                return once(link)
            except psycopg.Error as error:
                raise_if_gone(link, error, asked_to_commit=False)
                raise
            finally:
                self._give_back(link)
        finally:
            if not has_place:
                self._places.put(None)

    def _tx(self, link: Link, mode: Mode) -> Tx:
        return Tx(link, self.clock.now(), self.actor, mode, self.redaction, self.origin)

    # -- wake-ups -------------------------------------------------------------------------------

    def _send_notice(self) -> None:
        with suppress(CorralError):
            self._persist(lambda link: link.run(f"NOTIFY {CHANNEL}"), repeatable=True)

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
            self._say_first(link, f"SET lock_timeout = '{MIGRATION_SECONDS}s'")
            try:
                link.run(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
            except pg.LockNotAvailable:
                raise StoreUnavailable(
                    f"Another process has been migrating {self.url} for {MIGRATION_SECONDS} s. "
                    "Wait until it is done, or end it.",
                    reason="locked",
                ) from None
            except psycopg.Error as error:
                raise unreachable(self.url, error) from error
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
