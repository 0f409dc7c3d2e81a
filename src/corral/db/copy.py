"""Whole stores, from one file or engine to another.

A back-up is always a SQLite file: a SQLite store is copied as it is, and a PostgreSQL store is
written out into a new file with the same tables. So a back-up can be opened, looked into and
restored on either engine without any other tool.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from corral.db.filesystem import make_new_private_file
from corral.db.migrate import newest, open_schema
from corral.db.schema import TableDoc, tables
from corral.db.sqlite import APPLICATION_ID, SqliteDatabase
from corral.db.statement import Statement
from corral.kernel.clock import SystemClock
from corral.kernel.errors import Invalid

if TYPE_CHECKING:
    from corral.db.postgres import PostgresDatabase

BATCH = 1_000

# What every store has from its migrations; the rest is its content.
_OWN = ("migrations", "store")


def check_backup(path: Path) -> None:
    """Refuse what is no back-up of Corral's, or of a newer Corral."""
    if not path.is_file():
        raise Invalid(f"There is no back-up at {path}.", path=str(path))
    try:
        file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            marked = file.pragma("application_id") == APPLICATION_ID
            version = file.pragma("user_version")
            sound = file.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
        finally:
            file.close()
    except apsw.Error:
        marked, sound, version = False, False, 0
    if not marked or not sound:
        raise Invalid(
            f"{path} is no sound back-up of a Corral store; take another one.", path=str(path)
        )
    if version > newest():
        raise Invalid(f"{path} was made by a newer Corral; upgrade this one first.", path=str(path))


@contextmanager
def current_copy(source: Path) -> Iterator[Path]:
    """The back-up with today's schema, in a file of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="corral-") as folder:
        copy = Path(folder) / "copy.db"
        _copy_file(source, copy)
        database = SqliteDatabase(copy, clock=SystemClock(), actor="corral")
        try:
            open_schema(database)
        finally:
            database.close()
        yield copy


def _copy_file(source: Path, target: Path) -> None:
    """Copy by SQLite's own means: what a live store has accepted may still be in its log."""
    reader, writer = apsw.Connection(str(source)), apsw.Connection(str(target))
    try:
        with writer.backup("main", reader, "main") as task:
            task.step(-1)
    finally:
        reader.close()
        writer.close()


def copy_to_file(source: "PostgresDatabase", target: Path) -> None:
    """Write a PostgreSQL store, as it was at one moment, into a new SQLite file."""
    make_new_private_file(target)
    target.unlink()
    database = SqliteDatabase(target, clock=source.clock, actor=source.actor)
    try:
        open_schema(database)
        with database.transaction() as into, source.reading() as rows_of:
            for table in _content():
                names = [column.name for column in table.columns]
                insert = _insert(table.name, names)
                for row in rows_of(table.name, names):
                    into.run(insert, **dict(zip(names, row, strict=True)))
    except BaseException:
        database.close()
        target.unlink(missing_ok=True)
        raise
    database.close()
    _tidy(target)


def copy_from_file(source: Path, target: "PostgresDatabase") -> None:
    """Replace all that a PostgreSQL store holds by a back-up, in one transaction."""
    file = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        with target.transaction() as into:
            for table in reversed(_content()):
                into.run(Statement(f"DELETE FROM {table.name}"))
            for table in _content():
                names = [column.name for column in table.columns]
                insert = _insert(table.name, names)
                listed = ", ".join(names)
                for row in file.execute(f"SELECT {listed} FROM {table.name} ORDER BY 1"):
                    into.run(insert, **dict(zip(names, row, strict=True)))
                if names[0] == "seq":
                    into.run(_next_number(table.name))
    finally:
        file.close()


def _content() -> list[TableDoc]:
    return [table for table in tables() if table.name not in _OWN]


def _insert(table: str, names: list[str]) -> Statement:
    values = ", ".join(f":{name}" for name in names)
    return Statement(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})")


def _next_number(table: str) -> Statement:
    return Statement(
        f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'),"
        f" coalesce((SELECT max(seq) FROM {table}), 0) + 1, false)"
    )


def _tidy(path: Path) -> None:
    """Leave one file that needs nothing beside it."""
    file = apsw.Connection(str(path))
    file.execute("PRAGMA journal_mode = DELETE").fetchall()
    file.close()
    for beside in ("-line", "-line-door", "-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
