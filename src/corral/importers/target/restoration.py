"""Restoration of imported objects that were deleted here: a second import brings them back.

An object comes back under its old id, so that references to it are valid again. Parts of a parent
(turns, log lines, members, state) come back only with the parent: a user may have removed a single
part on purpose.
"""

from collections.abc import Iterable, Mapping

from corral.db.stateful_table import StatefulTable
from corral.db.tx import Tx
from corral.domain.imports import origins
from corral.domain.imports.origins import KnownRow
from corral.kernel.errors import Invalid
from corral.kernel.ids import parse_number
from corral.services.store.declarations import find_declarations

# The column that names a row of a table without states, and the prefix of its public id.
_NAMED_BY: dict[str, tuple[str, str | None]] = {
    "charges": ("seq", "chg"),
    "events": ("seq", "evt"),
    "plans": ("subject", None),
    "posts": ("id", None),
    "file_touches": ("seq", "tch"),
}
_WITH_PARENT = frozenset(
    (
        "selections",
        "task_dependencies",
        "tool_grants",
        "log_lines",
        "group_members",
        "question_texts",
        "retros",
        "session_state",
        "turns",
    )
)


class Restoration:
    """The objects that one import restores."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._named_by = _NAMED_BY | {
            table.table: (table.key, table.id_prefix or None)
            for table in find_declarations(StatefulTable).values()
        }
        self.restored: set[str] = set()
        """The ids of the restored objects."""

    def find_missing(self, known: Mapping[str, KnownRow]) -> set[str]:
        """Return the keys of rows whose object does not exist any more."""
        by_table: dict[str, dict[str, str]] = {}
        for key, row in known.items():
            if row.id is not None and row.record_table in self._named_by:
                by_table.setdefault(row.record_table, {})[key] = row.id
        return {key for table, ids in by_table.items() for key in self._find_missing_of(table, ids)}

    def has_existing(self, known: Mapping[str, KnownRow]) -> bool:
        """Return whether an object of one of these rows exists.

        Parts exist only with their parent, which is an object.
        """
        named = {key for key, row in known.items() if row.id and row.record_table in self._named_by}
        return bool(named - self.find_missing(known))

    def _find_missing_of(self, table: str, ids: Mapping[str, str]) -> Iterable[str]:
        column, prefix = self._named_by[table]
        names: dict[str, str | int] = {}
        for key, id in ids.items():
            try:
                names[key] = id if prefix is None else parse_number(prefix, id)
            except Invalid:
                continue  # an early version recorded the id of the row's parent
        existing = origins.find_existing(self._tx, table, column, [*names.values()])
        return (key for key, name in names.items() if name not in existing)

    def is_restored_with(self, row: KnownRow, parents: Iterable[str]) -> bool:
        """Return whether a row is restored because its object or one of its parents was."""
        if row.id in self.restored:
            return True
        return row.record_table in _WITH_PARENT and not self.restored.isdisjoint(parents)
