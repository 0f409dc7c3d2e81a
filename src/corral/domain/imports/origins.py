"""Origins: which row of another tool's database each imported object was created from.

An import skips the rows that have an origin, so a second import stores only new rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from corral.db.bulk_insert import insert_many
from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.imports import sql
from corral.domain.imports.model import Origin
from corral.kernel.pagination import Page
from corral.kernel.validation import MAX_NAME, check_text


class KnownRow(NamedTuple):
    """A row that was imported before."""

    id: str | None
    digest: str
    record_table: str | None
    """The table of the object that was created; None: only the row itself is stored."""


class SourceTable(NamedTuple):
    """A table of another tool's database."""

    tool: str
    source: str
    source_table: str


class SourceName(NamedTuple):
    """The name under which a database of a tool was imported."""

    tool: str
    source: str


def find_imported(tx: Tx, source_table: SourceTable, keys: Sequence[str]) -> dict[str, KnownRow]:
    """Return the rows among these that were imported before, by key."""
    rows = tx.run(sql.IMPORTED_ROWS, **source_table._asdict(), keys_=encode_rows(keys))
    return {key: KnownRow(id, digest, record_table) for key, id, digest, record_table in rows}


def add_origins(tx: Tx, source_table: SourceTable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store the origins of imported rows."""
    origins = [{**source_table._asdict(), **row, "imported_at": tx.now} for row in rows]
    insert_many(tx, "import_origins", origins)


def update_origin(
    tx: Tx, source_table: SourceTable, key: str, *, unmapped: str, digest: str
) -> None:
    """Store the current content of a row that changed after it was imported."""
    tx.run(
        sql.UPDATE_ORIGIN,
        **source_table._asdict(),
        row_id=key,
        unmapped=unmapped,
        digest=digest,
        now=tx.now,
    )


def delete_origins(tx: Tx, source_table: SourceTable, keys: Sequence[str]) -> None:
    """Delete the origins of rows that are imported again."""
    tx.run(sql.DELETE_ORIGINS, **source_table._asdict(), keys_=encode_rows(keys))


def find_existing(tx: Tx, table: str, column: str, keys: Sequence[str | int]) -> set[Any]:
    """Return the keys of the rows that exist in one of Corral's tables."""
    numbered = bool(keys) and isinstance(keys[0], int)
    rows = tx.run(sql.build_existing(table, column, numbered), keys_=encode_rows(keys))
    return {key for (key,) in rows}


def list_origins(
    tx: Tx,
    *,
    id: str | None = None,
    kept: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Origin]:
    """List the origins of imported rows: all, or those of the object with an id.

    `kept`: only rows from which no object was created.
    """
    if id is not None:
        return Page(tx.all(sql.ORIGINS_OF, id=check_text(id, "The id", max_bytes=MAX_NAME)))
    listing = sql.ORIGINS_WITHOUT_RECORD if kept else sql.ORIGINS
    return listing.page(tx, after=after, limit=limit)


def find_next_source(tx: Tx, after: SourceName) -> SourceName | None:
    """Return the next database that rows were imported from, in the order of names."""
    rows = tx.run(sql.NEXT_SOURCE, **after._asdict())
    return SourceName(*rows[0]) if rows else None


def get_last_change(tx: Tx, source: SourceName) -> int:
    """Return the time at which a row of a database was last imported or found changed."""
    return int(tx.value(sql.LAST_CHANGE_AT, **source._asdict()) or 0)


def iterate_imported(
    tx: Tx, source: SourceName, *, limit: int = 1_000
) -> Iterator[dict[str, KnownRow]]:
    """Yield all rows that were imported from a database, a piece at a time."""
    source_table = row_id = ""
    while rows := tx.run(
        sql.OF_SOURCE,
        **source._asdict(),
        source_table=source_table,
        row_id=row_id,
        limit=limit,
    ):
        source_table, row_id = rows[-1][:2]
        yield {f"{row[0]}:{row[1]}": KnownRow(*row[2:]) for row in rows}


def count_source(tx: Tx, source: SourceName) -> int:
    """Return the number of rows that were imported from a database."""
    return int(tx.value(sql.COUNT_OF_SOURCE, **source._asdict()))


def delete_source(tx: Tx, source: SourceName, *, limit: int) -> int:
    """Delete up to `limit` origins of a database; returns how many there were."""
    return len(tx.run(sql.DELETE_SOURCE, **source._asdict(), limit=limit))
