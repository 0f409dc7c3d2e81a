"""SQLite through APSW: one file, many processes, many threads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import NoReturn, TypeVar

import apsw

from corral.db import sqlite_connection_set, sqlite_wal
from corral.db.database import Database, Finding, Listener, Probe, RowsOf, Table, Work
from corral.db.group_commit import MAX_BATCH, Job, Spoilt
from corral.db.lockfile import LockFile
from corral.db.sqlite_connection import Link
from corral.db.sqlite_connection_set import READS_TRUST_S
from corral.db.sqlite_errors import translate
from corral.db.sqlite_maintenance import (
    APPLICATION_ID,
    check_file,
    copy_whole,
    reading,
    refuse_foreign,
    replace_pages,
    require_current_sqlite,
    run_query,
)
from corral.db.statement import Statement
from corral.db.tx import Mode, Tx
from corral.db.write_fence import AWAY
from corral.kernel.clock import Clock
from corral.kernel.errors import CorralError, StoreUnavailable

R = TypeVar("R")


class SqliteDatabase(Database):
    """A handle on a store file. All handles of a process on one file share connections."""

    engine = "sqlite"

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        actor: str,
        create: bool = True,
        probe: Probe | None = None,
    ) -> None:
        """Open the file; a missing one is made, private, when `create` allows it. Without a clock
        of the caller's, the time is the store's own.

        `probe` is told "before commit" and "after commit"; crash tests stop the process there.
        """
        require_current_sqlite()
        super().__init__()
        self._present_until = 0.0  # until when the last check that the content is here counts
        self.path = path
        self.url = self.address = self.pointer = f"sqlite:///{path}"
        self.actor = actor
        self._probe = probe
        self._shared = shared = sqlite_connection_set.acquire(path, create=create)
        self._released = False
        self._line, self._turnstile = shared.line, shared.turnstile
        self.working = shared.working
        if clock is None:
            self.clock = shared.clock
            self._write_now = shared.clock.write_now
        else:
            self.clock = clock
            self._write_now = clock.now
        try:
            reader = shared.connect_reader()
            shared.readers.append(reader)
            refuse_foreign(reader.connection, path)
            shared.require_in_place()
        except BaseException:
            self.close()
            raise

    # -- transactions ---------------------------------------------------------------------------

    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        self.require_usable()
        shared = self._shared
        try:
            link = shared.readers.pop()
        except IndexError:
            link = shared.connect_reader()
        try:
            now = monotonic()
            if now > shared.stale_at:
                shared.require_in_place()
                shared.stale_at = now + READS_TRUST_S
            if now > self._present_until:
                self._require_present(link, now)
            if mode == "many":
                link.run("BEGIN")
            return work(Tx(link, self.clock.now(), self.actor, mode, self.redaction, self.origin))
        except apsw.Error as error:
            self._raise(error)
        finally:
            link.roll_back()
            if self.unusable:
                link.connection.close()
            else:
                shared.give_back(link)

    def write(
        self, work: Work[R], *, mode: Mode = "many", durable: bool = False, repeatable: bool = False
    ) -> R:
        working = self.working
        if self.unusable or working.here:
            self.require_outside_operation()
        if working.tell is not None:
            work = self.telling(work, working.tell)
        if self._probe is not None:
            mode = "many"  # a probe wants to stand at every commit
        since = None
        try:
            if not self._line.lead_at_once():
                job = Job(work, durable, self)
                if not self._line.join(job):
                    result: R = job.outcome()
                    return result
                since = job.since
            followers: list[Job] = []
            try:
                return self._lead(work, mode, durable, since, followers)
            finally:
                if followers:
                    self._line.finish(followers)
                else:
                    self._line.pass_on()
        except apsw.Error as error:
            self._raise(error)

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        self.require_outside_operation()
        job = Job(None, durable=False)
        self._line.join(job)
        try:
            writer = self._take_turn(False, job.since)
            try:
                writer.begin()
                self._require_present(writer, monotonic())
                self.working.here = True
                yield self._tx(writer, "many")
                self._commit(writer)
                self._shared.require_in_place()
            finally:
                self.working.here = False
                self._end_turn()
        except apsw.Error as error:
            self._raise(error)
        finally:
            self._line.pass_on()

    def _lead(
        self,
        work: Work[R],
        mode: Mode,
        durable: bool,
        since: float | None,
        followers: list[Job],
    ) -> R:
        """Run our own work, then what waits in line, and commit all of it once.

        `followers` is filled with the jobs that were kept along with ours.
        """
        line = self._line
        if line.waiting and not durable:
            durable = line.wants_durable()
        interrupt: BaseException | None = None
        writer = self._take_turn(durable, since)
        working = self.working
        working.here = True
        try:
            while True:
                if mode == "many":
                    writer.begin()
                result = work(self._tx(writer, mode))
                if writer.connection.in_transaction:
                    try:
                        if line.waiting:
                            self._take_in(followers, writer, durable or self._shared.full)
                    except Spoilt as spoilt:
                        interrupt = spoilt.interrupt
                        writer.roll_back()
                        line.put_back(followers)
                        continue  # without the one that spoilt it, and those behind it
                    self._commit(writer)
                break
            self._shared.require_in_place()
        except BaseException as error:
            if (refusal := self._abandon(error, writer, followers)) is not None:
                raise refusal from None
            raise
        finally:
            working.here = False
            self._leave()
        if interrupt is not None:
            raise interrupt
        return result

    def _abandon(
        self, error: BaseException, writer: Link, followers: list[Job]
    ) -> StoreUnavailable | None:
        """Roll back after an error, and return the error to raise instead, if there is one."""
        refusal = self._refusal_of_stale(error, writer)
        if isinstance(error, apsw.Error) or writer.connection.in_transaction:
            # None of the others is at fault, and nothing of theirs was kept: they run again.
            self._line.put_back(followers)
        self._refuse_if_lost(followers)
        writer.roll_back()
        return refusal

    def _require_present(self, link: Link, now: float) -> None:
        """Raise StoreUnavailable if the content was moved away, or is being replaced."""
        self._present_until = now + READS_TRUST_S
        if self.refuses_moved and _is_away(link):
            raise self._moved()

    def _refusal_of_stale(self, error: BaseException, writer: Link) -> StoreUnavailable | None:
        """Return the error to raise instead of one that work found in content that was moved away.

        The fence rejects writes, but work that fails before it writes has only read. The caller
        still has the turn, so the phase cannot have changed since.
        """
        if not self.refuses_moved or not isinstance(error, CorralError):
            return None
        if isinstance(error, StoreUnavailable) or not _is_away(writer):
            return None
        return self._moved()

    def _moved(self) -> StoreUnavailable:
        from corral.db.store_move import sign

        with self.seeing_every_phase():
            return sign(self)

    def _refuse_if_lost(self, followers: list[Job]) -> None:
        """Fail the followers' jobs if their shared commit is not in the store."""
        if self._shared.lost:
            for job in followers:
                job.error = self._shared.refusal()

    def _take_in(self, followers: list[Job], writer: Link, durable: bool) -> None:
        """Run what waits in line. One caller's error is that caller's: most are raised before
        anything was written, and one that was not makes us run all others again without it."""
        written = writer.connection.total_changes
        before = written()
        tx, take = self._tx(writer, "many"), self._line.take
        now, handle = tx.now, self
        while len(followers) < MAX_BATCH and (job := take(durable)) is not None:
            assert job.work is not None
            if job.handle is not handle:  # another handle may have another clock
                handle = job.handle
                now = handle._write_now()
            tx.for_another(now, handle.actor, handle.redaction, handle.origin)
            try:
                job.result = job.work(tx)
                job.error = None
                before = written()
            except BaseException as error:
                if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError):
                    followers.append(job)
                    raise  # the store's trouble, not this caller's
                if not isinstance(error, Exception) or written() != before:
                    self._line.leave_to_itself(job)
                    raise Spoilt(error if isinstance(error, KeyboardInterrupt) else None) from error
                job.error = handle._refusal_of_stale(error, writer) or error
            followers.append(job)

    def _take_turn(self, durable: bool, since: float | None) -> Link:
        """The writing connection, once no other process writes."""
        shared = self._shared
        try:
            if shared.writer is None:
                self.require_usable()  # it may have been closed while we stood in line
            self._turnstile.enter(since, self.working.turn_patience)
            writer = shared.writer or shared.connect_writer()
            shared.require_room(writer)
            if not shared.full and durable is not shared.syncs:
                shared.wait_for_disk(writer, durable)
            if (now := monotonic()) > self._present_until:
                self._require_present(writer, now)
        except BaseException:  # also Ctrl-C at the moment in which the turn came
            self._turnstile.leave()
            raise
        return writer

    def _end_turn(self) -> None:
        try:
            if (writer := self._shared.writer) is not None and writer.connection.in_transaction:
                writer.roll_back()
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._shared.lost:
            self._shared.close_writer()
        self._turnstile.leave()

    def _commit(self, writer: Link) -> None:
        if self._probe is not None:
            self._probe("before commit")
        writer.run("COMMIT")
        if self._probe is not None:
            self._probe("after commit")

    def _tx(self, writer: Link, mode: Mode) -> Tx:
        return Tx(writer, self._write_now(), self.actor, mode, self.redaction, self.origin)

    # -- connections ----------------------------------------------------------------------------

    def _close(self) -> None:
        if self._released:
            return
        self._released = True
        if self.working.here:
            self._shared.release()
            return
        self._line.join(Job(None, durable=False))  # another thread may be writing
        try:
            self._shared.release()
        finally:
            self._line.pass_on()

    def listen(self) -> Listener:
        from corral.db.wakeups import watch_file

        return watch_file(Path(self._shared.path), self._shared.connect_reader().connection)

    # -- durability -----------------------------------------------------------------------------

    def durability(self, wanted: str | None = None) -> str:
        if wanted is not None:
            statement = Statement("UPDATE store SET durability = :wanted")
            self.write(lambda tx: tx.run(statement, wanted=wanted), durable=True)
            self._obey_durability()
        stored = Statement("SELECT durability FROM store")
        return str(self.read(lambda tx: tx.value(stored), mode="one"))

    def _obey_durability(self) -> None:
        """Apply the store's durability, inside `migrating` so that no other thread writes."""
        with self.migrating():
            writer = self._shared.writer
            assert writer is not None
            self._shared.obey_durability(writer)

    # -- migrations -----------------------------------------------------------------------------

    def schema_version(self) -> int:
        return int(self.read(lambda tx: tx.value(Statement("PRAGMA user_version"))))

    @contextmanager
    def migrating(self) -> Iterator[None]:
        job = Job(None, durable=True)
        self._line.join(job)
        try:
            self._take_turn(True, job.since)
            try:
                yield
            finally:
                self._end_turn()
        finally:
            self._line.pass_on()

    @contextmanager
    def moving(self) -> Iterator[bool]:
        with closing(LockFile(f"{self._shared.path}-move")) as file:
            yield file.try_lock()

    def run_migration(self, number: int, statements: list[str]) -> None:
        writer = self._shared.writer
        assert writer is not None, "inside migrating() only"
        try:
            if writer.run("PRAGMA user_version").fetchall() == [(0,)]:
                # A commit writes whole pages to the log, and Corral's rows are short.
                writer.run("PRAGMA page_size = 2048")
                writer.run("PRAGMA journal_mode = WAL").fetchall()
            writer.begin()
            for statement in statements:
                writer.run(statement)
            writer.run(f"PRAGMA application_id = {APPLICATION_ID}")
            writer.run(f"PRAGMA user_version = {number}")
            self._commit(writer)
            self._shared.require_in_place()
        except apsw.Error as error:
            self._raise(error)

    # -- care -----------------------------------------------------------------------------------

    @contextmanager
    def _looking(self) -> Iterator[apsw.Connection]:
        """A connection for one look that may take long."""
        link = self._shared.connect_reader()
        try:
            yield link.connection
        except apsw.Error as error:
            self._raise(error)
        finally:
            link.connection.close()

    def check(self, *, thorough: bool) -> list[Finding]:
        with self._looking() as connection:
            found = check_file(connection, thorough=thorough)
        return [*found, *sqlite_wal.examine(self._shared.path)]

    def backup(self, target: Path) -> None:
        try:
            link = self._shared.connect_reader()
            try:
                copy_whole(link.connection, target)
            finally:
                link.connection.close()
        except BaseException as error:
            target.unlink(missing_ok=True)
            if isinstance(error, apsw.Error):
                self._raise(error, target)
            raise

    def restore(self, source: Path, kept: Path | None) -> None:
        from corral.db.copy import given_out, go_on_behind

        with self.migrating():
            writer = self._shared.writer
            assert writer is not None
            # In one turn: what others put before it is in the kept copy, what comes later is new.
            numbers = given_out(lambda text: writer.run(text).fetchall()[0][0])
            if kept is not None and numbers["events"]:  # else nothing ever happened here
                self.backup(kept)
            go_on_behind(source, numbers, self.clock.now(), self.actor)
            self.overwrite(source)
        self._obey_durability()

    def overwrite(self, source: Path) -> None:
        """Replace the content, inside `migrating`. The inode stays, so other handles stay valid."""
        writer = self._shared.writer
        assert writer is not None, "inside migrating() only"
        try:
            replace_pages(writer.connection, source)
        except apsw.Error as error:
            self._raise(error)
        self._shared.require_in_place()

    def reading(self) -> AbstractContextManager[RowsOf]:
        return reading(self._shared.connect_reader().connection)

    def query(self, sql: str, *, limit: int, timeout_ms: int) -> Table:
        with self._looking() as connection:
            return run_query(connection, sql, limit=limit, timeout_ms=timeout_ms)

    def _raise(self, error: apsw.Error, path: Path | None = None) -> NoReturn:
        raise translate(error, path or self.path) from error


def _is_away(link: Link) -> bool:
    return int(link.connection.pragma("user_version")) > AWAY
