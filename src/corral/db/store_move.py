"""Move a store to another place, on either engine: block writes, copy, compare, switch.

1. The target gets a write guard and is closed in the transaction that creates or claims it, so
   another process can never open it as an ordinary empty store.
2. The source gets a write guard. It stays unchanged from here on: after a crash, the same call
   continues from the rows that were copied.
3. All tables are copied and compared.
4. The target is opened, and then the source is closed for good, with a pointer to the target. At no
   moment do both accept writes.

A lock lets one process at a time move a store or cancel its move. A process loses that lock with
its connection, so every step also checks the move's id in `store_moves` inside its own transaction:
a mover that was cancelled or replaced cannot write any more.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from itertools import islice

import msgspec

from corral.db import write_guard
from corral.db.bulk_insert import COPY_BATCH, advance_sequences, copy_rows
from corral.db.database import Database
from corral.db.migrations import latest_version
from corral.db.move_target import WAIT, MoveTarget, void_target
from corral.db.schema import TableDoc
from corral.db.statement import Row, Statement
from corral.db.store_move_record import (
    DELETE_EXCERPT_MARK,
    MARK_CANCELLED,
    MARK_GONE,
    READ_DURABILITY,
    READ_FOR_UPDATE,
    SAVE_PROGRESS,
    SET_DURABILITY,
    UPSERT,
    StoreMoveRecord,
    read_store_move,
    read_store_move_if_current,
)
from corral.db.tx import Tx
from corral.db.types import ProgressCallback
from corral.kernel.errors import Conflict, Invalid, Refused, StoreUnavailable

Open = Callable[[], Database]


# Source and target may be the same PostgreSQL database under two names of the server; then the
# second lock fails.
_SAME_DATABASE_HINT = f"{WAIT}, or give another URL if this store is already there"


@contextmanager
def require_move_lock(database: Database, hint: str = WAIT) -> Iterator[None]:
    """Hold the lock for moving a store from or to `database`; raises Refused if it is taken."""
    with database.move_lock() as is_held:
        if not is_held:
            raise Refused(
                f"Another process is moving {database.url}. {hint}.", reason="move_running"
            )
        yield


@contextmanager
def prevent_move(database: Database) -> Iterator[None]:
    """Prevent a move from starting meanwhile; raises Refused if one has started."""
    with require_move_lock(database):
        record = read_store_move(database)
        if record is not None and record.phase == "leaving":
            raise _move_in_progress(record)
        yield


def _move_in_progress(record: StoreMoveRecord) -> Refused:
    return Refused(
        f"This store is being moved to {record.url}. Finish the move with `corral db move "
        f"{record.url}`, or cancel it with `corral db move --cancel`.",
        url=record.url,
        reason="move_unfinished",
    )


class StoreMove:
    """One move of a store; `open_target` opens the target in whatever state it is.

    Holds the move locks of both until `close`.
    """

    def __init__(self, source: Database, open_target: Open) -> None:
        self.source = source
        self._open_target = open_target
        with ExitStack() as held:
            held.enter_context(require_move_lock(source))
            self.target = open_target()
            held.callback(lambda: self.target.close())
            if self._is_same_place:
                raise Invalid(
                    f"The store is already at {source.url}. Give another URL.", reason="same_store"
                )
            held.enter_context(require_move_lock(self.target, _SAME_DATABASE_HINT))
            self._held = held.pop_all()
        try:
            record = read_store_move_if_current(source)
            if source.schema_version() > write_guard.MOVED_OFFSET:
                raise moved_error(source)
        except BaseException:
            self.close()
            raise
        self._begun = record if record and record.phase == "leaving" else None
        """The record of an earlier call that did not finish this move."""
        self.id = self._begun.move_id if self._begun else f"mov_{secrets.token_hex(10)}"
        self._target = MoveTarget(
            self.target, source.pointer, self.id, has_history=record is not None
        )

    @property
    def begun(self) -> bool:
        """Whether an earlier call has blocked writes to the source and not finished the move."""
        return self._begun is not None

    @property
    def arrived(self) -> bool:
        """Whether the target is already open, so that other processes may use it."""
        record = read_store_move(self.target)
        return record is not None and (record.move_id, record.phase) == (self.id, "arrived")

    @property
    def _is_same_place(self) -> bool:
        """Whether source and target are the same store, perhaps through a symlink."""
        path, target_path = self.source.path, self.target.path
        if path is None or target_path is None:
            return self.source.pointer == self.target.pointer
        return path.samefile(target_path)

    def close(self) -> None:
        self._held.close()

    # -- the target -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Guard and close the target so that only this move can fill it. Idempotent."""
        if self._begun and self._begun.url != self.target.pointer:
            raise _move_in_progress(self._begun)
        self._target.prepare()

    # -- while writes are blocked ----------------------------------------------------------------

    def block_writes(self) -> None:
        """Reject all writes to the source from now on, until the switch or a cancellation."""
        if self._begun:
            return

        def leave(tx: Tx) -> None:
            write_guard.lock_content(tx)
            record = tx.first(READ_FOR_UPDATE)
            if record is not None and record.phase == "leaving":
                raise _move_in_progress(record)
            write_guard.install(
                tx, write_guard.build_departure_statements(tx.engine, self.target.pointer)
            )
            tx.run(UPSERT, phase="leaving", url=self.target.pointer, move_id=self.id, now=tx.now)

        self.source.write(leave, durable=True)

    def give_up(self) -> None:
        """Cancel the move: void the target, then let the source accept writes again.

        Raises Refused if the target was opened already.
        """
        void_target(self.target, self.id)
        keep_here(self.source)

    def copy(self, progress: ProgressCallback) -> dict[str, int]:
        """Copy the rows that are missing, then compare all; return the number of rows by table.

        Progress counts each row twice: when it is copied and when it is compared.
        """
        arrived = read_store_move(self.target)
        assert arrived is not None
        if arrived.phase == "arrived":
            return {}
        digests: dict[str, RowDigest] = {}
        copied = dict(arrived.copied_rows)
        done, total = 0, 2 * self._count()
        with self.source.read_snapshot() as read_table:
            for table in write_guard.list_content_tables():
                digest = digests[table.name] = RowDigest()
                rows = read_table(table.name, table.names, table.key)
                for added in self._copy_table(table, rows, copied, digest):
                    done += added
                    progress(table.name, done, total)
        with self.target.read_snapshot() as read_table:
            for table in write_guard.list_content_tables():
                rows = read_table(table.name, table.names, table.key)
                done += self._compare(table.name, rows, digests[table.name])
                progress(table.name, done, total)
        return {name: digest.rows for name, digest in digests.items()}

    def _count(self) -> int:
        def count(tx: Tx) -> int:
            return sum(
                int(tx.value(Statement(f"SELECT count(*) FROM {table.name}")))
                for table in write_guard.list_content_tables()
            )

        return self.source.read(count)

    def _copy_table(
        self, table: TableDoc, rows: Iterator[Row], copied: dict[str, int], digest: "RowDigest"
    ) -> Iterator[int]:
        # Rows that were copied before are hashed too: the comparison covers the whole table.
        for row in islice(rows, copied.get(table.name, 0)):
            digest.add(row)
        yield digest.rows
        while batch := list(islice(rows, COPY_BATCH)):
            for row in batch:
                digest.add(row)
            before = dict(copied)
            copied[table.name] = digest.rows
            self.target.write(self._copy_batch(table, batch, before, dict(copied)))
            yield len(batch)

    def _copy_batch(
        self, table: TableDoc, batch: list[Row], before: dict[str, int], copied: dict[str, int]
    ) -> Callable[[Tx], None]:
        """Return the transaction that inserts a batch and records the progress."""
        text = msgspec.json.encode(copied).decode()

        def fill(tx: Tx) -> None:
            self._target.open_write_guard(tx, before)
            copy_rows(tx, table, batch)
            tx.run(SAVE_PROGRESS, copied_rows=text)

        return fill

    def _compare(self, table: str, rows: Iterator[Row], expected: "RowDigest") -> int:
        actual = RowDigest()
        for row in rows:
            actual.add(row)
        if (actual.rows, actual.text) != (expected.rows, expected.text):
            raise Conflict(
                f"The copy of {table} differs: {actual.rows:,} rows in {self.target.url}, "
                f"{expected.rows:,} here. The store was not switched. Cancel with `corral db move "
                "--cancel`, then move it again.",
                table=table,
                reason="rows_differ",
            )
        return actual.rows

    # -- the switch -----------------------------------------------------------------------------

    def switch(self) -> None:
        """Open the target, then close the source for good."""
        promised = self.source.read(lambda tx: tx.value(READ_DURABILITY), mode="one")
        arrived = read_store_move(self.target)
        assert arrived is not None

        def arrive(tx: Tx) -> None:
            self._target.open_write_guard(tx, arrived.copied_rows)
            advance_sequences(tx)
            if promised == "full":  # a move never lowers the durability
                tx.run(SET_DURABILITY, promised=promised)
            write_guard.remove(tx)
            write_guard.reopen_store(tx, latest_version())
            tx.emit("store", "move", "store", data={"from": self.source.url, "move": self.id})

        def go(tx: Tx) -> None:
            if not tx.run(MARK_GONE, move_id=self.id):
                raise Refused(
                    f"Another process completed or cancelled the move to {self.target.url}. Check "
                    "with `corral doctor`.",
                    url=self.target.url,
                )
            write_guard.close_store(tx, latest_version())

        if arrived.phase == "arriving":
            self.target.write(arrive, durable=True)
        self._verify_target()
        self.source.write(go, durable=True)

    def _verify_target(self) -> None:
        """Open the target again before the source is closed: its file may have been replaced."""
        with closing(self._open_target()) as target:
            record = read_store_move_if_current(target)
        if record is None or (record.move_id, record.phase) != (self.id, "arrived"):
            raise Refused(
                f"{self.target.url} was removed or replaced during the move. Nothing is lost: "
                "cancel with `corral db move --cancel` to keep using this store.",
                url=self.target.url,
            )


def moved_error(database: Database) -> StoreUnavailable:
    """Return the error for a closed store; it names where the content is."""
    record = read_store_move(database)
    assert record is not None
    if record.phase == "gone":
        return StoreUnavailable(
            f"{database.url} was moved to {record.url}. Use that URL.",
            reason="moved",
            to=record.url,
        )
    return StoreUnavailable(
        f"{database.url} is being filled from {record.url}. Finish the move with `corral --store "
        f"{record.url} db move {database.url}`.",
        reason="arriving",
    )


def mark_as_excerpt(tx: Tx, url: str) -> None:
    """Record that this store is an excerpt of another one."""
    tx.run(UPSERT, phase="excerpt", url=url, move_id="", now=tx.now)


def keep_here(database: Database) -> None:
    """Remove the write guard of an unfinished move, if any, so that the store stays here.

    An excerpt of another store becomes an ordinary store.
    """

    def remove_guard(tx: Tx) -> None:
        record = tx.first(READ_FOR_UPDATE)
        if record is not None and record.phase in ("leaving", "excerpt"):
            write_guard.remove(tx)
            tx.run(MARK_CANCELLED)
            tx.run(DELETE_EXCERPT_MARK)

    record = read_store_move(database)
    if record is not None and record.phase in ("leaving", "excerpt"):
        database.write(remove_guard, durable=True)


class RowDigest:
    """Counts and hashes rows in order; equal for the same rows on either engine."""

    def __init__(self) -> None:
        self.rows = 0
        self._hash = sha256()

    def add(self, row: Row) -> None:
        self.rows += 1
        self._hash.update(msgspec.msgpack.encode(row))

    @property
    def text(self) -> str:
        return self._hash.hexdigest()
