"""The report of an import, table by table."""

from collections import Counter

import msgspec

from corral.services.store.model import PruneResult


class TableReport(msgspec.Struct):
    """What was imported from one table."""

    table: str
    rows: int = 0
    new: int = 0
    """Rows that were not imported before."""
    known: int = 0
    """Rows that an earlier import stored."""
    changed: int = 0
    """Known rows that have changed in the source. Their objects are not changed; the new values are
    kept in `import_origins`."""
    restored: int = 0
    """Known rows whose object was deleted here and was restored."""
    kept: int = 0
    """New rows that became no object and are kept as they were."""
    created: dict[str, int] = {}
    """Number of new rows by Corral's tables."""


class ImportProblem(msgspec.Struct):
    """A problem of one or more rows. Their original values are kept."""

    table: str
    what: str
    rows: int
    example: str
    """The key of the first such row."""


class ImportReport(msgspec.Struct):
    """The report of a complete import."""

    tool: str
    source: str
    rows: int = 0
    new: int = 0
    known: int = 0
    changed: int = 0
    restored: int = 0
    kept: int = 0
    secrets: int = 0
    """Rows in which a probable secret was redacted."""
    tables: list[TableReport] = []
    problems: list[ImportProblem] = []
    missing: list[str] = []
    """Known tables and columns that the source does not have."""
    unknown: list[str] = []
    """Tables and columns without a mapping; their content is kept as it was."""
    left_out: list[str] = []
    """Views, virtual tables and generated columns, which the tool derives from other data."""
    skipped: list[str] = []
    """Files that could not be read completely, with the reason."""
    retention: list[PruneResult] = []
    """Imported rows, of this and earlier imports, that retention applies to: they are exempt while
    the setting `imports.apply_retention` is off, and deleted while it is on."""
    exempt: bool = True
    """Whether `imports.apply_retention` is off."""


class ProblemLog:
    """Counts problems by table and message."""

    def __init__(self) -> None:
        self._rows: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def add(self, table: str, message: str, key: str) -> None:
        self._rows[table, message] += 1
        self._examples.setdefault((table, message), key)

    def list_problems(self) -> list[ImportProblem]:
        return [
            ImportProblem(table, message, rows, self._examples[table, message])
            for (table, message), rows in self._rows.items()
        ]
