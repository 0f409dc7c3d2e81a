"""The import of one source: one transaction, in batches, each row once.

The table `import_origins` records the object that was created from each row, by tool, source, table
and the row's own key. A row that is recorded there is not imported again: a second import adds new
rows and restores objects that were deleted here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from corral.adapters.redaction import Redaction, redact_value
from corral.db.bulk_insert import ImportedRow
from corral.db.tx import Tx
from corral.domain.imports import ops as imports
from corral.domain.projects import ops as projects
from corral.domain.sessions import ops as sessions
from corral.importers.attached_files import FileCopier
from corral.importers.mapping import (
    EXISTING,
    KEPT,
    KEY,
    NOT_IMPORTED,
    SourceFile,
    TableMapping,
    TargetRow,
    ToolMapping,
)
from corral.importers.report import ImportReport, ProblemLog, TableReport
from corral.importers.restoration import Restoration
from corral.importers.rows.sessions import order_turns
from corral.importers.source.database import RawRow, SourceDatabase
from corral.importers.source.row import SourceRow, to_json_value
from corral.importers.storage import ConvertedRow, ImportStorage
from corral.kernel.errors import CorralError

MAX_CACHED_IDS = 20_000
_SEPARATOR = "\n\n"
_REDACTION = Redaction()


class OpenSource(NamedTuple):
    """An open database of the source."""

    database: SourceDatabase
    file: SourceFile

    @property
    def owner_key(self) -> str:
        return self.file.owner_key


class DatabaseImport:
    """One import, in an open transaction."""

    def __init__(
        self,
        tx: Tx,
        tool: ToolMapping,
        source: str,
        *,
        on_rows: Callable[[int], object],
        files: FileCopier | None = None,
    ) -> None:
        self._files = files
        self._tx = tx
        self._tool = tool
        self._source = source
        self._on_rows = on_rows
        self._ids: dict[tuple[str, str], str] = {}
        self._problems = ProblemLog()
        self._tables: dict[str, TableReport] = {}
        self._report = ImportReport(tool.name, source)
        self._source_project_id: str | None = None
        self._aliases: set[str] = set()
        self._owner_key = ""
        self._session: tuple[str, int] | None = None
        self._memo: dict[tuple[str, str], Any] = {}
        self._storage = ImportStorage(tx)
        self._restoration = Restoration(tx)
        # Two concurrent imports of one source would both treat the same rows as new.
        tx.serialize(f"import:{tool.name}:{source}")

    def import_source(self, source: OpenSource) -> None:
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
            self._report_unknown(database.original_name(name))
            self._import_table(source, TableMapping(name, (), {}, reason="the table is unknown"))
        self._report.left_out += database.derived

    def skip(self, path: Path, error: CorralError) -> None:
        """Report a file that could not be read completely."""
        self._report.skipped.append(f"{path}: {error.message}")

    def _begin_session(self, source: OpenSource) -> None:
        """Remember how many turns the session of a file has before the import."""
        if self._session is not None:
            return
        source_table = imports.SourceTable(self._tool.name, self._source, "sessions")
        known = imports.find_imported(self._tx, source_table, [source.owner_key]).get(
            source.owner_key
        )
        if known is not None and known.id is not None:
            self._session = (known.id, sessions.get(self._tx, known.id).turns)

    def _end_session(self) -> None:
        """Merge the turns from the two files of a session by time."""
        if self._session is not None:
            order_turns(self._tx, self._session[0], after=self._session[1])
            self._session = None

    def report(self) -> ImportReport:
        """Finish the import and return its report."""
        self._end_session()
        report = self._report
        report.tables = list(self._tables.values())
        report.problems = self._problems.all()
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
            data = {"source": self._source, "new": report.new, "changed": report.changed}
            data |= {"restored": report.restored} if report.restored else {}
            self._tx.emit("import", "bring", self._tool.name, data=data)
        return report

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

    # -- reading ----------------------------------------------------------------------------------

    def _import_table(self, source: OpenSource, table: TableMapping) -> None:
        report = self._tables.setdefault(table.origin, TableReport(table.origin, created={}))
        if table.alias:
            self._aliases.add(table.alias)
        for batch in source.database.batches(table.name, table.key):
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
        source_table = imports.SourceTable(self._tool.name, self._source, table.origin)
        keyed = [(_qualified_key(source, raw.key), raw) for raw in batch]
        known = imports.find_imported(self._tx, source_table, [key for key, _ in keyed])
        report.rows += len(batch)
        report.known += len(known)
        deleted = self._find_deleted(source, table, keyed, known)
        new = []
        for key, raw in keyed:
            digest = _digest(raw)
            if key not in known or key in deleted:
                new.append((key, raw, digest))
            elif known[key].digest != digest:
                self._record_change(source_table, key, raw, digest)
                report.changed += 1
        if not new:
            return
        rows = [
            (key, self._source_row(source, table, raw, known.get(key)), digest, raw.is_duplicate)
            for key, raw, digest in new
        ]
        self._look_up_ids(table, [row for _, row, _, _ in rows])
        converted = [
            ConvertedRow(key, row, convert_row(table, row, duplicate), digest, key in deleted)
            for key, row, digest, duplicate in rows
        ]
        if table.alias:
            converted = [entry for entry in converted if entry.targets or entry.row.problems]
        if deleted:
            imports.delete_origins(self._tx, source_table, sorted(deleted))
        report.restored += sum(entry.restored for entry in converted)
        report.new += sum(not entry.restored for entry in converted)
        self._redact(converted)
        self._store(source_table, table, converted, report)

    def _find_deleted(
        self,
        source: OpenSource,
        table: TableMapping,
        keyed: Sequence[tuple[str, RawRow]],
        known: Mapping[str, imports.ImportedRow],
    ) -> set[str]:
        """Return the keys of known rows to import again, because their object was deleted."""
        deleted = self._restoration.missing(known)
        if not self._restoration.restored:
            return deleted
        rows = {
            key: self._source_row(source, table, raw)
            for key, raw in keyed
            if key in known and key not in deleted
        }
        self._look_up_ids(table, [*rows.values()])
        for key, row in rows.items():
            parents = (self._ids.get(parent, "") for parent in _parents(table, row))
            if self._restoration.goes_with(known[key], parents):
                deleted.add(key)
        return deleted

    def _source_row(
        self,
        source: OpenSource,
        table: TableMapping,
        raw: RawRow,
        known: imports.ImportedRow | None = None,
    ) -> SourceRow:
        return SourceRow(
            raw,
            table.refs,
            self._ids,
            now=self._tx.now,
            folder=str(source.database.path.absolute().parent),
            owner_key=source.owner_key,
            owner_values=source.file.owner_values,
            source_project=lambda: self._source_project(source),
            memo=self._memo,
            known_id=known.id if known else None,
            files=self._files,
        )

    def _source_project(self, source: OpenSource) -> str:
        if self._source_project_id is None:
            folder = source.database.path.absolute().parent
            self._source_project_id = projects.register(self._tx, folder, must_exist=False).id
        return self._source_project_id

    def _ensure_owner(self, source: OpenSource, owner: TableMapping) -> None:
        """Import the owner of a file from its known values, if no other file has it."""
        values = source.file.owner_values
        key = values[owner.key[0]]
        source_table = imports.SourceTable(self._tool.name, self._source, owner.origin)
        known = imports.find_imported(self._tx, source_table, [key])
        if key not in known or self._restoration.missing(known):
            report = self._tables.setdefault(owner.origin, TableReport(owner.origin, created={}))
            raw = RawRow(key, False, {name: text.encode() for name, text in values.items()})
            main = OpenSource(source.database, SourceFile(*source.file[:3]))
            self._import_batch(main, owner, [raw], report)

    def _look_up_ids(self, table: TableMapping, rows: Sequence[SourceRow]) -> None:
        """Load the ids of all rows that these rows refer to, with one query per table."""
        keys_by_table: dict[str, set[str]] = {}
        for row in rows:
            for other, key in _parents(table, row):
                keys_by_table.setdefault(other, set()).add(key)
        if len(self._ids) > MAX_CACHED_IDS:
            self._ids.clear()
        for other, keys in keys_by_table.items():
            source_table = imports.SourceTable(self._tool.name, self._source, other)
            missing = sorted(key for key in keys if (other, key) not in self._ids)
            for key, known in (
                imports.find_imported(self._tx, source_table, missing).items() if missing else ()
            ):
                if known.id is not None:
                    self._ids[other, key] = known.id

    def _record_change(
        self, source_table: imports.SourceTable, key: str, raw: RawRow, digest: str
    ) -> None:
        """Keep the new values of a changed row; its object is not changed."""
        values = {
            name: to_json_value(value) for name, value in raw.values.items() if value is not None
        }
        for table in self._tool.tables:
            if table.origin == source_table.source_table:
                hidden = {name for name, target in table.columns.items() if target == NOT_IMPORTED}
                values = {name: value for name, value in values.items() if name not in hidden}
        unmapped = _encode(redact_value(values))
        imports.update_origin(self._tx, source_table, key, unmapped=unmapped, digest=digest)
        message = "was changed since it was imported; its object is not changed, the row is kept"
        self._problems.add(source_table.source_table, message, key)

    # -- writing ----------------------------------------------------------------------------------

    def _redact(self, converted: Sequence[ConvertedRow]) -> None:
        """Redact everything that looks like a secret.

        All texts are checked together first: mostly there is no secret, and that costs a tenth of
        checking each text.
        """
        joined = _SEPARATOR.join(_texts(converted))
        if redact_value(joined) == joined:
            return
        for entry in converted:
            before = _SEPARATOR.join(_texts([entry]))
            for target in entry.targets:
                for name, value in target.values.items():
                    if isinstance(value, str):
                        target.values[name] = _REDACTION.clean(value)
            clean = redact_value(entry.row.unmapped)
            entry.row.unmapped.clear()
            entry.row.unmapped.update(clean)
            if _SEPARATOR.join(_texts([entry])) != before:
                self._report.secrets += 1

    def _store(
        self,
        source_table: imports.SourceTable,
        mapping: TableMapping,
        converted: Sequence[ConvertedRow],
        report: TableReport,
    ) -> None:
        ids: dict[str, str | None] = {}
        # The objects first, then the rows that belong to them.
        firsts = ((entry, entry.targets[0]) for entry in converted if entry.targets)
        for table, group in _group_by_table(firsts):
            for (entry, _), placed in zip(group, self._storage.insert(table, group), strict=True):
                ids[entry.key] = placed.id
                self._report_object(entry, table, placed, report)
        others = ((entry, target) for entry in converted for target in entry.targets[1:])
        stored = (pair for pair in others if ids[pair[0].key] is not None)
        for table, group in _group_by_table(stored):
            for (entry, _), placed in zip(group, self._storage.insert(table, group), strict=True):
                if placed.id is not None:
                    report.created[table] = report.created.get(table, 0) + 1
                elif not entry.restored:
                    entry.row.keep_columns(_columns_in(mapping, table))
                    duplicate = f"{table} has another row with the same key"
                    entry.row.problems.append(placed.why or duplicate)
        origins = []
        for entry in converted:
            id = ids.get(entry.key)
            if id is None:
                report.kept += 1
            else:
                self._ids[source_table.source_table, entry.key] = id
            for message in entry.row.problems:
                self._problems.add(source_table.source_table, message, entry.key)
            origins.append(_origin(entry, id))
        imports.add_origins(self._tx, source_table, origins)

    def _report_object(
        self, entry: ConvertedRow, table: str, placed: ImportedRow, report: TableReport
    ) -> None:
        """Report how the object of a row was stored."""
        if placed.id is None:
            entry.row.keep_all()
            entry.row.problems.append(f"{table} has a row with the same key already")
            return
        if table != EXISTING:
            report.created[table] = report.created.get(table, 0) + 1
        if placed.why:
            entry.row.keep_all()
            entry.row.problems.append(placed.why)
        if entry.restored and placed.id:
            self._restoration.restored.add(placed.id)


def convert_row(table: TableMapping, row: SourceRow, is_duplicate: bool) -> list[TargetRow]:
    """Convert a row. Values that no target row has are kept in `row.unmapped`."""
    if is_duplicate and not table.alias:
        row.problems.append("the row has no key, or a key that another row has too")
    targets = list(table.convert(row)) if table.convert else []
    if not targets and not table.alias:
        row.keep_all()
        row.explain(table.reason or "required values are missing")
    for name, target in table.columns.items():
        if target == NOT_IMPORTED:
            row.unmapped.pop(name, None)
            if row.has(name):
                row.problems.append(f"{name} is not imported: it may be a secret")
        elif target == KEPT and not table.alias:
            row.keep(name)
    if not table.alias:
        row.keep_unused(
            {
                name
                for name, target in table.columns.items()
                if target == NOT_IMPORTED or (target == KEY and row.plain_text(name) == row.key)
            }
        )
    return targets


def _parents(table: TableMapping, row: SourceRow) -> Iterator[tuple[str, str]]:
    """Yield the rows of other tables that a row refers to: their table and key."""
    for name, other in table.refs.items():
        if (key := row.key_in(name)) is not None:
            yield other, key
    if table.links is not None:
        yield from table.links(row)


def _columns_in(mapping: TableMapping, table: str) -> set[str]:
    """Return the columns of a source table that are stored in one of Corral's tables."""
    return {name for name, target in mapping.columns.items() if f"{table}." in target}


def _group_by_table(
    pairs: Iterator[tuple[ConvertedRow, TargetRow]],
) -> Iterator[tuple[str, list[tuple[ConvertedRow, TargetRow]]]]:
    groups: dict[str, list[tuple[ConvertedRow, TargetRow]]] = {}
    for entry, target in pairs:
        groups.setdefault(target.table, []).append((entry, target))
    return iter(groups.items())


def _origin(entry: ConvertedRow, id: str | None) -> dict[str, Any]:
    return {
        "row_id": entry.key,
        "record_table": None if id is None else _table_of(entry),
        "id": id or None,
        "unmapped": _encode(entry.row.unmapped) if entry.row.unmapped else None,
        "problems": _encode(entry.row.problems) if entry.row.problems else None,
        "digest": entry.digest,
    }


def _table_of(entry: ConvertedRow) -> str:
    first = entry.targets[0]
    return str(first.values["table"]) if first.table == EXISTING else first.table


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _qualified_key(source: OpenSource, key: str) -> str:
    return f"{source.owner_key}/{key}" if source.owner_key else key


def _digest(raw: RawRow) -> str:
    """Return a hash of all values of a row."""
    return blake2b(repr(raw.values).encode(), digest_size=8).hexdigest()


def _texts(converted: Sequence[ConvertedRow]) -> Iterator[str]:
    for entry in converted:
        for target in entry.targets:
            yield from (value for value in target.values.values() if isinstance(value, str))
        if entry.row.unmapped:
            yield _encode(entry.row.unmapped)
