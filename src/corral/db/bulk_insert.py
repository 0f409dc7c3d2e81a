"""Bulk inserts into any table, with column types taken from the schema.

For data from outside: imported rows, backups and moved stores. Rows are inserted as given, without
events. `db/bulk_transitions.py` creates and imports rows with a state, with their events.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from corral.db.schema import TableDoc, tables
from corral.db.statement import Row, Statement, encode_rows
from corral.db.tx import Tx
from corral.db.write_guard import list_content_tables

COPY_BATCH = 1_000
"""Rows per statement of `copy_rows`."""

_CASTS = {"integer": "CAST({} AS {{integer}})", "json": "CAST({} AS {{json}})"}


class ImportedRow(NamedTuple):
    """The result of importing a row."""

    id: str | None
    """The id of the row here; None: another row has its unique key, and nothing was written."""
    why: str = ""
    """Why not all of its values were stored: the row existed already, or was changed to fit."""


def insert_many(
    tx: Tx,
    table: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    on_conflict: str = "",
    returning: str = "",
) -> list[Row]:
    """Insert rows, which may have different columns; see `insert_statement` for the options."""
    if not rows:
        return []
    columns = sorted(set().union(*rows))
    statement = insert_statement(table, columns, returning, on_conflict)
    return tx.run(statement, rows=encode_rows(rows))


def insert_statement(
    table: str, columns: Sequence[str], returning: str, on_conflict: str = ""
) -> Statement:
    """Return the INSERT of rows that are passed as one JSON array of objects in `:rows`.

    `on_conflict` is an ON CONFLICT target, or "anything" for any unique key: rows that conflict are
    skipped. Without it, a conflict is an error.
    """
    return _insert_statement(table, tuple(columns), returning, on_conflict)


@cache
def _insert_statement(
    table: str, columns: tuple[str, ...], returning: str, on_conflict: str
) -> Statement:
    types = _map_column_types()[table]
    values = [_CASTS.get(types[name], "{}").format(f"each.value ->> '{name}'") for name in columns]
    target = "" if on_conflict == "anything" else f" {on_conflict}"
    # WHERE TRUE: without a WHERE clause, SQLite parses ON CONFLICT as the ON of a join.
    conflict = f" WHERE TRUE ON CONFLICT{target} DO NOTHING" if on_conflict else ""
    returned = f" RETURNING {returning}" if returning else ""
    return Statement(
        f"INSERT INTO {table} ({', '.join(columns)})"
        f" SELECT {', '.join(values)} FROM {{each_of_rows}}{conflict}{returned}"
    )


@cache
def _map_column_types() -> dict[str, dict[str, str]]:
    return {
        table.name: {column.name: column.type.partition(" ")[0] for column in table.columns}
        for table in tables()
    }


def copy_rows(tx: Tx, table: TableDoc, rows: Iterable[Row]) -> None:
    """Insert rows with all columns of the table, unchanged; for copies of whole tables."""
    names = table.names
    values = ", ".join(f":{name}" for name in names)
    insert = Statement(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values})")
    remaining = iter(rows)
    while batch := [dict(zip(names, row, strict=True)) for row in islice(remaining, COPY_BATCH)]:
        tx.execute_batch(insert, batch)


def advance_sequences(tx: Tx) -> None:
    """Make new sequence numbers start after the existing ones.

    SQLite always continues from the largest number. On PostgreSQL a copied row does not advance the
    sequence of its table. A sequence is never lowered: a number must not be used twice.
    """
    if tx.engine == "sqlite":
        return
    for table in list_content_tables():
        if table.is_numbered:
            sequence = f"CAST(pg_get_serial_sequence('{table.name}', 'seq') AS REGCLASS)"
            tx.run(
                Statement(f"""
                    SELECT setval({sequence}, greatest(
                        (SELECT max(seq) FROM {table.name}), pg_sequence_last_value({sequence}), 1
                    ))
                """)
            )
