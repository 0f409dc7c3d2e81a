"""A database: what both engines offer to the library, and nothing more."""

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from corral.db.dialect import Engine
from corral.db.statement import Row
from corral.db.tx import Mode, Redaction, Tx
from corral.kernel.clock import Clock

R = TypeVar("R")
Work = Callable[[Tx], R]
RowsOf = Callable[[str, list[str], str], Iterator[Row]]
Probe = Callable[[str], None]
Tell = Callable[[Sequence[str]], None]
Told = Callable[[str, int, int], None]
"""Told how far something long is: which part of it, how much is done, and of how much."""


def silent(part: str, done: int, total: int) -> None:
    """For whoever does not want to be told."""


class Listener(Protocol):
    """Wakes when another commit may have changed what a query would find.

    Open it before the query whose answer you wait for: every commit after the opening, or after the
    last `wait`, makes the next `wait` return.
    """

    def wait(self, timeout: float) -> bool:
        """Wait for a commit, at most `timeout` seconds. False when the time ran out."""
        ...

    def rest(self) -> None:
        """Nobody waits for now; cost nothing until `resume`."""
        ...

    def resume(self) -> None:
        """Wait again, for commits from now on."""
        ...

    def close(self) -> None: ...


class Finding(msgspec.Struct, frozen=True):
    """One thing that a check looked at."""

    check: str
    state: str
    """ok, warning or broken."""
    message: str


class Thing(NamedTuple):
    """A part of a schema."""

    kind: str
    """table, index, trigger, view; on PostgreSQL also constraint and rule."""
    name: str
    table: str
    """The one that it is on; a table and a view are on themselves."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" on {self.table}" if self.table != self.name else "")


Shape = Mapping[Thing, str]
"""All parts of a schema, and how each is spelled out."""


class Table(msgspec.Struct, frozen=True):
    """The rows that a read-only query gave, with a note when there were more."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool


# Why a store cannot be used any more.
CLOSED = "the store was closed; open it again"
FORKED = "the store was opened before a fork; start the child with exec or spawn"

_open: "weakref.WeakSet[Database]" = weakref.WeakSet()


def _disown_in_child() -> None:
    for database in list(_open):
        database.disown()


os.register_at_fork(after_in_child=_disown_in_child)


class Working(threading.local):
    """`here` is set on a thread while it runs an operation that writes; `tell` is told what secrets
    were taken out of, in what that thread asked for; `patience` is how many seconds it waits for a
    server that went away, and `turn_patience` for other processes that write (SQLite), where these
    are not the usual ones."""

    here = False
    tell: Tell | None = None
    patience: float | None = None
    turn_patience: float | None = None


class Database(ABC):
    engine: Engine
    url: str
    """Where it is, to be shown: without any password."""
    address: str
    """The same with all that is needed to open it; for another process, never to be shown."""
    pointer: str
    """The same but for passwords; for a store to say where another one is."""

    clock: Clock
    actor: str
    origin: str | None = None
    """The id of the run that this process belongs to; events record it."""

    keeps_output = False
    """Whether the store keeps sealed outputs: where machines share it, a file is not enough."""

    refuses_moved = False
    """Whether calls raise StoreUnavailable once the content was moved away or is being replaced.
    Set for every handle that was opened for use. A mover reads and writes in every phase."""

    redaction: Redaction | None = None
    """Takes secrets out of what is kept; None where rows are only moved from store to store."""

    def __init__(self) -> None:
        self.unusable: str | None = None
        """Why it must not be used any more."""
        self._listeners: list[Listener] = []
        self.working = Working()
        self.upkeep: set[str] = set()
        """Upkeep that reads have started and not finished; see `services/store/upkeep.py`."""
        self.hurried = False
        _open.add(self)

    @contextmanager
    def seeing_every_phase(self) -> Iterator[None]:
        """Let this handle see the store in every phase of its move."""
        before, self.refuses_moved = self.refuses_moved, False
        try:
            yield
        finally:
            self.refuses_moved = before

    def hurry(self) -> None:
        """This process is about to end: from now on a server that went away is not waited for."""
        self.hurried = True

    def spare_connections(self) -> None:  # noqa: B027 (SQLite has no server connections)
        """Hold a server connection only while it is used. For long-lived processes that use the
        store rarely, so that many of them can share a server's connections."""

    @contextmanager
    def waiting_at_most(self, seconds: float) -> Iterator[None]:
        """On this thread a server that went away is waited for no longer than this, nor than
        whoever called may wait."""
        before = self.working.patience
        self.working.patience = seconds if before is None else min(before, seconds)
        try:
            yield
        finally:
            self.working.patience = before

    @contextmanager
    def writing_within(self, seconds: float) -> Iterator[None]:
        """On this thread a write waits no longer than this for another process that writes; then it
        raises StoreUnavailable."""
        before = self.working.turn_patience
        self.working.turn_patience = seconds if before is None else min(before, seconds)
        try:
            yield
        finally:
            self.working.turn_patience = before

    def disown(self) -> None:
        """A fork copied the connections: parent and child would talk into each other."""
        self.unusable = FORKED

    def require_usable(self) -> None:
        if self.unusable:
            raise RuntimeError(self.unusable)

    def require_outside_operation(self) -> None:
        """Refuse a write inside a write: it would wait for itself, or be kept without the other."""
        if self.unusable:
            raise RuntimeError(self.unusable)
        if self.working.here:
            raise RuntimeError(
                "an operation called the library; call the room's function with the open "
                "transaction instead"
            )

    @abstractmethod
    def read(self, work: Work[R], *, mode: Mode = "many") -> R:
        """Run `work` on one snapshot of the store."""

    @abstractmethod
    def write(
        self, work: Work[R], *, mode: Mode = "many", durable: bool = False, repeatable: bool = False
    ) -> R:
        """Run `work` in one transaction: all of it is kept, or none.

        `work` may be run again when the engine asks for it, so it must do nothing but talk to its
        transaction. `mode="one"` says that it writes a single statement or a single move.
        `durable` asks that it survive a power cut even in a store that does not ask for it.
        `repeatable` says that running it twice does no harm, so it is tried again even when a
        connection broke at the moment of the commit.
        """

    @staticmethod
    def telling(work: Work[R], tell: Tell) -> Work[R]:
        """The work, whoever runs it; `tell` hears what secrets were taken out of."""

        def told(tx: Tx) -> R:
            result = work(tx)
            if tx.taken:
                tell(tx.taken)
            return result

        return told

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Tx]:
        """One writing transaction around several operations."""

    def acting_as(self, actor: str, origin: str | None = None) -> "Database":
        """Return a view of this store, on the same connections, that acts as another actor. Events
        record the actor and `origin`, the run of the actor's process."""
        view: Any = Acting(self, actor, origin)
        same: Database = view
        return same

    @abstractmethod
    def listen(self) -> Listener: ...

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """A listener for a while. It is kept for the next one who waits: to make and to end one
        takes longer than a wake-up."""
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
                listener.rest()
                self._listeners.append(listener)

    @abstractmethod
    def schema_version(self) -> int:
        """The number of the last migration that this store has seen; 0 for an empty one."""

    @abstractmethod
    def migrating(self) -> AbstractContextManager[None]:
        """Held by the one process that migrates; others wait."""

    @abstractmethod
    def moving(self) -> AbstractContextManager[bool]:
        """Whether nobody else moves this store; nobody does until the end. A dead one lets go."""

    @abstractmethod
    def run_migration(self, number: int, statements: list[str]) -> None:
        """Run a migration's statements in one transaction, inside `migrating`."""

    def adopt_events(self) -> int:
        """Bring events that another server wrote into this one's feed."""
        return 0

    @abstractmethod
    def check(self, *, thorough: bool) -> list[Finding]:
        """Whether the engine finds the store sound."""

    @abstractmethod
    def backup(self, target: Path) -> None:
        """Fill an empty file with a whole copy, taken while others go on writing."""

    @abstractmethod
    def restore(self, source: Path, kept: Path | None) -> None:
        """Replace everything by a back-up that was checked and is ours to change.

        What was there before goes into `kept`, on SQLite.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager["RowsOf"]:
        """The rows of any table (its name, columns and key) in the order of the key, all as they
        were at one moment, without holding them in memory."""

    @abstractmethod
    def query(self, sql: str, *, limit: int, timeout_ms: int) -> Table:
        """A read-only query of a person: limited in rows and time, unable to write."""

    @abstractmethod
    def durability(self, wanted: str | None = None) -> str: ...

    def power_loss_risks(self) -> list[str]:
        """List the server settings that break the durability `full`, each with its consequence."""
        return []

    def close(self) -> None:
        """Let go of everything. In a child that was forked, leave all of it to the parent: to close
        a connection is to speak on it."""
        if self.unusable != FORKED:
            self.unusable = CLOSED
            _open.discard(self)
            while self._listeners:
                self._listeners.pop().close()
            self._close()

    @abstractmethod
    def _close(self) -> None: ...


class Acting:
    """A database in somebody's name. It is not theirs to close."""

    def __init__(self, database: Database, actor: str, origin: str | None = None) -> None:
        self._database = database
        self.actor = actor
        self.origin = origin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, work: Work[R], **options: Any) -> R:
        # A transaction is of one operation, whichever thread runs it, so the name goes with it.
        def as_them(tx: Tx) -> R:
            tx.act_as(self.actor, self.origin)
            return work(tx)

        return self._database.write(as_them, **options)

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        with self._database.transaction() as tx:
            tx.act_as(self.actor, self.origin)
            yield tx

    def close(self) -> None:
        """Whoever opened the database closes it."""
