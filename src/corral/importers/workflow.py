"""An import from end to end: find the databases, look whose they are, take them in."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from corral.db.database import Database
from corral.domain.runs import ops as runs
from corral.domain.settings import ops as settings
from corral.importers.attached_files import FileCopies, folder_of
from corral.importers.batch import Part, Taking
from corral.importers.mapping import Member, Tool
from corral.importers.report import Taken
from corral.importers.source.copy import Unreadable
from corral.importers.source.database import Foreign, opened
from corral.importers.tools import check_is_of, tool_of
from corral.kernel.errors import CorralError, NotFound, Refused
from corral.kernel.text import clean_text
from corral.services.store.prune import count_imported

OnRows = Callable[[int, int], object]
MAX_SOURCE = 1_000
MOST_BESIDE_RUNS = 100_000
"""Rows that come in within the time for which a writer waits, with room to spare."""


def bring(
    database: Database, name: str, path: Path, source: str | None, on_rows: OnRows | None
) -> Taken:
    """Bring a tool's database in; the source is only read, and copied before that."""
    tool = tool_of(name)
    given = path.expanduser().absolute()
    main = tool.around(given) if tool.around and given.is_dir() else given
    members = list(_members(tool, main))
    called = clean_text(source or str(main.resolve()), "The name", most=MAX_SOURCE)
    most = int(database.read(lambda tx: settings.value(tx, "gateway.max_file_bytes")))
    files = FileCopies(folder_of(database), most)
    skipped: list[tuple[Path, CorralError]] = []
    with ExitStack() as open_files:
        first, *others = _readable(open_files, tool, members, skipped)
        counter = _Counter(on_rows, _rows_of(first.foreign))
        _check_nobody_waits_too_long(database, counter.total)
        with database.transaction() as tx:
            taking = Taking(tx, tool, called, on_rows=counter, files=files)
            taking.take(first)
            for member in others:
                _take_member(taking, tool, member, counter)
            for path, error in skipped:
                taking.skip(path, error)
            report = taking.report()
    report.retention = count_imported(database)
    report.exempt = not database.read(lambda tx: settings.value(tx, "imports.retention"))
    return report


def _readable(
    open_files: ExitStack,
    tool: Tool,
    members: Sequence[Member],
    skipped: list[tuple[Path, CorralError]],
) -> tuple[Any, ...]:
    """Open the first readable database; returns it and the members after it.

    A tool's main database must be readable. A damaged session file is skipped, unless it is the
    last one.
    """
    for place, member in enumerate(members):
        try:
            foreign = open_files.enter_context(opened(member.path))
            check_is_of(foreign, tool, member.signature)
        except CorralError as error:
            if not member.inside or place == len(members) - 1:
                raise
            skipped.append((member.path, error))
        else:
            return (Part(foreign, member), *members[place + 1 :])
    raise AssertionError("a source has at least one database")


def _take_member(taking: Taking, tool: Tool, member: Member, counter: "_Counter") -> None:
    """Import a further database of the source. An empty or damaged one is reported; the rows before
    the damage are imported."""
    try:
        with opened(member.path) as foreign:
            try:
                check_is_of(foreign, tool, member.signature)
            except CorralError as error:
                taking.skip(member.path, error)
                return
            counter.total += 0 if member.partly else _rows_of(foreign)
            taking.take(Part(foreign, member))
    except (Unreadable, NotFound, Refused) as error:
        taking.skip(member.path, error)


def _check_nobody_waits_too_long(database: Database, rows: int) -> None:
    """A store in one file has one writer at a time, and whoever waits for it gives up in the end: a
    keeper must not, or its run would be taken for lost."""
    if rows <= MOST_BESIDE_RUNS or database.engine != "sqlite":
        return
    if going := database.read(lambda tx: runs.list_runs(tx, live=True, limit=1)).items:
        raise Refused(
            f"{rows:,} rows take the store for too long while runs are going, as {going[0].id}; "
            "import them when nothing runs.",
            rows=rows,
        )


def _members(tool: Tool, main: Path) -> Iterator[Member]:
    if tool.members is not None:
        yield from tool.members(main)
    else:
        yield Member(main, tool.signature, tool.tables)


def _rows_of(foreign: Foreign) -> int:
    return sum(foreign.count(table) for table in foreign.tables)


class _Counter:
    """Tells how many of how many rows were looked at."""

    def __init__(self, on_rows: OnRows | None, total: int) -> None:
        self._on_rows = on_rows
        self.total = total
        self._done = 0

    def __call__(self, rows: int) -> None:
        self._done += rows
        if self._on_rows is not None:
            self._on_rows(self._done, self.total)
