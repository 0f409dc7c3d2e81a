"""The import of one source in an open transaction: reads its tables in batches, each row once.

The table `import_origins` records the object that was created from each row, by tool, source, table
and the row's own key. A row that is recorded there is not imported again: a second import adds new
rows and restores objects that were deleted here.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from corral.adapters.redaction import redact_value
from corral.db.tx import Tx
from corral.domain.imports import origins
from corral.domain.imports.origins import KnownRow, SourceName, SourceTable
from corral.domain.projects import ops as projects
from corral.domain.sessions import ops as sessions
from corral.importers.conversion import (
    ConvertedRow,
    compute_digest,
    convert_row,
    find_parents,
    redact_rows,
)
from corral.importers.file_copies import FileCopier
from corral.importers.imported_ids import ImportedIds
from corral.importers.mappings.target_rows import to_json_text
from corral.importers.mappings.types import NOT_IMPORTED, SourceFile, TableMapping, ToolMapping
from corral.importers.report import ImportReport, ProblemLog, TableReport
from corral.importers.source.database import RawRow, SourceDatabase
from corral.importers.source.row import RowContext, SourceRow, to_json_value
from corral.importers.target.restoration import Restoration
from corral.importers.target.row_writer import RowWriter
from corral.importers.target.sessions import order_turns
from corral.kernel.errors import CorralError


class OpenSource(NamedTuple):
    """An open database of the source."""

    database: SourceDatabase
    file: SourceFile

    @property
    def owner_key(self) -> str:
        return self.file.owner_key

    @property
    def folder(self) -> Path:
        return self.database.path.absolute().parent

    def qualify_key(self, key: str) -> str:
        """Return the key of a row, unique among all files of the source."""
        return f"{self.owner_key}/{key}" if self.owner_key else key


class _SessionProgress(NamedTuple):
    """A session that existed before the import, and the number of its turns then."""

    id: str
    turns: int


class ImportJob:
    """One import, in an open transaction: `import_file` for each file, then `finish`."""

    def __init__(
        self,
        tx: Tx,
        tool: ToolMapping,
        source: str,
        *,
        on_rows: Callable[[int], object],
        files: FileCopier | None = None,
    ) -> None:
        self._tx = tx
        self._tool = tool
        self._source = SourceName(tool.name, source)
        self._on_rows = on_rows
        self._files = files
        self._ids = ImportedIds(tx, self._source)
        self._problems = ProblemLog()
        self._tables: dict[str, TableReport] = {}
        self._report = ImportReport(tool.name, source)
        self._source_project_id: str | None = None
        self._aliases: set[str] = set()
        self._owner_key = ""
        self._session: _SessionProgress | None = None
        self._memo: dict[tuple[str, str], Any] = {}
        self._restoration = Restoration(tx)
        self._writer = RowWriter(tx, self._ids, self._problems, self._restoration)
        # Two concurrent imports of one source would both treat the same rows as new.
        tx.serialize(f"import:{tool.name}:{source}")

    def import_file(self, source: OpenSource) -> None:
        """Import all tables of a database of the source."""
        file, database = source.file, source.database
        if source.owner_key != self._owner_key:
            self._end_session()
            self._owner_key = source.owner_key
            self._memo.clear()
        if file.owner is not None:
            self._ensure_owner(source, file.owner)
            self._begin_session(source)
        known = {*(table.name for table in file.tables), *file.seen_tables}
        for table in file.tables:
            if table.name in database.tables:
                self._report_columns(source, table)
                self._import_table(source, table)
            elif not source.owner_key:
                self._report.missing.append(table.name)
        if file.is_partial:
            return
        for name in sorted({*database.tables} - known):
            self._report_unknown(database.get_original_name(name))
            self._import_table(source, TableMapping(name, (), {}, reason="the table is unknown"))
        self._report.left_out += database.derived

    def skip_file(self, path: Path, error: CorralError) -> None:
        """Report a file that could not be read completely."""
        self._report.skipped.append(f"{path}: {error.message}")

    def finish(self) -> ImportReport:
        """Finish the import and return its report."""
        self._end_session()
        report = self._report
        report.tables = list(self._tables.values())
        report.problems = self._problems.list_problems()
        for table in report.tables:
            if table.table in self._aliases:
                continue  # the same rows are counted under the name of the table
            report.rows += table.rows
            report.new += table.new
            report.known += table.known
            report.changed += table.changed
            report.restored += table.restored
            report.kept += table.kept
        if report.new or report.changed or report.restored:
            data = {"source": report.source, "new": report.new, "changed": report.changed}
            data |= {"restored": report.restored} if report.restored else {}
            self._tx.emit("import", "import", self._tool.name, data=data)
        return report

    # -- sources with one file per session --------------------------------------------------------

    def _ensure_owner(self, source: OpenSource, owner: TableMapping) -> None:
        """Import the owner of a file from its known values, if no other file has it."""
        values = source.file.owner_values
        key = values[owner.key[0]]
        known = self._find_imported(owner.origin, [key])
        if key not in known or self._restoration.find_missing(known):
            raw = RawRow(key, False, {name: text.encode() for name, text in values.items()})
            main = OpenSource(source.database, source.file.without_owner())
            self._import_batch(main, owner, [raw], self._get_report(owner))

    def _begin_session(self, source: OpenSource) -> None:
        """Remember how many turns the session of a file has before the import."""
        if self._session is not None:
            return
        known = self._find_imported("sessions", [source.owner_key]).get(source.owner_key)
        if known is not None and known.id is not None:
            turns = sessions.get(self._tx, known.id).turns
            self._session = _SessionProgress(known.id, turns)

    def _end_session(self) -> None:
        """Merge the turns from the two files of a session by time."""
        if self._session is not None:
            order_turns(self._tx, self._session.id, after=self._session.turns)
            self._session = None

    # -- tables and their rows --------------------------------------------------------------------

    def _import_table(self, source: OpenSource, table: TableMapping) -> None:
        report = self._get_report(table)
        if table.alias:
            self._aliases.add(table.alias)
        for batch in source.database.read_batches(table.name, table.key):
            self._import_batch(source, table, batch, report)
            if not table.alias:
                self._on_rows(len(batch))

    def _import_batch(
        self,
        source: OpenSource,
        table: TableMapping,
        batch: Sequence[RawRow],
        report: TableReport,
    ) -> None:
        """Store the new and deleted rows of a batch, and record the changed ones."""
        raw_rows = {source.qualify_key(raw.key): raw for raw in batch}
        known = self._find_imported(table.origin, [*raw_rows])
        report.rows += len(batch)
        report.known += len(known)
        deleted = self._find_deleted(source, table, raw_rows, known)
        new: dict[str, RawRow] = {}
        for key, raw in raw_rows.items():
            if key not in known or key in deleted:
                new[key] = raw
            elif known[key].digest != (digest := compute_digest(raw)):
                self._record_change(table.origin, key, raw, digest)
                report.changed += 1
        if not new:
            return
        converted = self._convert_rows(source, table, new, known)
        source_table = SourceTable(*self._source, table.origin)
        if deleted:
            origins.delete_origins(self._tx, source_table, sorted(deleted))
        report.restored += sum(entry.restored for entry in converted)
        report.new += sum(not entry.restored for entry in converted)
        self._report.secrets += redact_rows(converted)
        self._writer.store(source_table, table, converted, report)

    def _find_deleted(
        self,
        source: OpenSource,
        table: TableMapping,
        raw_rows: Mapping[str, RawRow],
        known: Mapping[str, KnownRow],
    ) -> set[str]:
        """Return the keys of known rows to import again, because their object was deleted."""
        deleted = self._restoration.find_missing(known)
        if not self._restoration.restored:
            return deleted
        candidates = {key: raw_rows[key] for key in known if key not in deleted}
        rows = self._read_rows(source, table, candidates, {})
        for key, row in rows.items():
            parents = (self._ids.get(parent, "") for parent in find_parents(table, row))
            if self._restoration.is_restored_with(known[key], parents):
                deleted.add(key)
        return deleted

    def _convert_rows(
        self,
        source: OpenSource,
        table: TableMapping,
        raw_rows: Mapping[str, RawRow],
        known: Mapping[str, KnownRow],
    ) -> list[ConvertedRow]:
        """Convert new rows; those of `known` are restored under their old ids."""
        rows = self._read_rows(source, table, raw_rows, known)
        converted = [
            ConvertedRow(
                key,
                row,
                convert_row(table, row, raw_rows[key].is_duplicate),
                compute_digest(raw_rows[key]),
                key in known,
            )
            for key, row in rows.items()
        ]
        if table.alias:
            return [entry for entry in converted if entry.targets or entry.row.problems]
        return converted

    def _read_rows(
        self,
        source: OpenSource,
        table: TableMapping,
        raw_rows: Mapping[str, RawRow],
        known: Mapping[str, KnownRow],
    ) -> dict[str, SourceRow]:
        """Return rows for a mapping to read, after loading the ids that they refer to."""
        context = RowContext(
            self._tx.now,
            str(source.folder),
            self._memo,
            owner_key=source.owner_key,
            owner_values=source.file.owner_values,
            source_project=lambda: self._get_source_project(source),
            files=self._files,
        )
        rows = {
            key: SourceRow(
                raw,
                table.refs,
                self._ids,
                context,
                known_id=known[key].id if key in known else None,
            )
            for key, raw in raw_rows.items()
        }
        self._ids.load(parent for row in rows.values() for parent in find_parents(table, row))
        return rows

    def _get_source_project(self, source: OpenSource) -> str:
        if self._source_project_id is None:
            project = projects.register(self._tx, source.folder, must_exist=False)
            self._source_project_id = project.id
        return self._source_project_id

    def _find_imported(self, table: str, keys: Sequence[str]) -> dict[str, KnownRow]:
        return origins.find_imported(self._tx, SourceTable(*self._source, table), keys)

    def _record_change(self, table: str, key: str, raw: RawRow, digest: str) -> None:
        """Keep the new values of a changed row; its object is not changed."""
        values = {
            name: to_json_value(value) for name, value in raw.values.items() if value is not None
        }
        for mapping in self._tool.tables:
            if mapping.origin == table:
                hidden = {
                    name for name, target in mapping.columns.items() if target == NOT_IMPORTED
                }
                values = {name: value for name, value in values.items() if name not in hidden}
        source_table = SourceTable(*self._source, table)
        unmapped = to_json_text(redact_value(values))
        origins.update_origin(self._tx, source_table, key, unmapped=unmapped, digest=digest)
        message = "was changed since it was imported; its object is not changed, the row is kept"
        self._problems.add(table, message, key)

    # -- the report -------------------------------------------------------------------------------

    def _get_report(self, table: TableMapping) -> TableReport:
        return self._tables.setdefault(table.origin, TableReport(table.origin, created={}))

    def _report_columns(self, source: OpenSource, table: TableMapping) -> None:
        columns = {column.lower() for column in source.database.tables[table.name]}
        for column in table.columns:
            name = f"{table.name}.{column}"
            if column not in columns and name not in self._report.missing:
                self._report.missing.append(name)
        if not table.alias:
            for column in sorted(columns - {*table.columns}):
                self._report_unknown(f"{table.name}.{column}")

    def _report_unknown(self, name: str) -> None:
        if name not in self._report.unknown:
            self._report.unknown.append(name)
