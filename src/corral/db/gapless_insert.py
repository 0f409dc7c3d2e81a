"""Inserts of rows that are numbered without gaps by a counter in their parent row.

The parent is updated first: that checks that it accepts another row, increments its counter and, on
PostgreSQL, serializes concurrent writers by its row lock. On PostgreSQL the update and the insert
are one statement (a data-modifying WITH), as in `db/transitions.py`.
"""

import re
from collections.abc import Mapping
from typing import Any

from corral.db.statement import Row, Statement
from corral.db.tx import Tx

_PARENT_COLUMN = re.compile(r"\bfirst\.(\w+)")


class GaplessInsert:
    """An UPDATE of the parent followed by an INSERT of the child.

    - `parent`: the UPDATE of the parent, without its RETURNING clause.
    - `values`: the columns of the child and their SQL; `first.name` in it is a column that the
      UPDATE returned.
    - `columns`: the columns of the child to return; the caller knows the others.
    """

    def __init__(self, *, parent: str, table: str, values: Mapping[str, str], columns: str) -> None:
        names, expressions = ", ".join(values), ", ".join(values.values())
        self._parent_columns = tuple(dict.fromkeys(_PARENT_COLUMN.findall(expressions)))
        update = f"{parent} RETURNING {', '.join(self._parent_columns)}"
        bound = _PARENT_COLUMN.sub(r":first_\1", expressions)
        insert = f"INSERT INTO {table} ({names})"
        self.update = Statement(update)
        self.insert = Statement(f"{insert} VALUES ({bound}) RETURNING {columns}")
        self.combined = Statement(
            f"WITH first AS ({update}) {insert} SELECT {expressions} FROM first RETURNING {columns}"
        )

    def append(self, tx: Tx, params: dict[str, Any]) -> Row | None:
        """Insert a row and return its `columns`; None if the parent is missing or accepts none."""
        if tx.engine == "postgres":
            rows = tx.execute(self.combined, params)
            return rows[0] if rows else None
        tx.begin()
        rows = tx.execute(self.update, params)
        if not rows:
            return None
        for name, value in zip(self._parent_columns, rows[0], strict=True):
            params["first_" + name] = value
        return tx.execute(self.insert, params)[0]
