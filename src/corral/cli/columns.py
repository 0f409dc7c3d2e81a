"""The columns of tables and the fields of records that commands print."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple


class Column(NamedTuple):
    """A column of a table, and what a terminal that is too narrow for the table does with it."""

    title: str
    cell: Callable[[Any], object]
    """Returns the cell of a record."""
    shrink: Literal["no", "truncate", "wrap"] = "no"
    """How the column becomes narrower. Ids and states never do."""
    drop: int = 0
    """Columns are omitted by this number, the highest first; then those with 0, from the right.

    Empty columns are omitted before all others, the first column never.
    """
    replaces: str = ""
    """The title of another column: while that one is empty, this one is omitted with the last."""
    is_state: bool = False
    """Whether the cells are states, which have colours."""


Columns = Sequence[Column]
Field = tuple[str, Callable[[Any], object]]
"""The title of a field, and a function that returns its value for a record."""
Fields = Sequence[Field]


def to_fields(columns: Columns) -> Fields:
    """Return the columns of a table as the fields of one record."""
    return [(column.title, column.cell) for column in columns]
