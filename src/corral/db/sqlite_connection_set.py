"""The connections of this process to one SQLite file, shared by all its handles.

POSIX drops every lock that a process holds on a file as soon as the process closes any descriptor
of that file. SQLite knows this and keeps one table of open files per process; code outside SQLite
does not. So Corral follows three rules:

- No code opens and closes the database file, its `-wal` or its `-shm` outside SQLite while it may
  be open here. `filesystem.ensure_private_file` creates a new file under the lock of this module,
  and code that opens external paths calls `kernel/open_files.py` first.
- All handles on one file, identified by device and inode, share one `ConnectionSet`.
- A forked process never opens a file that its parent had open: it inherits SQLite's table of locks
  without the locks.

A connection does not checkpoint when it is closed, unless the last handle closes it and the file
still has its name. Otherwise a connection that is garbage collected in a forked child, or one to a
file that was replaced, would delete the log of the store that now has the name.
"""

import os
import threading
import weakref
from pathlib import Path

import apsw

from corral.db import filesystem, sqlite_wal
from corral.db.database import ThreadState
from corral.db.group_commit import CommitQueue
from corral.db.lock_file import QUEUE_LOCK_SUFFIX
from corral.db.sqlite_connection import SqliteConnection
from corral.db.sqlite_errors import hard_link_error, replaced_error, translate
from corral.db.store_clock import StoreClock
from corral.db.write_lock import WriteLock
from corral.kernel.clock import SystemClock
from corral.kernel.errors import StoreUnavailable
from corral.kernel.open_files import IN_USE, FileIdentity

BUSY_MS = 10_000  # for programs that write the file without Corral's write lock
STATEMENT_CACHE_SIZE = 128  # APSW searches its statement cache linearly
WAL_CHECKPOINT_PAGES = 4_000  # 8 MB: a page that is written repeatedly is checkpointed once

MAX_CHECK_AGE = 0.01  # seconds: how old the last check of the file may be when a read starts
_TICK_MS = 20  # the clock of a file system advances every 1 to 10 ms
_SYSTEM = SystemClock()  # file times use the system's clock, whatever clock the store has


class ConnectionSet:
    """The state that all handles of this process on one file share."""

    def __init__(self, path: str, identity: FileIdentity) -> None:
        self.path = path
        """Without symlinks, as SQLite resolves it; the prefix of all files beside the store."""
        self.identity = identity
        self.handles = 0
        self.queue = CommitQueue()
        self.write_lock = WriteLock(path)
        self.clock = StoreClock(path + QUEUE_LOCK_SUFFIX)
        self.thread = ThreadState()
        self.readers: list[SqliteConnection] = []
        self.writer: SqliteConnection | None = None
        self.is_fully_durable = False
        """Whether the store's durability is `full`: every commit waits for the disk."""
        self.is_syncing = False
        """Whether the writer's commits currently wait for the disk."""
        self._turns = 0
        self._log_is_long = False
        self._log_path = f"{path}-wal"
        self._log: FileIdentity | None = None
        """The log file. It stays the same while any connection is open."""
        self.registered: set[FileIdentity] = {identity}
        IN_USE.add(identity)
        weakref.finalize(self, _unregister, self.registered)
        self._directory = os.open(
            os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        self._close_directory = weakref.finalize(self, os.close, self._directory)
        self._checked: int | None = None
        """The change time of the directory when its names were last checked."""
        self.stale_at = 0.0
        """When a read must check the file again, by the monotonic clock."""
        self.loss_reason = ""
        """Why the store is unusable (moved, deleted or replaced); empty while it is usable."""
        self._exclusive_use = filesystem.lock_if_remote(Path(path))

    # -- connections ----------------------------------------------------------------------------

    def connect_reader(self) -> SqliteConnection:
        reader = self._connect()
        reader.run("PRAGMA query_only = ON")
        return reader

    def connect_writer(self) -> SqliteConnection:
        writer = self._connect()
        writer.run("PRAGMA foreign_keys = ON")
        writer.run("PRAGMA journal_size_limit = 67108864")
        writer.run(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}").fetchall()
        self.apply_durability(writer)
        self.writer = writer
        return writer

    def _connect(self) -> SqliteConnection:
        self.require_present()
        try:
            connection = apsw.Connection(
                self.path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=STATEMENT_CACHE_SIZE
            )
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.set_busy_timeout(BUSY_MS)
            # Without this, SQLite recompiles a statement whenever a parameter in a range changes,
            # to look for a better index: ten times the cost of a claim.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            wrapped = SqliteConnection(connection)
            wrapped.run("PRAGMA temp_store = MEMORY")
        except apsw.Error as error:
            raise translate(error, Path(self.path)) from error
        try:
            self.require_present()  # the file may have been replaced before SQLite opened it
        except BaseException:
            connection.close()
            raise
        return wrapped

    def apply_durability(self, writer: SqliteConnection) -> None:
        """Read the store's durability and apply it to the writer."""
        if int(writer.connection.pragma("user_version")) > 0:
            stored = writer.run("SELECT durability FROM store_options").fetchall()
            self.is_fully_durable = stored == [("full",)]
        self._run_sync_pragma(writer, self.is_fully_durable)

    def set_sync(self, writer: SqliteConnection, durable: bool) -> None:
        """Let the next commits wait for the disk if they are durable, or if the store is."""
        if not self.is_fully_durable and durable is not self.is_syncing:
            self._run_sync_pragma(writer, durable)

    def _run_sync_pragma(self, writer: SqliteConnection, is_syncing: bool) -> None:
        writer.run(f"PRAGMA synchronous = {'FULL' if is_syncing else 'NORMAL'}")
        self.is_syncing = is_syncing

    @property
    def is_lost(self) -> bool:
        """Whether the store is unusable: moved, deleted or replaced."""
        return bool(self.loss_reason)

    def require_room(self, writer: SqliteConnection) -> None:
        """Raise StoreUnavailable if the log is too long and a reader blocks its checkpoint."""
        self._turns += 1
        if self._log_is_long or self._turns % sqlite_wal.CHECK_INTERVAL == 1:
            self._log_is_long = True  # after an error, the next write checks again
            try:
                sqlite_wal.require_room(writer.connection, self.path, BUSY_MS)
            except apsw.Error as error:
                raise translate(error, Path(self.path)) from error
            self._log_is_long = False

    # -- the file -------------------------------------------------------------------------------

    def require_in_place(self) -> None:
        """Raise StoreUnavailable unless the database file and its log still have their names.

        SQLite does not notice when they are moved, deleted or replaced. A commit is in the store if
        they have their names after it, so every write checks, and reads every 10 ms. That costs one
        `fstat`: a changed name also changes the time of its directory.
        """
        changed_at = os.fstat(self._directory).st_ctime_ns
        if changed_at != self._checked or self.is_lost:
            self._check_names()
            # A second change within the same tick of the file system's clock is not visible.
            age = _SYSTEM.now() - changed_at // 1_000_000
            settled = changed_at % 1_000_000_000 and age > _TICK_MS
            self._checked = changed_at if settled else None

    def _check_names(self) -> None:
        self.require_present()
        try:
            log = os.stat(self._log_path)
        except OSError as error:
            if self._log is None:
                return  # a new store has no log before its first migration
            self._mark_lost(f"its log {self._log_path} was moved or deleted ({error.strerror})")
        else:
            if self._log is None:
                self._log = log.st_dev, log.st_ino
                self._register(log, self._stat_memory())
            if (log.st_dev, log.st_ino) == self._log:
                return
            self._mark_lost(f"its log {self._log_path} was replaced by another file")
        raise self.lost_error()

    def require_present(self) -> None:
        """Raise StoreUnavailable unless the database file is still the one that was opened."""
        if not self.is_lost:
            try:
                file = os.stat(self.path)
            except OSError as error:
                self._mark_lost(f"it was moved or deleted ({error.strerror})")
            else:
                if (file.st_dev, file.st_ino) == self.identity:
                    return
                self._mark_lost("it was replaced by another file")
        raise self.lost_error()

    def _stat_memory(self) -> os.stat_result | None:
        try:
            return os.stat(f"{self.path}-shm")
        except OSError:
            return None  # on a network file system SQLite may keep it elsewhere

    def _register(self, *files: os.stat_result | None) -> None:
        """Prevent other code of this process from opening these files."""
        identities = {(file.st_dev, file.st_ino) for file in files if file is not None}
        self.registered |= identities
        IN_USE.update(identities)

    def lost_error(self) -> StoreUnavailable:
        return replaced_error(self.path, self.loss_reason)

    def _mark_lost(self, reason: str) -> None:
        self.loss_reason = reason
        self.stale_at = 0.0
        # Close the idle readers, so that the store can be opened again in this process.
        while self.readers:
            self.readers.pop().close()

    def close_writer(self) -> None:
        """Close the writing connection; only called by the leader thread."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()

    def give_back(self, reader: SqliteConnection) -> None:
        """Keep a reader for the next read; close it if the file has lost its name."""
        self.readers.append(reader)
        if self.is_lost:
            self._mark_lost(self.loss_reason)

    # -- handles --------------------------------------------------------------------------------

    def release(self) -> None:
        """Release one handle, after all writes in progress; the last one closes everything."""
        with _lock:
            self.handles -= 1
            if self.handles:
                return
            if _sets.get(self.identity) is self:
                del _sets[self.identity]
            # Under the lock: a handle that is opened in the meantime gets its own set, and must not
            # find the locks of this one in SQLite's table.
            self._close()

    def _close(self) -> None:
        connections = [*self.readers, *([self.writer] if self.writer is not None else [])]
        self.readers.clear()
        self.writer = None
        if connections and self._is_in_place():
            connections[-1].connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        for connection in connections:
            connection.close()
        _unregister(self.registered)
        self._close_directory()
        self.write_lock.close()
        self.clock.close()
        if self._exclusive_use is not None:
            self._exclusive_use.close()

    def _is_in_place(self) -> bool:
        try:
            self._check_names()
        except StoreUnavailable:
            return False
        return True


_lock = threading.Lock()
_sets: "weakref.WeakValueDictionary[FileIdentity, ConnectionSet]" = weakref.WeakValueDictionary()
"""Weak: handles that are never closed are garbage collected with their connections."""
_inherited: set[FileIdentity] = set()
"""Files that were open when this process was forked."""


def open_handle(path: Path, *, create: bool) -> ConnectionSet:
    """Return the connections of this process to a file, for one more handle.

    Raises StoreUnavailable if the file cannot be opened or has a second hard link, RuntimeError if
    the process that forked this one had it open. The file is the same whatever path leads to it:
    through a symlink, `..` or a hard link that was made after it was opened.
    """
    with _lock:
        filesystem.ensure_private_file(path, create=create)
        real = os.path.realpath(path)
        try:
            file = os.stat(real)
        except OSError as error:
            raise replaced_error(real, f"it was moved or deleted ({error.strerror})") from None
        identity = file.st_dev, file.st_ino
        if identity in _inherited:
            raise RuntimeError(
                f"Cannot open {path}: the process that forked this one had it open, and SQLite "
                "would mistake its locks for ours. Start this process with exec or spawn instead."
            )
        shared = _sets.get(identity)
        if shared is None or shared.is_lost:
            if shared is not None and _is_open_in_sqlite(shared.path):
                # SQLite would give new connections the shared memory of the deleted log.
                raise shared.lost_error()
            if file.st_nlink > 1:
                # SQLite names the log after the path: another process that opens the file by its
                # other name would use another log, and each would overwrite the other's pages.
                raise hard_link_error(real, file.st_nlink)
            shared = _sets[identity] = ConnectionSet(real, identity)
        shared.handles += 1
        return shared


def _unregister(files: set[FileIdentity]) -> None:
    IN_USE.difference_update(files)
    for shared in list(_sets.values()):  # a set that was opened after this one was lost
        IN_USE.update(shared.registered)


def _is_open_in_sqlite(path: str) -> bool:
    return any(connection.filename == path for connection in apsw.connections())


def _forget_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _inherited.update(_sets.keys())
    _sets.clear()
    IN_USE.clear()  # closing a file in this process drops no lock of the parent


os.register_at_fork(after_in_child=_forget_in_child)
