"""A store's way to another place, on either engine: fenced, copied, compared, switched.

The source is fenced first and stays as it is; so whatever dies on the way, the same call again goes
on from the rows that were copied, and nothing can have been written that is not. The target lets
nobody in until every table is compared, row by row in order. Then it is open, and only then is the
source shut for good, with a sign where its content went. In between nobody can write to either.
One at a time moves a store or gives its move up: two would fill, clear and unfence one another's.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path

import msgspec

from corral.db import fencing
from corral.db.database import Database, Told
from corral.db.migrate import newest, open_schema
from corral.db.pouring import BATCH, pour, raise_sequences
from corral.db.schema import TableDoc
from corral.db.statement import Query, Row, Statement
from corral.db.tx import Tx
from corral.kernel.errors import Conflict, Invalid, Refused, StoreUnavailable

Open = Callable[[], Database]


class Relocation(msgspec.Struct, frozen=True):
    phase: str
    url: str
    move: str
    copied: dict[str, int]


_FIND = Query(Relocation, "SELECT phase, url, move, copied FROM relocation")
_ENTER = Statement("""
    INSERT INTO relocation (one, phase, url, move, copied, at)
    VALUES (1, :phase, :url, :move, '{}', :now)
    ON CONFLICT (one) DO UPDATE SET phase = excluded.phase, url = excluded.url,
        move = excluded.move, copied = excluded.copied, at = excluded.at
""")
_PHASE = Statement("UPDATE relocation SET phase = :phase")
_COPIED = Statement("UPDATE relocation SET copied = :copied")
_FORGET = Statement("DELETE FROM relocation")
_DURABILITY = Statement("UPDATE store SET durability = :promised")


def find(database: Database) -> Relocation | None:
    """Where a store's content is going, went or comes from; None when it is just here."""
    return database.read(lambda tx: tx.one(_FIND), mode="one")


def seek(database: Database) -> Relocation | None:
    """The same in a place that may hold no store yet, or an older one."""
    return find(database) if database.schema_version() % fencing.AWAY == newest() else None


_WAIT = "wait until it is done"
# The lock of a server's database is one, by whichever name of the server it is asked for.
_ANOTHER_NAME = f"{_WAIT}, or give another URL if that is where this store is already"


@contextmanager
def alone(database: Database, what_then: str = _WAIT) -> Iterator[None]:
    """Held by whoever moves a store, from or to where it is, or gives its move up."""
    with database.moving() as held:
        if not held:
            raise Refused(f"Another process moves {database.url} at this moment; {what_then}.")
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
                raise Invalid(f"{source.url} is where the store is already; give another URL.")
            held.enter_context(alone(self.target, _ANOTHER_NAME))
            self._held = held.pop_all()
        found = find(source)
        self._known = found if found and found.phase == "leaving" else None
        """What the source says of a move from it that was begun before."""
        self.id = self._known.move if self._known else f"mov_{secrets.token_hex(10)}"

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

    # -- before anything is fenced --------------------------------------------------------------

    def prepare(self) -> None:
        """Make the target ready to be filled, or go on with it; refuse what holds anything else."""
        known = self._known
        if known and known.url != self.target.pointer:
            raise _on_its_way(known)
        found = seek(self.target)
        if found is not None and found.move == self.id and found.phase != "gone":
            return
        ours = found is not None and found.url == self.source.pointer
        if found is not None and ours and found.phase in ("arriving", "gone"):
            # Half of an earlier copy, or what was moved from there to here: neither is anybody's.
            self._clear_target(keep=found.phase == "gone")
        elif found is not None and found.phase != "arrived":
            raise Refused(
                f"{self.target.url} {_SAID[found.phase]} {found.url}; take another one.",
                url=found.url,
            )
        open_schema(self.target)
        self.target.write(self._begin_to_arrive)

    def _begin_to_arrive(self, tx: Tx) -> None:
        for table in fencing.content():
            if tx.run(Statement(f"SELECT 1 FROM {table.name} LIMIT 1")):
                raise Refused(
                    f"{self.target.url} holds something already, in {table.name}; give the URL of "
                    "a new store.",
                    table=table.name,
                )
        tx.run(_ENTER, phase="arriving", url=self.source.pointer, move=self.id, now=tx.now)
        fencing.shut(tx, newest())

    def _clear_target(self, *, keep: bool) -> None:
        path: Path | None = getattr(self.target, "path", None)
        if path is None:
            names = ", ".join([table.name for table in fencing.content()] + ["relocation"])

            def empty(tx: Tx) -> None:
                fencing.take_down(tx)
                fencing.unshut(tx, newest())
                tx.run(Statement(f"TRUNCATE {names}"))

            self.target.write(empty)
            return
        self.target.close()
        for end in ("-wal", "-shm", ""):
            file = path.with_name(path.name + end)
            if keep and file.exists():
                file.rename(path.with_name(f"{path.name}.moved-away{end}"))
            file.unlink(missing_ok=True)
        self.target = self._open_target()

    # -- under the fence ------------------------------------------------------------------------

    def fence(self) -> None:
        """From here on nobody writes to the source, until it is switched or given up."""
        if self._known:
            return

        def leave(tx: Tx) -> None:
            fencing.put_up(tx, self.target.pointer)
            tx.run(_ENTER, phase="leaving", url=self.target.pointer, move=self.id, now=tx.now)

        self.source.write(leave, durable=True)

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
            for table in fencing.content():
                digest = digests[table.name] = Digest()
                rows = rows_of(table.name, table.names, table.key)
                for added in self._copy_table(table, rows, copied, digest):
                    done += added
                    told(table.name, done, total)
        with self.target.reading() as rows_of:
            for table in fencing.content():
                rows = rows_of(table.name, table.names, table.key)
                done += self._compare(table.name, rows, digests[table.name])
                told(table.name, done, total)
        return {name: digest.rows for name, digest in digests.items()}

    def _count(self) -> int:
        def count(tx: Tx) -> int:
            return sum(
                int(tx.value(Statement(f"SELECT count(*) FROM {table.name}")))
                for table in fencing.content()
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
            copied[table.name] = digest.rows
            self.target.write(_filling(table, batch, dict(copied)))
            yield len(batch)

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
            )
        return found.rows

    # -- the switch -----------------------------------------------------------------------------

    def switch(self) -> None:
        """Open the target, then shut the source for good."""
        promised = self.source.durability()

        def arrive(tx: Tx) -> None:
            raise_sequences(tx)
            if promised == "full":  # what a commit survives is not lowered on the way
                tx.run(_DURABILITY, promised=promised)
            tx.run(_PHASE, phase="arrived")
            fencing.unshut(tx, newest())
            tx.note("store", "move", "store", data={"from": self.source.url, "move": self.id})

        def go(tx: Tx) -> None:
            tx.run(_PHASE, phase="gone")
            fencing.shut(tx, newest())

        arrived = find(self.target)
        assert arrived is not None
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


_SAID = {
    "part": "holds a part of",
    "leaving": "is on its way to",
    "gone": "holds only what was moved to",
    "arriving": "is being filled from",
}


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
    tx.run(_ENTER, phase="part", url=url, move="", now=tx.now)


def stay(database: Database) -> None:
    """Take down the fence of a move that was not switched, if there is one; and a part of another
    store becomes a store like any other."""

    def remain(tx: Tx) -> None:
        fencing.take_down(tx)
        tx.run(_FORGET)

    found = find(database)
    if found is not None and found.phase in ("leaving", "part"):
        database.write(remain, durable=True)


def _filling(table: TableDoc, batch: list[Row], copied: dict[str, int]) -> Callable[[Tx], None]:
    """A piece of a table, and that it is there: one transaction."""
    text = msgspec.json.encode(copied).decode()

    def fill(tx: Tx) -> None:
        pour(tx, table, batch)
        tx.run(_COPIED, copied=text)

    return fill


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
