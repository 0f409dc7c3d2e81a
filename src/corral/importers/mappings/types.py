"""The types of a mapping: how the tables of a tool become rows of Corral's tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from corral.importers.source.row import SourceRow

KEPT = "kept as it was"
"""The target of a column without a place in Corral: `import_origins.unmapped`."""
KEY = "import_origins.row_id"
"""The target of a column that is the key of its row."""
NOT_IMPORTED = "not imported: it may be a secret"
"""The target of a column that is not imported."""
EXISTING = "="
"""Instead of a table: the row refers to an object that exists already."""


class TargetRow(NamedTuple):
    """A row for one of Corral's tables."""

    table: str
    values: dict[str, Any]


Convert = Callable[[SourceRow], Iterable[TargetRow]]


class TableMapping(NamedTuple):
    """The mapping of one table.

    `columns` maps each column to the column of Corral that stores it. `convert` returns the target
    rows of a row, the object itself first; without a target row, the row is kept as it was. `refs`
    maps columns that refer to other rows to their tables, and `links` returns further rows whose
    ids `convert` needs.
    """

    name: str
    key: Sequence[str]
    columns: Mapping[str, str]
    convert: Convert | None = None
    refs: Mapping[str, str] = {}
    links: Callable[[SourceRow], Iterable[tuple[str, str]]] | None = None
    reason: str = ""
    """Why none of its rows is imported."""
    alias: str = ""
    """Its name in `import_origins`, when the table is read a second time for one column."""

    @property
    def origin(self) -> str:
        return self.alias or self.name


class SourceFile(NamedTuple):
    """A database file of a source: its required tables, and their mappings."""

    path: Path
    signature: Mapping[str, Sequence[str]]
    tables: Sequence[TableMapping]
    owner_key: str = ""
    """The key of the row that the file belongs to, such as a session."""
    owner: "TableMapping | None" = None
    """The mapping of the owner, which is created if no other file has it."""
    owner_values: Mapping[str, str] = {}
    """The known values of the owner."""
    is_partial: bool = False
    """Whether the file is opened a second time for its other tables."""
    seen_tables: Sequence[str] = ()
    """Tables that were imported when the file was opened before."""

    def without_owner(self) -> "SourceFile":
        """Return the file with the same tables, as one that belongs to no row."""
        return SourceFile(self.path, self.signature, self.tables)


class ToolMapping(NamedTuple):
    """The mapping of a tool."""

    name: str
    description: str
    signature: Mapping[str, Sequence[str]]
    """Tables with columns that identify the tool."""
    tables: Sequence[TableMapping]
    find_database: Callable[[Path], Path] | None = None
    """Returns the database in a folder."""
    find_files: Callable[[Path], Iterator[SourceFile]] | None = None
    """Yields all database files of a source with several, the main one first."""
