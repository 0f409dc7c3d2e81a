"""The storage of converted rows: their target rows, their origins, and what is reported.

`inserts` inserts the rows of one table. This module decides the order, keeps the original values of
a row that could not be stored completely, and records an origin for every row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from corral.db.bulk_insert import ImportedRow
from corral.db.tx import Tx
from corral.domain.imports import origins
from corral.domain.imports.origins import SourceTable
from corral.importers.conversion import ConvertedRow
from corral.importers.imported_ids import ImportedIds
from corral.importers.mappings.target_rows import to_json_text
from corral.importers.mappings.types import EXISTING, TableMapping, TargetRow
from corral.importers.report import ProblemLog, TableReport
from corral.importers.target.inserts import TableInserter
from corral.importers.target.restoration import Restoration

TargetPair = tuple[ConvertedRow, TargetRow]


class RowWriter:
    """Stores the converted rows of one import, in an open transaction."""

    def __init__(
        self, tx: Tx, ids: ImportedIds, problems: ProblemLog, restoration: Restoration
    ) -> None:
        self._tx = tx
        self._ids = ids
        self._problems = problems
        self._restoration = restoration
        self._inserter = TableInserter(tx)

    def store(
        self,
        source_table: SourceTable,
        mapping: TableMapping,
        converted: Sequence[ConvertedRow],
        report: TableReport,
    ) -> None:
        """Store the target rows and the origins of rows, and count them in `report`."""
        ids = self._insert_objects(converted, report)
        self._insert_parts(mapping, converted, ids, report)
        for entry in converted:
            id = ids.get(entry.key)
            if id is None:
                report.kept += 1
            else:
                self._ids[source_table.source_table, entry.key] = id
            for message in entry.row.problems:
                self._problems.add(source_table.source_table, message, entry.key)
        rows = [_build_origin(entry, ids.get(entry.key)) for entry in converted]
        origins.add_origins(self._tx, source_table, rows)

    def _insert_objects(
        self, converted: Sequence[ConvertedRow], report: TableReport
    ) -> dict[str, str | None]:
        """Insert the object of each row; returns its id by the row's key, None if not stored."""
        ids: dict[str, str | None] = {}
        pairs = ((entry, entry.targets[0]) for entry in converted if entry.targets)
        for table, group in _group_by_table(pairs):
            results = self._inserter.insert(table, group)
            for (entry, _), result in zip(group, results, strict=True):
                ids[entry.key] = result.id
                self._report_object(entry, table, result, report)
        return ids

    def _report_object(
        self, entry: ConvertedRow, table: str, result: ImportedRow, report: TableReport
    ) -> None:
        """Report how the object of a row was stored."""
        if result.id is None:
            entry.row.keep_all()
            entry.row.problems.append(f"{table} has a row with the same key already")
            return
        if table != EXISTING:
            report.created[table] = report.created.get(table, 0) + 1
        if result.why:
            entry.row.keep_all()
            entry.row.problems.append(result.why)
        if entry.restored and result.id:
            self._restoration.restored.add(result.id)

    def _insert_parts(
        self,
        mapping: TableMapping,
        converted: Sequence[ConvertedRow],
        ids: dict[str, str | None],
        report: TableReport,
    ) -> None:
        """Insert the further target rows of the objects that were stored."""
        pairs = (
            (entry, target)
            for entry in converted
            for target in entry.targets[1:]
            if ids[entry.key] is not None
        )
        for table, group in _group_by_table(pairs):
            results = self._inserter.insert(table, group)
            for (entry, _), result in zip(group, results, strict=True):
                if result.id is not None:
                    report.created[table] = report.created.get(table, 0) + 1
                elif not entry.restored:
                    entry.row.keep_columns(_list_columns(mapping, table))
                    duplicate = f"{table} has another row with the same key"
                    entry.row.problems.append(result.why or duplicate)


def _group_by_table(pairs: Iterator[TargetPair]) -> Iterator[tuple[str, list[TargetPair]]]:
    groups: dict[str, list[TargetPair]] = {}
    for entry, target in pairs:
        groups.setdefault(target.table, []).append((entry, target))
    return iter(groups.items())


def _list_columns(mapping: TableMapping, table: str) -> set[str]:
    """Return the columns of a source table that are stored in one of Corral's tables."""
    return {name for name, target in mapping.columns.items() if f"{table}." in target}


def _build_origin(entry: ConvertedRow, id: str | None) -> dict[str, Any]:
    return {
        "row_id": entry.key,
        "record_table": None if id is None else _find_object_table(entry),
        "id": id or None,
        "unmapped": to_json_text(entry.row.unmapped) if entry.row.unmapped else None,
        "problems": to_json_text(entry.row.problems) if entry.row.problems else None,
        "digest": entry.digest,
    }


def _find_object_table(entry: ConvertedRow) -> str:
    target = entry.targets[0]
    return str(target.values["table"]) if target.table == EXISTING else target.table
