"""Detection of differences between the schema of a store and its migrations.

Another program may have changed the schema, and a backup may come from an untrusted source: a
trigger in it would run with every later write to the store.
"""

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

import apsw

from corral.db.database import Database
from corral.db.migrations import build_schema_statements
from corral.db.statement import Row, Statement
from corral.db.store_move_record import read_store_move
from corral.db.types import SchemaObject, SchemaObjects
from corral.db.write_guard import MOVED_OFFSET, is_write_guard


class SchemaDifference(NamedTuple):
    """One difference between the actual and the expected schema."""

    what: str
    beside: bool
    """Whether it does not touch Corral's own tables, and so has no effect on them."""
    unexpected: SchemaObject | None = None
    """The object that should not exist."""


def compare_schemas(actual: SchemaObjects, expected: SchemaObjects) -> list[SchemaDifference]:
    """List the objects that are unexpected, missing or changed."""
    own_tables = {item.table for item in expected}
    unexpected = [item for item in actual if item not in expected]
    return [
        *(
            SchemaDifference(
                f"{item} does not belong to Corral", item.table not in own_tables, item
            )
            for item in unexpected
        ),
        *(SchemaDifference(f"{item} is missing", False) for item in expected if item not in actual),
        *(
            SchemaDifference(f"{item} was changed", False)
            for item in expected
            if item in actual and actual[item] != expected[item]
        ),
    ]


def find_drift(database: Database) -> list[SchemaDifference]:
    """Compare the schema of a store with its migrations; the write guard of a move is allowed."""
    version = database.schema_version() % MOVED_OFFSET
    if database.engine == "sqlite":
        actual = _convert_rows(database.read(lambda tx: tx.run(_READ_SCHEMA)))
        expected = build_expected_schema(version)
    else:
        from corral.db import postgres_maintenance

        actual = database.read(
            lambda tx: postgres_maintenance.schema_from_rows(
                tx.run(postgres_maintenance.READ_SCHEMA)
            )
        )
        expected = postgres_maintenance.build_expected_schema(database, version)
    differences = compare_schemas(remove_write_guard(actual), expected)
    if differences or actual.keys() == expected.keys():
        return differences
    # Only a write guard is left; it belongs there while the store is being moved.
    store_move = read_store_move(database)
    is_leaving = store_move is not None and store_move.phase == "leaving"
    return [] if is_leaving else compare_schemas(actual, expected)


def remove_write_guard(schema: SchemaObjects) -> SchemaObjects:
    """Return the schema without the triggers of a write guard."""
    return {item: text for item, text in schema.items() if not is_write_guard(item, text)}


def describe_differences(differences: list[SchemaDifference]) -> str:
    """Describe the first differences in one phrase."""
    first = ", ".join(difference.what for difference in differences[:3])
    return first + (f" and {len(differences) - 3} more" if len(differences) > 3 else "")


# -- SQLite, which stores the CREATE statement of each object -------------------------------------

_READ_SCHEMA = Statement("SELECT type, name, tbl_name, sql FROM sqlite_schema")
# String literals, or comments and the characters that SQLite treats as white space.
_LITERAL_OR_SPACE = re.compile(r"'(?:[^']|'')*'|(?:--[^\n]*\n|[ \t\n\f\r])+")


def read_schema(connection: apsw.Connection) -> SchemaObjects:
    """Read the schema of a file. Only `sqlite_schema` is read, so no code in it runs."""
    return _convert_rows(connection.execute(_READ_SCHEMA.text))


def _convert_rows(rows: Iterable[Row]) -> SchemaObjects:
    return {
        SchemaObject(str(kind), str(name), str(table)): _normalize(str(sql or ""))
        for kind, name, table, sql in rows
    }


@lru_cache(maxsize=1_024)  # stores of one version have the same statements
def _normalize(sql: str) -> str:
    """Replace comments and white space by one space; string literals stay unchanged."""
    return _LITERAL_OR_SPACE.sub(lambda match: match[0] if match[0].startswith("'") else " ", sql)


def drop_statements(differences: list[SchemaDifference]) -> str | None:
    """Return the statements that drop all unexpected objects; None if that would not be enough."""
    items = [item.unexpected for item in differences if item.unexpected is not None]
    if len(items) < len(differences):
        return None
    tables = {item.name for item in items if item.kind == "table"}
    # Indexes and triggers are dropped with their table. IF EXISTS: so are the shadow tables of a
    # virtual table, which sort after it.
    dropped = sorted(item for item in items if item.kind == "table" or item.table not in tables)
    quoted = (
        f'{item.kind.upper()} IF EXISTS "{item.name.replace(chr(34), chr(34) * 2)}"'
        for item in dropped
    )
    return "; ".join(f"DROP {target}" for target in quoted)


@cache
def build_expected_schema(version: int) -> SchemaObjects:
    """Return the schema of a new store of a version."""
    connection = apsw.Connection(":memory:")
    try:
        for statement in build_schema_statements(version, "sqlite"):
            connection.execute(statement)
        return read_schema(connection)
    finally:
        connection.close()
