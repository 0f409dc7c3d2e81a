"""The import of a tool's databases: find the files, check them, store their rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from corral.db.database import Database
from corral.domain.runs import ops as runs
from corral.domain.settings import ops as settings
from corral.importers.file_copies import FileCopier, get_copies_folder
from corral.importers.import_job import ImportJob, OpenSource
from corral.importers.mappings.registry import check_signature, find_tool
from corral.importers.mappings.types import SourceFile, ToolMapping
from corral.importers.report import ImportReport
from corral.importers.source.database import SourceDatabase, open_source
from corral.importers.source.private_copy import Unreadable
from corral.kernel.errors import CorralError, NotFound, Refused
from corral.kernel.validation import check_text
from corral.services.store.prune import count_imported

OnRows = Callable[[int, int], object]
MAX_SOURCE = 1_000
MAX_ROWS_BESIDE_RUNS = 100_000
"""Rows whose import ends, with a margin, within the time that other writers wait."""


def import_database(
    database: Database, name: str, path: Path, source: str | None, on_rows: OnRows | None
) -> ImportReport:
    """Import the database of a tool in one transaction; see `Imports.import_database`."""
    tool = find_tool(name)
    location = path.expanduser().absolute()
    main = tool.find_database(location) if tool.find_database and location.is_dir() else location
    files = list(_find_files(tool, main))
    source_name = check_text(source or str(main.resolve()), "The name", max_bytes=MAX_SOURCE)
    max_bytes = int(database.read(lambda tx: settings.get_value(tx, "chat.max_file_bytes")))
    copier = FileCopier(get_copies_folder(database), max_bytes)
    skipped: list[tuple[Path, CorralError]] = []
    with ExitStack() as open_files:
        first, others = _open_first(open_files, tool, files, skipped)
        counter = _ProgressCounter(on_rows, _count_rows(first.database))
        _check_duration(database, counter.total)
        with database.transaction() as tx:
            job = ImportJob(tx, tool, source_name, on_rows=counter, files=copier)
            job.import_file(first)
            for file in others:
                _import_file(job, tool, file, counter)
            for path, error in skipped:
                job.skip_file(path, error)
            report = job.finish()
    report.retention = count_imported(database)
    report.exempt = not database.read(lambda tx: settings.get_value(tx, "imports.apply_retention"))
    return report


def _open_first(
    open_files: ExitStack,
    tool: ToolMapping,
    files: Sequence[SourceFile],
    skipped: list[tuple[Path, CorralError]],
) -> tuple[OpenSource, Sequence[SourceFile]]:
    """Open the first readable database; returns it and the files after it.

    The main database of a tool must be readable. A damaged session file is skipped, unless it is
    the last one.
    """
    for position, file in enumerate(files):
        try:
            source = open_files.enter_context(open_source(file.path))
            check_signature(source, tool, file.signature)
        except CorralError as error:
            if not file.owner_key or position == len(files) - 1:
                raise
            skipped.append((file.path, error))
        else:
            return OpenSource(source, file), files[position + 1 :]
    raise AssertionError("a source has at least one database")


def _import_file(
    job: ImportJob, tool: ToolMapping, file: SourceFile, counter: "_ProgressCounter"
) -> None:
    """Import a further database of the source.

    An empty or damaged file is reported; the rows before the damage are imported.
    """
    try:
        with open_source(file.path) as source:
            try:
                check_signature(source, tool, file.signature)
            except CorralError as error:
                job.skip_file(file.path, error)
                return
            counter.total += 0 if file.is_partial else _count_rows(source)
            job.import_file(OpenSource(source, file))
    except (Unreadable, NotFound, Refused) as error:
        job.skip_file(file.path, error)


def _check_duration(database: Database, rows: int) -> None:
    """Refuse a long import into SQLite while runs are live.

    SQLite has one writer at a time. The supervisor of a run would time out while it waits, and its
    lease would expire.
    """
    if rows <= MAX_ROWS_BESIDE_RUNS or database.engine != "sqlite":
        return
    if live := database.read(lambda tx: runs.list_runs(tx, live=True, limit=1)).items:
        raise Refused(
            f"Importing {rows:,} rows would block the store for too long while runs are live, for "
            f"example {live[0].id}. Import them when no run is live.",
            rows=rows,
        )


def _find_files(tool: ToolMapping, main: Path) -> Iterator[SourceFile]:
    if tool.find_files is not None:
        yield from tool.find_files(main)
    else:
        yield SourceFile(main, tool.signature, tool.tables)


def _count_rows(source: SourceDatabase) -> int:
    return sum(source.count_rows(table) for table in source.tables)


class _ProgressCounter:
    """Reports the number of rows done and their total."""

    def __init__(self, on_rows: OnRows | None, total: int) -> None:
        self._on_rows = on_rows
        self.total = total
        self._done = 0

    def __call__(self, rows: int) -> None:
        self._done += rows
        if self._on_rows is not None:
            self._on_rows(self._done, self.total)
