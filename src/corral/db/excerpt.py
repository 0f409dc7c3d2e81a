"""Excerpts: a part of a store as a SQLite file with the same tables.

An excerpt can be opened like any store.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from corral.db.backup import finish_file
from corral.db.bulk_insert import copy_rows
from corral.db.database import Database
from corral.db.migrations import ensure_schema
from corral.db.schema import TableDoc
from corral.db.sqlite import SqliteDatabase
from corral.db.statement import Row
from corral.db.store_move import mark_as_excerpt
from corral.db.tx import Tx
from corral.db.types import ProgressCallback
from corral.db.write_guard import list_content_tables

ChangeRow = Callable[[TableDoc, Row], Row]


@contextmanager
def write_excerpt(
    source: Database,
    target: Path,
    conditions: Mapping[str, str],
    change: ChangeRow,
    progress: ProgressCallback,
) -> Iterator[tuple[Tx, dict[str, int]]]:
    """Copy selected rows of one snapshot into a new file, each changed by `change`.

    `conditions` has a WHERE condition for each table to copy. Yields the open transaction of the
    new store and the number of rows by table, so that the caller can add rows. Afterwards the file
    is complete, without a log beside it.
    """
    database = SqliteDatabase(target, clock=source.clock, actor=source.actor)
    counts: dict[str, int] = {}
    try:
        ensure_schema(database)
        with database.transaction() as tx:
            with source.read_snapshot() as read_table:
                tables = [table for table in list_content_tables() if table.name in conditions]
                for index, table in enumerate(tables):
                    progress(table.name, index, len(tables))
                    counts[table.name] = 0
                    where = f"{table.name} WHERE {conditions[table.name]}"
                    rows = read_table(where, table.names, table.key)
                    copy_rows(tx, table, _apply(table, rows, change, counts))
            yield tx, counts
            mark_as_excerpt(tx, source.url)
    finally:
        database.close()
    finish_file(target)


def _apply(
    table: TableDoc, rows: Iterator[Row], change: ChangeRow, counts: dict[str, int]
) -> Iterator[Row]:
    for row in rows:
        counts[table.name] += 1
        yield change(table, row)
