"""A part of a store, as a store of its own: a SQLite file with the same tables.

Whatever looks at a store can look at it, on either engine and without any other tool.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from corral.db.bulk_copy import pour
from corral.db.copy import tidy
from corral.db.database import Database, Told
from corral.db.migrate import open_schema
from corral.db.schema import TableDoc
from corral.db.sqlite import SqliteDatabase
from corral.db.statement import Row
from corral.db.store_move import mark_as_part
from corral.db.tx import Tx
from corral.db.write_fence import content

Change = Callable[[TableDoc, Row], Row]


@contextmanager
def excerpt(
    source: Database,
    target: Path,
    conditions: Mapping[str, str],
    change: Change,
    told: Told,
) -> Iterator[tuple[Tx, dict[str, int]]]:
    """The rows of each table that its condition allows, as they were at one moment, each as
    `change` has it, in a new file; none of a table that has no condition.

    Gives the open transaction of the new store and how many rows there are of each table, for
    whoever has something to add. At the end the file is whole, and needs nothing beside it.
    """
    database = SqliteDatabase(target, clock=source.clock, actor=source.actor)
    counts: dict[str, int] = {}
    try:
        open_schema(database)
        with database.transaction() as into:
            with source.reading() as rows_of:
                tables = [table for table in content() if table.name in conditions]
                for nth, table in enumerate(tables):
                    told(table.name, nth, len(tables))
                    counts[table.name] = 0
                    where = f"{table.name} WHERE {conditions[table.name]}"
                    rows = rows_of(where, table.names, table.key)
                    pour(into, table, _changed(table, rows, change, counts))
            yield into, counts
            mark_as_part(into, source.url)
    finally:
        database.close()
    tidy(target)


def _changed(
    table: TableDoc, rows: Iterator[Row], change: Change, counts: dict[str, int]
) -> Iterator[Row]:
    for row in rows:
        counts[table.name] += 1
        yield change(table, row)
