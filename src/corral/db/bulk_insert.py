"""Many rows at a time into any table, their columns known from the schema.

For what comes from elsewhere: rows are given as they are to stand, and of one table they may have
different columns. Rows that have a state come in through `db/transitions.py`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from corral.db.schema import tables
from corral.db.statement import Row, Statement
from corral.db.tx import Tx

_CASTS = {"integer": "CAST({} AS {{integer}})", "json": "CAST({} AS {{json}})"}


class Placed(NamedTuple):
    """The result of importing a row."""

    id: str | None
    """The id of the row here; None: another row has its unique key, and nothing was written."""
    why: str = ""
    """Why not all of its values were stored: the row existed already, or was changed to fit."""


def put_many(
    tx: Tx, table: str, rows: Sequence[Mapping[str, Any]], *, unless: str = "", returned: str = ""
) -> list[Row]:
    """Insert rows; with `unless`, an ON CONFLICT target, those that are there stay as they are."""
    if not rows:
        return []
    columns = sorted(set().union(*rows))
    given = msgspec.json.encode(rows).decode()
    return tx.run(insertion(table, columns, returned, unless), rows=given)


def insertion(table: str, columns: Sequence[str], returned: str, unless: str = "") -> Statement:
    """The INSERT of rows that are given as one JSON array of objects.

    `unless` is an ON CONFLICT target, or "anything": rows whose place is taken are left out.
    """
    return _insertion(table, tuple(columns), returned, unless)


@cache
def _insertion(table: str, columns: tuple[str, ...], returned: str, unless: str) -> Statement:
    kinds = _kinds()[table]
    values = [_CASTS.get(kinds[name], "{}").format(f"each.value ->> '{name}'") for name in columns]
    # Without a WHERE, SQLite would take the ON of the conflict for that of a join.
    target = "" if unless == "anything" else f" {unless}"
    conflict = f" WHERE TRUE ON CONFLICT{target} DO NOTHING" if unless else ""
    answer = f" RETURNING {returned}" if returned else ""
    return Statement(
        f"INSERT INTO {table} ({', '.join(columns)})"
        f" SELECT {', '.join(values)} FROM {{each_of_rows}}{conflict}{answer}"
    )


@cache
def _kinds() -> dict[str, dict[str, str]]:
    """The type of every column of every table."""
    return {
        table.name: {column.name: column.type.partition(" ")[0] for column in table.columns}
        for table in tables()
    }
