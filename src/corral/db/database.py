"""The interface of a database, which both engines implement."""

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from corral.db.dialect import Engine
from corral.db.tx import Mode, SecretFilter, Tx
from corral.db.types import Finding, Listener, Probe, QueryResult, ReadTable
from corral.kernel.clock import Clock

R = TypeVar("R")
Work = Callable[[Tx], R]
RedactionCallback = Callable[[Sequence[str]], None]
"""Called with the columns from which secrets were removed, such as `letters.body`."""

# Reasons why a handle cannot be used any more.
CLOSED = "the store was closed; open it again"
FORKED = "the store was opened before a fork; start the child with exec or spawn"

_open: "weakref.WeakSet[Database]" = weakref.WeakSet()


def _mark_forked_in_child() -> None:
    for database in list(_open):
        database.mark_forked()


os.register_at_fork(after_in_child=_mark_forked_in_child)


class ThreadState(threading.local):
    """What a database remembers for each thread."""

    is_writing = False
    """Whether the thread is inside an operation that writes."""
    on_redaction: RedactionCallback | None = None
    max_server_wait: float | None = None
    """Seconds to wait for a server that is away; None: the default."""
    max_write_wait: float | None = None
    """Seconds to wait for other processes that write (SQLite); None: the default."""


class Database(ABC):
    """A handle on a store."""

    engine: Engine
    url: str
    """The location, to be shown: without any password."""
    address: str
    """The location with everything needed to open it. For other processes; never shown."""
    pointer: str
    """The address without passwords, as one store records the location of another."""

    clock: Clock
    actor: str
    run_id: str | None = None
    """The id of the run that this process belongs to; events record it."""

    path: Path | None = None
    """The file of a SQLite store; None for PostgreSQL."""

    probe: Probe | None = None
    """Called before and after each commit, to test crashes."""

    stores_output = False
    """Whether the store holds sealed outputs, because its machines share no file system."""

    refuses_moved = False
    """Whether calls raise StoreUnavailable once the content was moved away or is being replaced.

    True for handles that `corral.open` returns; False for a mover, which reads and writes in
    every phase of a move.
    """

    redaction: SecretFilter | None = None
    """Removes secrets from stored text; None for handles that only copy rows between stores."""

    def __init__(self) -> None:
        self.unusable: str | None = None
        """Why the handle must not be used any more."""
        self._listeners: list[Listener] = []
        self.thread = ThreadState()
        self.writes_before_reads: set[str] = set()
        """Names of the unfinished writes; see `services/store/write_before_read.py`."""
        self.is_exiting = False
        _open.add(self)

    @contextmanager
    def allow_moved(self) -> Iterator[None]:
        """Let this handle read the store in every phase of a move."""
        before, self.refuses_moved = self.refuses_moved, False
        try:
            yield
        finally:
            self.refuses_moved = before

    def stop_waiting(self) -> None:
        """Stop waiting for a server that is away: this process is about to exit."""
        self.is_exiting = True

    def release_connections_early(self) -> None:  # noqa: B027 (SQLite has no server connections)
        """Hold a server connection only while it is used.

        For long-lived processes that rarely use the store, so that many of them can share the
        connections of one server.
        """

    @contextmanager
    def server_timeout(self, seconds: float) -> Iterator[None]:
        """Limit how long this thread waits for a server that is away; nested limits only shrink."""
        before = self.thread.max_server_wait
        self.thread.max_server_wait = seconds if before is None else min(before, seconds)
        try:
            yield
        finally:
            self.thread.max_server_wait = before

    @contextmanager
    def write_timeout(self, seconds: float) -> Iterator[None]:
        """Limit how long writes of this thread wait for other processes that write.

        A write that takes longer raises StoreUnavailable.
        """
        before = self.thread.max_write_wait
        self.thread.max_write_wait = seconds if before is None else min(before, seconds)
        try:
            yield
        finally:
            self.thread.max_write_wait = before

    def mark_forked(self) -> None:
        """Make the handle unusable in a forked child, which shares the parent's connections."""
        self.unusable = FORKED

    def require_usable(self) -> None:
        if self.unusable:
            raise RuntimeError(self.unusable)

    def require_outside_operation(self) -> None:
        """Raise RuntimeError for a write inside a write.

        The inner write would deadlock, or be committed even if the outer one fails.
        """
        if self.unusable:
            raise RuntimeError(self.unusable)
        if self.thread.is_writing:
            raise RuntimeError(
                "An operation called the library. Call the domain function with the open "
                "transaction instead."
            )

    @abstractmethod
    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        """Run `work` on one snapshot of the store."""

    @abstractmethod
    def write(
        self, work: Work[R], *, mode: Mode = "many", durable: bool = False, repeatable: bool = False
    ) -> R:
        """Run `work` in one transaction: all of its changes are committed, or none.

        The engine may run `work` again, so it must have no side effects outside its transaction.

        - `mode="one"`: `work` writes a single statement or makes a single transition.
        - `durable`: the commit must survive a power cut, whatever durability the store has.
        - `repeatable`: `work` is idempotent, so it is retried even if the connection broke during
          the commit and the outcome is unknown.
        """

    @staticmethod
    def report_redactions_of(work: Work[R], on_redaction: RedactionCallback) -> Work[R]:
        """Wrap `work` so that `on_redaction` is called, whichever thread runs it."""

        def reporting(tx: Tx) -> R:
            result = work(tx)
            if tx.redacted_columns:
                on_redaction(tx.redacted_columns)
            return result

        return reporting

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Tx]:
        """Open one write transaction around several operations."""

    def as_actor(self, actor: str, run_id: str | None = None) -> "Database":
        """Return a view of this store, on the same connections, that acts as another actor.

        Events record the actor and `run_id`, the run of the actor's process.
        """
        return cast(Database, ActorView(self, actor, run_id))

    @abstractmethod
    def listen(self) -> Listener:
        """Open a new listener."""

    @contextmanager
    def listener(self) -> Iterator[Listener]:
        """Use a listener, and keep it for the next caller.

        Opening a listener takes longer than a wake-up.
        """
        try:
            listener = self._listeners.pop()
            listener.resume()
        except IndexError:
            listener = self.listen()
        try:
            yield listener
        finally:
            if self.unusable:
                listener.close()
            else:
                listener.pause()
                self._listeners.append(listener)

    @abstractmethod
    def schema_version(self) -> int:
        """Return the number of the last applied migration; 0 for an empty store."""

    @abstractmethod
    def migration_lock(self) -> AbstractContextManager[None]:
        """Wait for the lock of the one process that migrates, and hold it."""

    @abstractmethod
    def move_lock(self) -> AbstractContextManager[bool]:
        """Try to hold the lock of the one process that moves this store; yields whether it could.

        The lock ends with its process.
        """

    @abstractmethod
    def run_migration(self, number: int, statements: list[str]) -> None:
        """Run the statements of a migration in one transaction, inside `migration_lock`."""

    def adopt_events(self) -> int:
        """Bring events that another server numbered into this server's feed; return how many."""
        return 0

    @abstractmethod
    def check(self, *, thorough: bool) -> list[Finding]:
        """Run the engine's own integrity checks."""

    @abstractmethod
    def backup(self, target: Path) -> None:
        """Fill an empty file with a consistent copy, while other processes continue to write."""

    @abstractmethod
    def restore(self, source: Path, kept: Path | None) -> None:
        """Replace the content by a backup that was checked; `source` may be modified.

        On SQLite the previous content is copied to `kept`.
        """

    @abstractmethod
    def read_snapshot(self) -> AbstractContextManager[ReadTable]:
        """Read any tables in the order of their keys from one snapshot, row by row."""

    @abstractmethod
    def query(self, sql: str, *, limit: int, timeout_ms: int) -> QueryResult:
        """Run a person's read-only query, limited in rows and time."""

    @abstractmethod
    def durability(self, wanted: str | None = None) -> str:
        """Return the store's durability, after setting it to `wanted` if given."""

    def power_loss_risks(self) -> list[str]:
        """List the server settings that break the durability `full`, each with its consequence."""
        return []

    def close(self) -> None:
        """Close all connections.

        In a forked child nothing is closed: closing a connection sends data on the parent's socket.
        """
        if self.unusable != FORKED:
            self.unusable = CLOSED
            _open.discard(self)
            while self._listeners:
                self._listeners.pop().close()
            self._close()

    @abstractmethod
    def _close(self) -> None: ...


class ActorView:
    """A database that acts as another actor; closing it has no effect.

    Every method that opens a transaction is overridden; all others are those of the database.
    """

    def __init__(self, database: Database, actor: str, run_id: str | None = None) -> None:
        self._database = database
        self.actor = actor
        self.run_id = run_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def read(self, work: Work[R], **options: Any) -> R:
        return self._database.read(self._act_in(work), **options)

    def write(self, work: Work[R], **options: Any) -> R:
        return self._database.write(self._act_in(work), **options)

    def _act_in(self, work: Work[R]) -> Work[R]:
        # Set inside the transaction: with group commit, another thread may run the work.
        def as_actor(tx: Tx) -> R:
            tx.act_as(self.actor, self.run_id)
            return work(tx)

        return as_actor

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        with self._database.transaction() as tx:
            tx.act_as(self.actor, self.run_id)
            yield tx

    def close(self) -> None:
        """Do nothing: the owner of the database closes it."""
