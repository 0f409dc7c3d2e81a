"""Rows that get their number from a row above them, in one transaction and without gaps.

The row above is updated first: that checks that it takes another row, raises its count and, on
PostgreSQL, lets only one writer through at a time. On PostgreSQL the two are one statement (a
writing WITH), as in `db/transitions.py`.
"""

import re
from collections.abc import Mapping
from typing import Any

from corral.db.statement import Row, Statement
from corral.db.tx import Tx

_FIRST = re.compile(r"\bfirst\.(\w+)")


class Numbered:
    """`first` is the UPDATE of the row above, up to and without its RETURNING.

    `values` are the new row's columns; `first.name` in them is what the UPDATE gave back. Only
    `columns` come back of the new row: the rest its writer knows.
    """

    def __init__(self, *, first: str, table: str, values: Mapping[str, str], columns: str) -> None:
        listed, given = ", ".join(values), ", ".join(values.values())
        self._names = tuple(dict.fromkeys(_FIRST.findall(given)))
        first = f"{first} RETURNING {', '.join(self._names)}"
        found = _FIRST.sub(r":first_\1", given)
        insert = f"INSERT INTO {table} ({listed})"
        self.first = Statement(first)
        self.then = Statement(f"{insert} VALUES ({found}) RETURNING {columns}")
        self.together = Statement(
            f"WITH first AS ({first}) {insert} SELECT {given} FROM first RETURNING {columns}"
        )

    def append(self, tx: Tx, params: dict[str, Any]) -> Row | None:
        """The columns of the new row; None when the row above is not there, or takes none."""
        if tx.engine == "postgres":
            rows = tx.execute(self.together, params)
            return rows[0] if rows else None
        tx.several()
        rows = tx.execute(self.first, params)
        if not rows:
            return None
        for name, value in zip(self._names, rows[0], strict=True):
            params["first_" + name] = value
        return tx.execute(self.then, params)[0]
