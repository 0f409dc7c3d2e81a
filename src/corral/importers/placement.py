"""Storage of imported rows in Corral's tables, marked as imported."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from corral.db.bulk_insert import Placed, put_many
from corral.db.bulk_transitions import import_many
from corral.db.schema import tables as schema_tables
from corral.db.transitions import StateTable
from corral.db.tx import Tx
from corral.domain.search import ops as search
from corral.importers.mapping import SAME, Thing
from corral.importers.row import Row
from corral.importers.rows import (
    agents,
    charges,
    groups,
    projects,
    questions,
    races,
    sessions,
    tasks,
)
from corral.importers.rows import chat as gateway
from corral.services.store.sql_catalogue import declared


class Made(NamedTuple):
    """A foreign row, the things that it becomes, and its hash."""

    key: str
    row: Row
    things: list[Thing]
    digest: str
    restored: bool


class Placement:
    """Stores the things of one import."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._states = {table.table: table for table in declared(StateTable).values()}

    def put(self, table: str, group: Sequence[tuple[Made, Thing]]) -> Sequence[Placed]:
        rows = [thing.values for _, thing in group]
        if table in _marked():
            for row in rows:
                row["imported_at"] = self._tx.now
        if table == SAME:
            return [Placed(row["id"]) for row in rows]
        if table == "charges":
            return self._put_charges(group)
        if (special := _SPECIAL.get(table)) is not None:
            placed = special(self._tx, rows) or [""] * len(rows)
            return [each if isinstance(each, Placed) else Placed(each) for each in placed]
        if table in self._states:
            written = import_many(self._tx, self._states[table], rows)
            if table == "notes":
                self._make_findable(rows, written)
            return [Placed(id) for id in written]
        if (prefix := _NUMBERED.get(table)) is not None:
            put = put_many(self._tx, table, rows, returned="seq")
            return [Placed(f"{prefix}_{seq}") for (seq,) in sorted(put)]
        keys = _KEYS.get(table)
        if keys is None:
            put_many(self._tx, table, rows)
            return [Placed("")] * len(rows)
        named = _NAMED.get(table, keys[0])
        returned = ", ".join((*keys, named))
        put = put_many(self._tx, table, rows, unless="anything", returned=returned)
        left = {tuple(row[:-1]): row[-1] for row in put}
        # Of two rows with the same key, the first one is stored.
        ids = (left.pop(tuple(row[key] for key in keys), None) for row in rows)
        return [Placed(None if id is None else _id_in(table, id)) for id in ids]

    def _put_charges(self, group: Sequence[tuple[Made, Thing]]) -> Sequence[Placed]:
        ids: dict[int, str] = {}
        for restored, put in ((False, charges.take_in), (True, charges.restore)):
            places = [n for n, (each, _) in enumerate(group) if each.restored is restored]
            rows = [group[n][1].values for n in places]
            ids |= zip(places, put(self._tx, rows), strict=True)
        return [Placed(ids[n]) for n in range(len(group))]

    def _make_findable(self, rows: list[dict[str, Any]], ids: Sequence[str | None]) -> None:
        for row, id in zip(rows, ids, strict=True):
            if id is not None:
                project, at = row.get("project_id"), row["created_at"]
                search.add(self._tx, "note", id, 0, project, at, row["text"])


_SPECIAL: dict[str, Callable[[Tx, list[dict[str, Any]]], Any]] = {
    "agents": agents.take_in,
    "agent_versions": agents.take_in_versions,
    "attempts": races.take_in_attempts,
    "choices": races.take_in_winners,
    "destinations": gateway.take_in_destinations,
    "edges": tasks.take_in_edges,
    "posts": groups.take_in_posts,
    "projects": projects.take_in,
    "provider_sessions": sessions.take_in_provider_sessions,
    "question_texts": questions.take_in_texts,
    "retros": sessions.take_in_retros,
    "turns": sessions.take_in_turns,
    "wirings": gateway.take_in_wirings,
}

_NUMBERED = {"events": "evt", "log_lines": "log"}

# The unique keys of tables in which the row may exist already.
_KEYS = {
    "grants": ("agent_id", "tool"),
    "members": ("group_id", "member"),
    "plans": ("subject",),
    "reactions": ("post_id", "sign", "member"),
    "session_state": ("session_id", "name"),
    "touches": ("project_id", "path", "owner"),
}


# The column that identifies a row in `origins`, if it is not the first of its key.
_NAMED = {"touches": "seq"}


def _id_in(table: str, value: Any) -> str:
    return f"tch_{value}" if table == "touches" else str(value)


@cache
def _marked() -> frozenset[str]:
    """Return the tables that have the column `imported_at`."""
    return frozenset(t.name for t in schema_tables() if "imported_at" in t.names) - {"origins"}
