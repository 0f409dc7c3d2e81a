"""What an import of another tool's database did, table by table."""

from collections import Counter

import msgspec

from corral.api.store import Pruned


class TableTaken(msgspec.Struct):
    """What became of one table."""

    table: str
    rows: int = 0
    new: int = 0
    """Rows that were not known."""
    known: int = 0
    """Rows that an earlier import brought in."""
    changed: int = 0
    """Of those, rows that are other than they were: kept beside, as they are there now."""
    restored: int = 0
    """Known rows whose result was deleted here and was restored."""
    kept: int = 0
    """New rows that became nothing here and are kept as they were."""
    became: dict[str, int] = {}
    """How many rows of which of Corral's tables."""


class Trouble(msgspec.Struct):
    """Something that was not as it should be; the rows are kept, and what they were."""

    table: str
    what: str
    rows: int
    example: str
    """The key of the first such row."""


class Taken(msgspec.Struct):
    """The whole import."""

    tool: str
    source: str
    rows: int = 0
    new: int = 0
    known: int = 0
    changed: int = 0
    restored: int = 0
    kept: int = 0
    secrets: int = 0
    """Rows out of which something was taken that looks like a secret."""
    tables: list[TableTaken] = []
    troubles: list[Trouble] = []
    missing: list[str] = []
    """Tables and columns that the tool has today and this source has not."""
    unknown: list[str] = []
    """Tables and columns that nobody here knows; their content is kept as it was."""
    left_out: list[str] = []
    """Tables, views and columns that the tool derives from its others, as an index of words."""
    skipped: list[str] = []
    """Files of the source that could not be read, or not to their end, and why."""
    retention: list[Pruned] = []
    """Imported rows, of this and earlier imports, that retention applies to: they are exempt while
    the setting `imports.retention` is off, and deleted while it is on."""
    exempt: bool = True
    """Whether `imports.retention` is off."""


class Notes:
    """Troubles as they are met, counted."""

    def __init__(self) -> None:
        self._rows: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def add(self, table: str, what: str, key: str) -> None:
        self._rows[table, what] += 1
        self._examples.setdefault((table, what), key)

    def all(self) -> list[Trouble]:
        return [
            Trouble(table, what, rows, self._examples[table, what])
            for (table, what), rows in self._rows.items()
        ]
