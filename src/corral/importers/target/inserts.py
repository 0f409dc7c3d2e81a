"""Inserts of target rows into Corral's tables, marked as imported.

Tables that need more than an INSERT have a function in the module of their concept.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from corral.db.bulk_insert import ImportedRow, insert_many
from corral.db.bulk_transitions import import_many
from corral.db.schema import tables as schema_tables
from corral.db.stateful_table import StatefulTable
from corral.db.tx import Tx
from corral.domain.search import ops as search
from corral.importers.conversion import ConvertedRow
from corral.importers.mappings.types import EXISTING, TargetRow
from corral.importers.target import (
    agents,
    charges,
    chat,
    groups,
    projects,
    questions,
    races,
    sessions,
    tasks,
)
from corral.services.store.declarations import find_declarations


class TableInserter:
    """Inserts the target rows of one import, one table at a time."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._stateful = {table.table: table for table in find_declarations(StatefulTable).values()}

    def insert(
        self, table: str, group: Sequence[tuple[ConvertedRow, TargetRow]]
    ) -> Sequence[ImportedRow]:
        """Insert rows into one table; returns the id of each, or why it was not stored."""
        rows = [target.values for _, target in group]
        if table in _list_tables_with_import_time():
            for row in rows:
                row["imported_at"] = self._tx.now
        if table == EXISTING:
            return [ImportedRow(row["id"]) for row in rows]
        if table == "charges":
            return self._insert_charges(group)
        if table in _SPECIAL:
            return self._insert_special(table, rows)
        if table in self._stateful:
            return self._insert_stateful(table, rows)
        if table in _NUMBERED:
            return self._insert_numbered(table, rows)
        if table in _KEYS:
            return self._insert_keyed(table, rows)
        insert_many(self._tx, table, rows)
        return [ImportedRow("")] * len(rows)

    def _insert_special(self, table: str, rows: list[dict[str, Any]]) -> list[ImportedRow]:
        results = _SPECIAL[table](self._tx, rows) or [""] * len(rows)
        return [
            result if isinstance(result, ImportedRow) else ImportedRow(result) for result in results
        ]

    def _insert_stateful(self, table: str, rows: list[dict[str, Any]]) -> list[ImportedRow]:
        ids = import_many(self._tx, self._stateful[table], rows)
        if table == "notes":
            self._index_notes(rows, ids)
        return [ImportedRow(id) for id in ids]

    def _insert_numbered(self, table: str, rows: list[dict[str, Any]]) -> list[ImportedRow]:
        numbers = sorted(insert_many(self._tx, table, rows, returning="seq"))
        return [ImportedRow(f"{_NUMBERED[table]}_{seq}") for (seq,) in numbers]

    def _insert_keyed(self, table: str, rows: list[dict[str, Any]]) -> list[ImportedRow]:
        """Insert rows with a unique key. Of two rows with the same key, the first is stored."""
        keys = _KEYS[table]
        id_column = _ID_COLUMNS.get(table, keys[0])
        returned = ", ".join((*keys, id_column))
        inserted = insert_many(self._tx, table, rows, on_conflict="anything", returning=returned)
        ids_by_key = {tuple(row[:-1]): row[-1] for row in inserted}
        ids = (ids_by_key.pop(tuple(row[key] for key in keys), None) for row in rows)
        return [ImportedRow(None if id is None else _format_id(table, id)) for id in ids]

    def _insert_charges(
        self, group: Sequence[tuple[ConvertedRow, TargetRow]]
    ) -> Sequence[ImportedRow]:
        ids: dict[int, str] = {}
        for is_restored, insert in (
            (False, charges.insert_charges),
            (True, charges.restore_charges),
        ):
            positions = [
                position
                for position, (entry, _) in enumerate(group)
                if entry.restored is is_restored
            ]
            rows = [group[position][1].values for position in positions]
            ids |= zip(positions, insert(self._tx, rows), strict=True)
        return [ImportedRow(ids[position]) for position in range(len(group))]

    def _index_notes(self, rows: list[dict[str, Any]], ids: Sequence[str | None]) -> None:
        for row, id in zip(rows, ids, strict=True):
            if id is not None:
                project, at = row.get("project_id"), row["created_at"]
                search.add(self._tx, "note", id, 0, project, at, row["text"])


_SPECIAL: dict[str, Callable[[Tx, list[dict[str, Any]]], Any]] = {
    "agents": agents.insert_agents,
    "agent_versions": agents.insert_versions,
    "attempts": races.insert_attempts,
    "selections": races.insert_winners,
    "destinations": chat.insert_destinations,
    "task_dependencies": tasks.insert_dependencies,
    "posts": groups.insert_posts,
    "projects": projects.insert_projects,
    "provider_sessions": sessions.set_provider_sessions,
    "question_texts": questions.set_question_texts,
    "retros": sessions.insert_retros,
    "turns": sessions.insert_turns,
    "wirings": chat.insert_wirings,
}

_NUMBERED = {"events": "evt", "log_lines": "log"}

# The unique keys of tables in which the row may exist already.
_KEYS = {
    "tool_grants": ("agent_id", "tool"),
    "group_members": ("group_id", "name"),
    "plans": ("subject",),
    "reactions": ("post_id", "emoji", "member"),
    "session_state": ("session_id", "name"),
    "file_touches": ("project_id", "path", "owner"),
}

# The column that identifies a row in `import_origins`, if it is not the first of its key.
_ID_COLUMNS = {"file_touches": "seq"}


def _format_id(table: str, value: Any) -> str:
    return f"tch_{value}" if table == "file_touches" else str(value)


@cache
def _list_tables_with_import_time() -> frozenset[str]:
    """Return the tables that have the column `imported_at`."""
    names = {table.name for table in schema_tables() if "imported_at" in table.names}
    return frozenset(names - {"import_origins"})
