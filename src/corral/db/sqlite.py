"""SQLite through APSW: one file, many processes, many threads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import NoReturn, TypeVar

import apsw

from corral.db import sqlite_connection_set, sqlite_wal
from corral.db.database import Database, Work
from corral.db.group_commit import MAX_BATCH, Batch, BatchAborted, Job, JoinResult
from corral.db.lock_file import MOVE_LOCK_SUFFIX, LockFile
from corral.db.move_check import MoveCheck
from corral.db.sqlite_connection import SqliteConnection
from corral.db.sqlite_connection_set import MAX_CHECK_AGE
from corral.db.sqlite_errors import translate
from corral.db.sqlite_maintenance import (
    APPLICATION_ID,
    check_file,
    copy_store,
    read_snapshot,
    replace_pages,
    require_corral_file,
    require_current_sqlite,
    run_query,
)
from corral.db.statement import Statement
from corral.db.tx import Mode, Tx
from corral.db.types import Finding, Listener, Probe, QueryResult, ReadTable
from corral.db.write_guard import MOVED_OFFSET
from corral.kernel.clock import Clock
from corral.kernel.errors import StoreUnavailable

R = TypeVar("R")


class SqliteDatabase(Database):
    """A handle on a store file. All handles of a process on one file share connections."""

    engine = "sqlite"
    path: Path

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        actor: str,
        create: bool = True,
        probe: Probe | None = None,
    ) -> None:
        """Open the file; if it is missing and `create` allows it, create it for its user only.

        Without `clock`, the store's own time is used. `probe` is called with "before commit" and
        "after commit"; crash tests stop the process there.
        """
        require_current_sqlite()
        super().__init__()
        self._move_check = MoveCheck(_is_moved, max_age=MAX_CHECK_AGE)
        self.path = path
        self.url = self.address = self.pointer = f"sqlite:///{path}"
        self.actor = actor
        self.probe = probe
        self._shared = shared = sqlite_connection_set.open_handle(path, create=create)
        self._released = False
        self._queue, self._write_lock = shared.queue, shared.write_lock
        self.thread = shared.thread
        if clock is None:
            self.clock = shared.clock
            self._write_now = shared.clock.write_now
        else:
            self.clock = clock
            self._write_now = clock.now
        try:
            reader = shared.connect_reader()
            shared.readers.append(reader)
            require_corral_file(reader.connection, path)
            shared.require_in_place()
        except BaseException:
            self.close()
            raise

    # -- transactions ---------------------------------------------------------------------------

    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        self.require_usable()
        shared = self._shared
        try:
            reader = shared.readers.pop()
        except IndexError:
            reader = shared.connect_reader()
        try:
            now = monotonic()
            if now > shared.stale_at:
                shared.require_in_place()
                shared.stale_at = now + MAX_CHECK_AGE
            if now > self._move_check.valid_until:
                self._move_check.require_not_moved(self, reader, now)
            if mode == "many":
                reader.run("BEGIN")
            return work(Tx(reader, self.clock.now(), self.actor, mode, self.redaction, self.run_id))
        except apsw.Error as error:
            self._raise(error)
        finally:
            reader.roll_back()
            if self.unusable:
                reader.close()
            else:
                shared.give_back(reader)

    def write(
        self, work: Work[R], *, mode: Mode = "many", durable: bool = False, repeatable: bool = False
    ) -> R:
        # Group commit (see `group_commit`):
        # 1. If no thread writes and none waits, this thread leads at once.
        # 2. Otherwise its job is queued, and the thread waits.
        # 3. The current leader runs the job and commits it with its own (WAS_RUN),
        # 4. or hands the leadership over, and this thread leads.
        thread = self.thread
        if self.unusable or thread.is_writing:
            self.require_outside_operation()
        if thread.on_redaction is not None:
            work = self.report_redactions_of(work, thread.on_redaction)
        if self.probe is not None:
            mode = "many"  # the probe is called at an explicit commit
        waiting_since = None
        try:
            if not self._queue.try_lead():
                job = Job(work, durable, self)
                if self._queue.join(job) is JoinResult.WAS_RUN:
                    result: R = job.outcome()
                    return result
                waiting_since = job.waiting_since
            return self._lead(work, mode, durable, waiting_since)
        except apsw.Error as error:
            self._raise(error)

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        self.require_outside_operation()
        try:
            with self._queue.exclusive(durable=False) as waiting_since:
                writer = self._begin_turn(False, waiting_since)
                try:
                    writer.begin()
                    self._move_check.expire()
                    self._move_check.require_not_moved(self, writer, monotonic())
                    self.thread.is_writing = True
                    yield self._make_tx(writer, "many")
                    self._commit(writer)
                    self._shared.require_in_place()
                finally:
                    self.thread.is_writing = False
                    self._end_turn()
        except apsw.Error as error:
            self._raise(error)

    def _lead(self, work: Work[R], mode: Mode, durable: bool, waiting_since: float | None) -> R:
        """Run our own work and the waiting jobs, commit once for all, and end the leadership."""
        batch = Batch()
        try:
            if self._queue.waiting and not durable:
                durable = self._queue.has_durable()
            writer = self._begin_turn(durable, waiting_since)
            self.thread.is_writing = True
            try:
                result = self._run_batch(batch, work, mode, durable, writer)
                self._shared.require_in_place()
            except BaseException as error:
                replacement = self._roll_back_batch(batch, error, writer)
                if batch.interrupt is not None:
                    raise batch.interrupt from error
                if replacement is not None:
                    raise replacement from None
                raise
            finally:
                self.thread.is_writing = False
                self._release_turn()
        finally:
            self._queue.end_lead(batch)
        if batch.interrupt is not None:
            raise batch.interrupt
        return result

    def _run_batch(
        self, batch: Batch, work: Work[R], mode: Mode, durable: bool, writer: SqliteConnection
    ) -> R:
        """Run our own work and the waiting jobs in one transaction, and commit it.

        If a job aborts the batch, everything is rolled back and runs again without that job.
        """
        while True:
            if mode == "many":
                writer.begin()
            result = work(self._make_tx(writer, mode))
            if not writer.connection.in_transaction:
                return result  # mode "one": the statement has committed by itself
            try:
                if self._queue.waiting:
                    self._run_followers(batch, writer, durable or self._shared.is_fully_durable)
            except BatchAborted as aborted:
                # The batch may be aborted again: a pending interrupt is kept.
                batch.interrupt = batch.interrupt or aborted.interrupt
                writer.roll_back()
                self._queue.put_back(batch)
                continue
            self._commit(writer)
            return result

    def _run_followers(self, batch: Batch, writer: SqliteConnection, durable: bool) -> None:
        """Run the waiting jobs in the leader's transaction, as jobs of the batch.

        A job that fails before it has written only fails itself. A job that fails after a write
        raises BatchAborted.
        """
        count_changes = writer.connection.total_changes
        before = count_changes()
        tx, take = self._make_tx(writer, "many"), self._queue.take
        now, handle = tx.now, self
        while len(batch.jobs) < MAX_BATCH and (job := take(durable, batch)) is not None:
            assert job.work is not None
            try:
                if job.handle is not handle:  # another handle may have another clock
                    now, handle = job.handle._write_now(), job.handle
                tx.continue_for(now, handle.actor, handle.redaction, handle.run_id)
                job.result = job.work(tx)
                job.error = None
                before = count_changes()
            except BaseException as error:
                if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError):
                    raise  # a failure of the store, not of this job
                if not isinstance(error, Exception) or count_changes() != before:
                    self._queue.isolate(job, batch)
                    interrupt = error if isinstance(error, KeyboardInterrupt) else None
                    raise BatchAborted(interrupt) from error
                moved = job.handle._move_check.error_instead_of(error, job.handle, writer)
                job.error = moved or error

    def _roll_back_batch(
        self, batch: Batch, error: BaseException, writer: SqliteConnection
    ) -> StoreUnavailable | None:
        """Roll back after an error, and return the error to raise instead, if there is one."""
        replacement = self._move_check.error_instead_of(error, self, writer)
        if isinstance(error, apsw.Error) or writer.connection.in_transaction:
            # The followers are not at fault and nothing of theirs was committed: they run again.
            self._queue.put_back(batch)
        if self._shared.is_lost:
            # The file lost its name, so the commit that the followers share is not in the store.
            for job in batch.jobs:
                job.error = self._shared.lost_error()
        writer.roll_back()
        return replacement

    def _begin_turn(self, durable: bool, waiting_since: float | None) -> SqliteConnection:
        """Wait for the write lock, and return the writing connection."""
        shared = self._shared
        try:
            if shared.writer is None:
                self.require_usable()  # another thread may have closed it while this one waited
            self._write_lock.acquire(waiting_since, self.thread.max_write_wait)
            writer = shared.writer or shared.connect_writer()
            shared.require_room(writer)
            shared.set_sync(writer, durable)
            if (now := monotonic()) > self._move_check.valid_until:
                self._move_check.require_not_moved(self, writer, now)
        except BaseException:  # including Ctrl-C just after the lock was acquired
            self._write_lock.release()
            raise
        return writer

    def _end_turn(self) -> None:
        """Roll back an open transaction and release the write lock."""
        try:
            if (writer := self._shared.writer) is not None and writer.connection.in_transaction:
                writer.roll_back()
        finally:
            self._release_turn()

    def _release_turn(self) -> None:
        if self._shared.is_lost:
            self._shared.close_writer()
        self._write_lock.release()

    def _commit(self, writer: SqliteConnection) -> None:
        if self.probe is not None:
            self.probe("before commit")
        writer.run("COMMIT")
        if self.probe is not None:
            self.probe("after commit")

    def _make_tx(self, writer: SqliteConnection, mode: Mode) -> Tx:
        return Tx(writer, self._write_now(), self.actor, mode, self.redaction, self.run_id)

    # -- connections ----------------------------------------------------------------------------

    def _close(self) -> None:
        if self._released:
            return
        self._released = True
        if self.thread.is_writing:
            self._shared.release()
            return
        with self._queue.exclusive(durable=False):  # another thread may be writing
            self._shared.release()

    def listen(self) -> Listener:
        from corral.db.wakeups import listen_to_wal

        return listen_to_wal(Path(self._shared.path), self._shared.connect_reader().connection)

    # -- durability -----------------------------------------------------------------------------

    def durability(self, wanted: str | None = None) -> str:
        if wanted is not None:
            statement = Statement("UPDATE store_options SET durability = :wanted")
            self.write(lambda tx: tx.run(statement, wanted=wanted), durable=True)
            self._apply_durability()
        stored = Statement("SELECT durability FROM store_options")
        return str(self.read(lambda tx: tx.value(stored), mode="one"))

    def _apply_durability(self) -> None:
        """Apply the store's durability, inside `migration_lock` so that no other thread writes."""
        with self.migration_lock():
            writer = self._shared.writer
            assert writer is not None
            self._shared.apply_durability(writer)

    # -- migrations -----------------------------------------------------------------------------

    def schema_version(self) -> int:
        return int(self.read(lambda tx: tx.value(Statement("PRAGMA user_version"))))

    @contextmanager
    def migration_lock(self) -> Iterator[None]:
        with self._queue.exclusive(durable=True) as waiting_since:
            self._begin_turn(True, waiting_since)
            try:
                yield
            finally:
                self._end_turn()

    @contextmanager
    def move_lock(self) -> Iterator[bool]:
        with closing(LockFile(self._shared.path + MOVE_LOCK_SUFFIX)) as file:
            yield file.try_lock()

    def run_migration(self, number: int, statements: list[str]) -> None:
        writer = self._shared.writer
        assert writer is not None, "requires migration_lock()"
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

    # -- maintenance ----------------------------------------------------------------------------

    @contextmanager
    def _separate_connection(self) -> Iterator[apsw.Connection]:
        """Open a connection for one read that may take long."""
        reader = self._shared.connect_reader()
        try:
            yield reader.connection
        except apsw.Error as error:
            self._raise(error)
        finally:
            reader.close()

    def check(self, *, thorough: bool) -> list[Finding]:
        with self._separate_connection() as connection:
            findings = check_file(connection, thorough=thorough)
        return [*findings, *sqlite_wal.check_wal(self._shared.path)]

    def backup(self, target: Path) -> None:
        try:
            reader = self._shared.connect_reader()
            try:
                copy_store(reader.connection, target)
            finally:
                reader.close()
        except BaseException as error:
            target.unlink(missing_ok=True)
            if isinstance(error, apsw.Error):
                self._raise(error, target)
            raise

    def restore(self, source: Path, kept: Path | None) -> None:
        from corral.db.backup import find_highest_numbers, prepare_restore

        with self.migration_lock():
            writer = self._shared.writer
            assert writer is not None
            # Under one lock: earlier writes are in the kept copy, later ones go to the new content.
            numbers = find_highest_numbers(lambda text: writer.run(text).fetchall()[0][0])
            if kept is not None and numbers["events"]:  # without events the store was never used
                self.backup(kept)
            prepare_restore(source, numbers, self.clock.now(), self.actor)
            self.overwrite(source)
        self._apply_durability()

    def overwrite(self, source: Path) -> None:
        """Replace the content, inside `migration_lock`.

        The inode stays the same, so other handles stay valid.
        """
        writer = self._shared.writer
        assert writer is not None, "requires migration_lock()"
        try:
            replace_pages(writer.connection, source)
        except apsw.Error as error:
            self._raise(error)
        self._shared.require_in_place()

    def read_snapshot(self) -> AbstractContextManager[ReadTable]:
        return read_snapshot(self._shared.connect_reader().connection)

    def query(self, sql: str, *, limit: int, timeout_ms: int) -> QueryResult:
        with self._separate_connection() as connection:
            return run_query(connection, sql, limit=limit, timeout_ms=timeout_ms)

    def _raise(self, error: apsw.Error, path: Path | None = None) -> NoReturn:
        raise translate(error, path or self.path) from error


def _is_moved(connection: SqliteConnection) -> bool:
    return int(connection.connection.pragma("user_version")) > MOVED_OFFSET
