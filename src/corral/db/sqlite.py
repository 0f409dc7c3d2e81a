"""SQLite through APSW: one file, many processes, many threads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import apsw

from corral.db import filesystem
from corral.db.database import Database, Finding, Listener, Probe, RowsOf, Table, Work
from corral.db.group import MAX_BATCH, Job, Line, Spoilt
from corral.db.lockfile import LockFile
from corral.db.sqlite_care import (
    APPLICATION_ID,
    check_file,
    copy_whole,
    reading,
    refuse_foreign,
    replace_pages,
    require_current_sqlite,
    run_query,
)
from corral.db.sqlite_errors import translate
from corral.db.sqlite_link import Link
from corral.db.statement import Statement
from corral.db.store_clock import StoreClock
from corral.db.turnstile import Turnstile
from corral.db.tx import Mode, Tx
from corral.kernel.clock import Clock

R = TypeVar("R")

BUSY_MS = 10_000  # for programs that write the file without standing in Corral's line
STATEMENTS_KEPT = 128  # APSW walks through all of them to find one
LOG_PAGES = 4_000  # 8 MB: the same pages are written again and again, and copied back once


# Files that were open when this process was forked. SQLite keeps its locks in a table of the
# process, which the child inherits without the locks.
_before_fork: set[Path] = set()


class SqliteDatabase(Database):
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
        if path in _before_fork:
            raise RuntimeError(
                f"{path} was open in the process that forked this one, and SQLite would mistake "
                "that process's locks for ours; start this process with exec or spawn instead"
            )
        self.path = path
        self.url = self.address = self.pointer = f"sqlite:///{path}"
        line = f"{path}-line"
        if clock is None:
            self.clock = own = StoreClock(f"{line}-door")
            self._write_now = own.write_now
        else:
            self.clock = clock
            self._write_now = clock.now
        self.actor = actor
        self._probe = probe
        super().__init__()
        self._line = Line()
        self._readers: list[Link] = []
        self._writer: Link | None = None
        self._full = False
        self._syncs = False
        filesystem.make_private_file(path, create=create)
        self._turnstile = Turnstile(line)
        self._sole: filesystem.SoleUse | None = None
        try:
            self._sole = filesystem.sole_use_if_remote(path)
            reader = self._connect_reader()
            self._readers.append(reader)
            refuse_foreign(reader.connection, path)
        except BaseException:
            self.close()
            raise

    def disown(self) -> None:
        super().disown()
        _before_fork.add(self.path)

    # -- transactions ---------------------------------------------------------------------------

    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        self.require_usable()
        try:
            link = self._readers.pop()
        except IndexError:
            link = self._connect_reader()
        try:
            if mode == "many":
                link.run("BEGIN")
            return work(Tx(link, self.clock.now(), self.actor, mode, self.redaction))
        except apsw.Error as error:
            self._raise(error)
        finally:
            link.roll_back()
            if self.unusable:
                link.connection.close()
            else:
                self._readers.append(link)

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
                job = Job(work, durable)
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
                self.working.here = True
                yield self._tx(writer, "many")
                self._commit(writer)
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
                result = work(Tx(writer, self._write_now(), self.actor, mode, self.redaction))
                if writer.connection.in_transaction:
                    try:
                        if line.waiting:
                            self._take_in(followers, writer, durable or self._full)
                    except Spoilt as spoilt:
                        interrupt = spoilt.interrupt
                        writer.roll_back()
                        line.put_back(followers)
                        continue  # without the one that spoilt it, and those behind it
                    self._commit(writer)
                break
        except BaseException as error:
            if isinstance(error, apsw.Error) or writer.connection.in_transaction:
                # None of the others is at fault, and nothing of theirs was kept: they run again.
                line.put_back(followers)
            writer.roll_back()
            raise
        finally:
            working.here = False
            self._turnstile.leave()
        if interrupt is not None:
            raise interrupt
        return result

    def _take_in(self, followers: list[Job], writer: Link, durable: bool) -> None:
        """Run what waits in line. One caller's error is that caller's: most are raised before
        anything was written, and one that was not makes us run all others again without it."""
        written = writer.connection.total_changes
        before = written()
        tx, actor, take = self._tx(writer, "many"), self.actor, self._line.take
        while len(followers) < MAX_BATCH and (job := take(durable)) is not None:
            assert job.work is not None
            tx.for_another(actor)
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
                job.error = error
            followers.append(job)

    def _take_turn(self, durable: bool, since: float | None) -> Link:
        """The writing connection, once no other process writes."""
        try:
            if self._writer is None:
                self.require_usable()  # it may have been closed while we stood in line
            self._turnstile.enter(since)
            writer = self._writer or self._connect_writer()
            if not self._full and durable is not self._syncs:
                self._wait_for_disk(writer, durable)
        except BaseException:  # also Ctrl-C at the moment in which the turn came
            self._turnstile.leave()
            raise
        return writer

    def _end_turn(self) -> None:
        try:
            if (writer := self._writer) is not None and writer.connection.in_transaction:
                writer.roll_back()
        finally:
            self._turnstile.leave()

    def _commit(self, writer: Link) -> None:
        if self._probe is not None:
            self._probe("before commit")
        writer.run("COMMIT")
        if self._probe is not None:
            self._probe("after commit")

    def _tx(self, writer: Link, mode: Mode) -> Tx:
        return Tx(writer, self._write_now(), self.actor, mode, self.redaction)

    # -- connections ----------------------------------------------------------------------------

    def _connect(self) -> Link:
        try:
            connection = apsw.Connection(
                str(self.path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=STATEMENTS_KEPT
            )
            connection.set_busy_timeout(BUSY_MS)
            # Without this, SQLite compiles a statement anew whenever a parameter in a range
            # changes, to see whether another index would serve it better: ten times a claim's cost.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            link = Link(connection)
            link.run("PRAGMA temp_store = MEMORY")
            return link
        except apsw.Error as error:
            self._raise(error)

    def _connect_reader(self) -> Link:
        link = self._connect()
        link.run("PRAGMA query_only = ON")
        return link

    def _connect_writer(self) -> Link:
        link = self._connect()
        link.run("PRAGMA foreign_keys = ON")
        link.run("PRAGMA journal_size_limit = 67108864")
        link.run(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}").fetchall()
        self._obey_durability(link)
        self._writer = link
        return link

    def _obey_durability(self, writer: Link) -> None:
        if self._version_of(writer) > 0:
            self._full = writer.run("SELECT durability FROM store").fetchall() == [("full",)]
        self._wait_for_disk(writer, self._full)

    def _wait_for_disk(self, writer: Link, wanted: bool) -> None:
        """Whether commits wait for the disk from now on; who writes next wants the same, mostly."""
        writer.run(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
        self._syncs = wanted

    def _close(self) -> None:
        with ExitStack() as behind_others:
            if not self.working.here:
                self._line.join(Job(None, durable=False))  # another thread may be writing
                behind_others.callback(self._line.pass_on)
            if self._writer is not None:
                self._writer.connection.close()
            self._writer = None
            self._turnstile.close()
        while self._readers:
            self._readers.pop().connection.close()
        if isinstance(self.clock, StoreClock):
            self.clock.close()
        if self._sole is not None:
            self._sole.close()

    def listen(self) -> Listener:
        from corral.db.wakeups import watch_file

        return watch_file(self.path, self._connect_reader().connection)

    # -- durability -----------------------------------------------------------------------------

    def durability(self, wanted: str | None = None) -> str:
        if wanted is not None:
            statement = Statement("UPDATE store SET durability = :wanted")
            self.write(lambda tx: tx.run(statement, wanted=wanted), durable=True)
            assert self._writer is not None
            self._obey_durability(self._writer)
        stored = Statement("SELECT durability FROM store")
        return str(self.read(lambda tx: tx.value(stored), mode="one"))

    # -- migrations -----------------------------------------------------------------------------

    @staticmethod
    def _version_of(link: Link) -> int:
        return int(link.connection.pragma("user_version"))

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
        with closing(LockFile(f"{self.path}-move")) as file:
            yield file.try_lock()

    def run_migration(self, number: int, statements: list[str]) -> None:
        assert self._writer is not None, "inside migrating() only"
        writer = self._writer
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
        except apsw.Error as error:
            self._raise(error)

    # -- care -----------------------------------------------------------------------------------

    @contextmanager
    def _looking(self) -> Iterator[apsw.Connection]:
        """A connection for one look that may take long."""
        link = self._connect_reader()
        try:
            yield link.connection
        except apsw.Error as error:
            self._raise(error)
        finally:
            link.connection.close()

    def check(self, *, thorough: bool) -> list[Finding]:
        with self._looking() as connection:
            return check_file(connection, thorough=thorough)

    def backup(self, target: Path) -> None:
        try:
            link = self._connect_reader()
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
            writer = self._writer
            assert writer is not None
            # In one turn: what others put before it is in the kept copy, what comes later is new.
            numbers = given_out(lambda text: writer.run(text).fetchall()[0][0])
            if kept is not None and numbers["events"]:  # else nothing ever happened here
                self.backup(kept)
            go_on_behind(source, numbers, self.clock.now(), self.actor)
            self.overwrite(source)
        self._obey_durability(writer)

    def overwrite(self, source: Path) -> None:
        """Replace the content inside `migrating`; the inode, and so other handles, stay valid."""
        assert self._writer is not None, "inside migrating() only"
        try:
            replace_pages(self._writer.connection, source)
        except apsw.Error as error:
            self._raise(error)

    def reading(self) -> AbstractContextManager[RowsOf]:
        return reading(self._connect_reader().connection)

    def query(self, sql: str, *, limit: int, timeout_ms: int) -> Table:
        with self._looking() as connection:
            return run_query(connection, sql, limit=limit, timeout_ms=timeout_ms)

    def _raise(self, error: apsw.Error, path: Path | None = None) -> NoReturn:
        raise translate(error, path or self.path) from error
