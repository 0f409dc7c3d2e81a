"""Moving a store to another place, on either engine: fence, copy, compare, switch.

The target is fenced and shut in the transaction that creates or claims it, so another process can
never open it as an ordinary empty store. Then the source is fenced and stays as
it is: after a crash the same call continues from the rows that were copied. When every table was
compared, the target is opened, and after that the source is shut for good with a pointer to the
target. At no moment do both accept writes.

A lock lets one process at a time move a store or cancel its move. A process loses that lock with
its connection, so every step also checks the move's id in `relocation` inside its own transaction:
a mover that was cancelled or replaced cannot write any more.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path

import msgspec

from corral.db import write_fence
from corral.db.bulk_copy import BATCH, pour, raise_sequences
from corral.db.database import Database, Told
from corral.db.migrate import newest
from corral.db.move_target import WAIT, MoveTarget, void_target
from corral.db.schema import TableDoc
from corral.db.statement import Row, Statement
from corral.db.store_move_record import (
    COPIED,
    DURABILITY,
    ENTER,
    FORGET,
    GONE,
    LOCKED,
    PROMISED,
    STAYED,
    Relocation,
    find,
    seek,
)
from corral.db.tx import Tx
from corral.kernel.errors import Conflict, Invalid, Refused, StoreUnavailable

Open = Callable[[], Database]


# The lock of a server's database is one, by whichever name of the server it is asked for.
_ANOTHER_NAME = f"{WAIT}, or give another URL if that is where this store is already"


@contextmanager
def alone(database: Database, what_then: str = WAIT) -> Iterator[None]:
    """Held by whoever moves a store, from or to where it is, or gives its move up."""
    with database.moving() as held:
        if not held:
            raise Refused(
                f"Another process moves {database.url} at this moment; {what_then}.",
                reason="move_running",
            )
        yield


@contextmanager
def staying(database: Database) -> Iterator[None]:
    """Nobody begins to move the store meanwhile; Refused when somebody has."""
    with alone(database):
        found = find(database)
        if found is not None and found.phase == "leaving":
            raise _on_its_way(found)
        yield


def _on_its_way(found: Relocation) -> Refused:
    return Refused(
        f"This store is on its way to {found.url}; finish that with `corral db move {found.url}`, "
        "or give it up with `corral db move --cancel`.",
        url=found.url,
        reason="move_unfinished",
    )


class Move:
    """One store's move. `open_target` opens the place that it goes to, whatever is there."""

    def __init__(self, source: Database, open_target: Open) -> None:
        self.source = source
        self._open_target = open_target
        with ExitStack() as held:
            held.enter_context(alone(source))
            self.target = open_target()
            held.callback(lambda: self.target.close())
            if self._is_itself:
                raise Invalid(
                    f"{source.url} is where the store is already; give another URL.",
                    reason="same_store",
                )
            held.enter_context(alone(self.target, _ANOTHER_NAME))
            self._held = held.pop_all()
        try:
            found = seek(source)
            if source.schema_version() > write_fence.AWAY:
                raise sign(source)
        except BaseException:
            self.close()
            raise
        self._known = found if found and found.phase == "leaving" else None
        """What the source says of a move from it that was begun before."""
        self.id = self._known.move if self._known else f"mov_{secrets.token_hex(10)}"
        self._arrival = MoveTarget(
            self.target, source.pointer, self.id, has_history=found is not None
        )

    @property
    def begun(self) -> bool:
        """Whether the source is fenced already, by a call that did not come to its end."""
        return self._known is not None

    @property
    def arrived(self) -> bool:
        """Whether the target is open already: others may use it from then on."""
        found = find(self.target)
        return found is not None and (found.move, found.phase) == (self.id, "arrived")

    @property
    def _is_itself(self) -> bool:
        """Whether it would go to where it is, perhaps by a link to its file."""
        path: Path | None = getattr(self.source, "path", None)
        there: Path | None = getattr(self.target, "path", None)
        if path is None or there is None:
            return self.source.pointer == self.target.pointer
        return path.samefile(there)

    def close(self) -> None:
        self._held.close()

    # -- the target -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Fence and shut the target so that only this move can fill it, or continue with it."""
        if self._known and self._known.url != self.target.pointer:
            raise _on_its_way(self._known)
        self._arrival.prepare()

    # -- under the fence ------------------------------------------------------------------------

    def fence(self) -> None:
        """Reject all writes to the source from now on, until the switch or a cancellation."""
        if self._known:
            return

        def leave(tx: Tx) -> None:
            write_fence.lock_content(tx)
            found = tx.one(LOCKED)
            if found is not None and found.phase == "leaving":
                raise _on_its_way(found)
            write_fence.put_up(tx, write_fence.departure_statements(tx.engine, self.target.pointer))
            tx.run(ENTER, phase="leaving", url=self.target.pointer, move=self.id, now=tx.now)

        self.source.write(leave, durable=True)

    def give_up(self) -> None:
        """Cancel the move: void the target, then let the source accept writes again.

        Raises Refused if the target was opened already.
        """
        void_target(self.target, self.id)
        stay(self.source)

    def copy(self, told: Told) -> dict[str, int]:
        """Copy what is not copied yet, and compare all of it; gives back the rows of each table.

        `told` hears of each row twice: it is copied, and then compared.
        """
        arrived = find(self.target)
        assert arrived is not None
        if arrived.phase == "arrived":
            return {}
        digests: dict[str, Digest] = {}
        copied = dict(arrived.copied)
        done, total = 0, 2 * self._count()
        with self.source.reading() as rows_of:
            for table in write_fence.content():
                digest = digests[table.name] = Digest()
                rows = rows_of(table.name, table.names, table.key)
                for added in self._copy_table(table, rows, copied, digest):
                    done += added
                    told(table.name, done, total)
        with self.target.reading() as rows_of:
            for table in write_fence.content():
                rows = rows_of(table.name, table.names, table.key)
                done += self._compare(table.name, rows, digests[table.name])
                told(table.name, done, total)
        return {name: digest.rows for name, digest in digests.items()}

    def _count(self) -> int:
        def count(tx: Tx) -> int:
            return sum(
                int(tx.value(Statement(f"SELECT count(*) FROM {table.name}")))
                for table in write_fence.content()
            )

        return self.source.read(count)

    def _copy_table(
        self, table: TableDoc, rows: Iterator[Row], copied: dict[str, int], digest: "Digest"
    ) -> Iterator[int]:
        # What was copied before is read again: it belongs to the whole that is compared.
        for row in islice(rows, copied.get(table.name, 0)):
            digest.add(row)
        yield digest.rows
        while batch := list(islice(rows, BATCH)):
            for row in batch:
                digest.add(row)
            before = dict(copied)
            copied[table.name] = digest.rows
            self.target.write(self._filling(table, batch, before, dict(copied)))
            yield len(batch)

    def _filling(
        self, table: TableDoc, batch: list[Row], before: dict[str, int], copied: dict[str, int]
    ) -> Callable[[Tx], None]:
        """Insert a batch and record the progress, in one transaction."""
        text = msgspec.json.encode(copied).decode()

        def fill(tx: Tx) -> None:
            self._arrival.open_fence(tx, before)
            pour(tx, table, batch)
            tx.run(COPIED, copied=text)

        return fill

    def _compare(self, table: str, rows: Iterator[Row], wanted: "Digest") -> int:
        found = Digest()
        for row in rows:
            found.add(row)
        if (found.rows, found.text) != (wanted.rows, wanted.text):
            raise Conflict(
                f"{table} has {found.rows:,} rows in {self.target.url} and {wanted.rows:,} here, "
                "or they differ; nothing was switched. `corral db move --cancel` lets this store "
                "go on, then move it again.",
                table=table,
                reason="rows_differ",
            )
        return found.rows

    # -- the switch -----------------------------------------------------------------------------

    def switch(self) -> None:
        """Open the target, then shut the source for good."""
        promised = self.source.read(lambda tx: tx.value(PROMISED), mode="one")
        arrived = find(self.target)
        assert arrived is not None

        def arrive(tx: Tx) -> None:
            self._arrival.open_fence(tx, arrived.copied)
            raise_sequences(tx)
            if promised == "full":  # what a commit survives is not lowered on the way
                tx.run(DURABILITY, promised=promised)
            write_fence.take_down(tx)
            write_fence.unshut(tx, newest())
            tx.note("store", "move", "store", data={"from": self.source.url, "move": self.id})

        def go(tx: Tx) -> None:
            if not tx.run(GONE, move=self.id):
                raise Refused(
                    f"Another process completed or cancelled the move to {self.target.url}. Check "
                    "with `corral doctor`.",
                    url=self.target.url,
                )
            write_fence.shut(tx, newest())

        if arrived.phase == "arriving":
            self.target.write(arrive, durable=True)
        self._look_again()
        self.source.write(go, durable=True)

    def _look_again(self) -> None:
        """See that what was filled is what everybody will open: a file may be gone by now."""
        with closing(self._open_target()) as target:
            there = seek(target)
        if there is None or (there.move, there.phase) != (self.id, "arrived"):
            raise Refused(
                f"{self.target.url} is not what was filled: somebody took that away meanwhile. "
                "Nothing is lost; `corral db move --cancel` lets this store go on.",
                url=self.target.url,
            )


def sign(database: Database) -> StoreUnavailable:
    """What a store says that nobody may open: where its content is."""
    found = find(database)
    assert found is not None
    if found.phase == "gone":
        return StoreUnavailable(
            f"{database.url} was moved to {found.url}; use that.", reason="moved", to=found.url
        )
    return StoreUnavailable(
        f"{database.url} is being filled from {found.url}; finish that with `corral --store "
        f"{found.url} db move {database.url}`.",
        reason="arriving",
    )


def mark_as_part(tx: Tx, url: str) -> None:
    """Say that this store holds a part of another one, to be looked at."""
    tx.run(ENTER, phase="part", url=url, move="", now=tx.now)


def stay(database: Database) -> None:
    """Remove the fence of a move that was not switched, if there is one; an excerpt of another
    store becomes an ordinary store."""

    def remain(tx: Tx) -> None:
        found = tx.one(LOCKED)
        if found is not None and found.phase in ("leaving", "part"):
            write_fence.take_down(tx)
            tx.run(STAYED)
            tx.run(FORGET)

    found = find(database)
    if found is not None and found.phase in ("leaving", "part"):
        database.write(remain, durable=True)


class Digest:
    """Counts rows and hashes them in their order; the same for the same rows of either engine."""

    def __init__(self) -> None:
        self.rows = 0
        self._hash = sha256()

    def add(self, row: Row) -> None:
        self.rows += 1
        self._hash.update(msgspec.msgpack.encode(row))

    @property
    def text(self) -> str:
        return self._hash.hexdigest()
