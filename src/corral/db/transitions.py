"""The one mechanism that creates a row with a state and moves it from state to state.

A creation and a move are each a guarded statement and its event, in one transaction. On PostgreSQL
the two are one statement (a writing WITH), which halves the round trips; SQLite has no such thing
and no round trips either. No code but this and `moves_many` writes a state column.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from corral.db.dialect import Engine
from corral.db.lookup import no_such
from corral.db.statement import Query, Row
from corral.db.tx import Tx
from corral.kernel.errors import CorralError, IllegalMove, NotFound
from corral.kernel.lease import taken_over
from corral.kernel.states import Moves
from corral.kernel.text import encode_json

R = TypeVar("R")


class StateTable(Generic[R]):
    """A table whose rows have a state: its record, its legal moves and its columns as SQL.

    `columns` is the SELECT list of the record, `key` the column that names a row, `project` the one
    that tells its project. Rows that are numbered have `number_of` as the prefix of their public
    id. The record has the fields `id` and `state`. `fresh` makes the record of a new row from its
    number, values and state, so that it is not read back: for a table that is filled so often that
    this counts. `placed` has columns in which a new row takes its place among those of others, and
    the SQL for it, in terms of the given values (`:column`): for an engine whose writers are not
    alone. Where they are, a row is placed as it is given.
    """

    def __init__(
        self,
        record: type[R],
        moves: Moves,
        *,
        table: str,
        columns: str,
        key: str = "id",
        number_of: str | None = None,
        project: str | None = None,
        fresh: Callable[[int, Mapping[str, Any], Any], R] | None = None,
        placed: Mapping[str, str] | None = None,
    ) -> None:
        self.record = record
        self.moves = moves
        self.table = table
        self.columns = columns
        self.key = key
        self.number_of = number_of
        self.project = project
        self.fresh = fresh
        self.placed = placed or {}
        self._insertions: dict[tuple[str, ...], Query[R]] = {}
        self.by_key = Query(record, f"SELECT {columns} FROM {table} WHERE {key} = :key_")
        self.held_by_key = Query(record, f"{self.by_key.text} {{locked}}")

    def get(self, tx: Tx, key: str | int, *, held: bool = False) -> R:
        found = tx.one(self.held_by_key if held else self.by_key, key_=key)
        if found is None:
            raise self.missing(key)
        return found

    def hold(self, tx: Tx, key: str | int) -> R:
        """The row as it is, which nobody else changes before this transaction ends."""
        tx.several()
        return self.get(tx, key, held=True)

    def missing(self, key: str | int) -> NotFound:
        return no_such(self.moves.kind, f"{self.number_of}_{key}" if self.number_of else key)

    def insertion(
        self, values: Mapping[str, Any], unless: str, begin: str, engine: Engine
    ) -> "Query[R]":
        """The INSERT of a new row with these columns."""
        kind = (engine, begin, unless, *values)
        made = self._insertions.get(kind)
        if made is None:
            made = self._insertions[kind] = self._insert(values, unless, begin, engine)
        return made

    def _insert(
        self, columns: Iterable[str], unless: str, begin: str, engine: Engine
    ) -> "Query[R]":
        names = ", ".join(columns)
        values = ", ".join(self.value_of(name, engine) for name in columns)
        conflict = f" ON CONFLICT {unless} DO NOTHING" if unless else ""
        insert = (
            f"INSERT INTO {self.table} ({names}, state)"
            f" VALUES ({values}, '{self.moves.entries[begin]}'){conflict}"
        )
        if self.fresh is None:
            return _with_event(self, insert, engine)
        return _unread(self, insert, engine, *self.placed)

    def value_of(self, column: str, engine: Engine) -> str:
        """What stands for a column's value in the INSERT of a new row."""
        given = f":{column}"
        return given if engine == "sqlite" else self.placed.get(column, given)

    def newest(self, condition: str = "") -> "Query[R]":
        """A list of rows that are named by id, newest first, of those that fit a condition."""
        also = f" AND {condition}" if condition else ""
        return Query(
            self.record,
            f"SELECT {self.columns} FROM {self.table} WHERE {self.key} < :before{also}"
            f" ORDER BY {self.key} DESC LIMIT :limit",
        )

    @property
    def public_id(self) -> str:
        return f"'{self.number_of}_' || {self.key}" if self.number_of else self.key


def create(
    tx: Tx,
    table: StateTable[R],
    values: dict[str, Any],
    *,
    unless: str = "",
    begin: str | None = None,
    note: dict[str, Any] | None = None,
) -> R | None:
    """Insert a row in its initial state, or in that of another verb that makes one, with its event.

    `values` is used up. `unless` is an ON CONFLICT target; when a row is there already, nothing is
    written and None comes back.
    """
    verb = begin or table.moves.begin
    query = table.insertion(values, unless, verb, tx.engine)
    fresh = table.fresh
    if fresh is None or not query.unread:
        return _write(tx, table, query, query.make, values, verb, note)
    state = table.moves.entries[verb]

    def made(row: Row) -> R:
        if len(row) > 1:
            values.update(zip(table.placed, row[1:], strict=True))
        return fresh(row[0], values, state)

    return _write(tx, table, query, made, values, verb, note)


def create_each(
    tx: Tx,
    table: StateTable[R],
    rows: Sequence[dict[str, Any]],
    *,
    unless: str = "",
    begin: str | None = None,
    notes: Sequence[str | None] | None = None,
) -> list[int | None]:
    """As `create`, for several rows with the same columns of a table that has `fresh`: in their
    order, their events behind them, and each costs little more than its statements do.

    `rows` are used up. `notes` are the data of the events, as JSON. Gives back the rows' numbers.
    """
    if not rows:
        return []
    verb = begin or table.moves.begin
    query = table.insertion(rows[0], unless, verb, tx.engine)
    assert query.unread, "only a table that has `fresh` answers with numbers"
    data = notes or [None] * len(rows)
    if tx.engine == "postgres":
        # In their place: secrets are taken out of what is given, and the records are made of it.
        for row, each in zip(rows, data, strict=True):
            row |= {"at_": tx.now, "actor_": tx.actor, "verb_": verb, "data_": each}
            row["origin_id"] = tx.origin
    numbers = [answer[0][0] if answer else None for answer in tx.execute_each(query, rows)]
    if tx.engine == "sqlite":
        shared = {"at": tx.now, "actor": tx.actor, "kind": table.moves.kind, "verb": verb}
        id, project = f"{table.number_of}_", table.project
        events = [
            {
                **shared,
                "subject": f"{id}{number}",
                "project_id": project and row.get(project),
                "data": each,
            }
            for number, row, each in zip(numbers, rows, data, strict=True)
            if number is not None
        ]
        tx.note_each(events)
    tx.noted = True
    return numbers


def move(
    tx: Tx,
    table: StateTable[R],
    verb: str,
    key: str | int,
    *,
    guard: int | None = None,
    known: Any = None,
    note: dict[str, Any] | None = None,
    **columns: Any,
) -> R:
    """Take a row along a legal move, set `columns`, and write the event.

    `guard` is the fence that the caller was given, and `known` the record that came with it: then
    nothing is read back, and `columns` are all that the caller does not know for certain. Raises
    NotFound, IllegalMove (it names the state that was found and the verbs that would have been
    allowed), or Held when the row was taken over since.
    """
    names = tuple(columns)
    query: Query[R] = _update(table, verb, names, guard is not None, known is None, tx.engine)
    params = {**columns, "key_": key, "guard_": guard}

    def brought_up_to_date(_: Row) -> R:
        kept = {name: params[name] for name in names} if query.searched else columns
        now: R = replace(known, state=table.moves[verb].to, **kept)
        return now

    make = query.make if known is None else brought_up_to_date
    moved = _write(tx, table, query, make, params, verb, note)
    if moved is None:
        raise _refusal(tx, table, verb, key, guard)
    return moved


def _write(
    tx: Tx,
    table: StateTable[R],
    query: Query[R],
    make: Callable[[Row], R],
    params: dict[str, Any],
    verb: str,
    note: dict[str, Any] | None,
) -> R | None:
    if tx.engine == "postgres":
        data = encode_json(note, "An event") if note else None
        params |= {"at_": tx.now, "actor_": tx.actor, "verb_": verb, "data_": data}
        params["origin_id"] = tx.origin
        rows = tx.execute(query, params)
        tx.noted = tx.noted or bool(rows)
        return make(rows[0]) if rows else None
    if tx.mode == "one":
        tx.several()
    rows = tx.execute(query, params)
    if not rows:
        return None
    written: Any = make(rows[0])
    project_id = getattr(written, table.project) if table.project else None
    tx.note(table.moves.kind, verb, written.id, project_id=project_id, data=note)
    made: R = written
    return made


@cache
def _update(
    table: StateTable[R],
    verb: str,
    columns: tuple[str, ...],
    guarded: bool,
    whole: bool,
    engine: Engine,
) -> Query[R]:
    sources, to = table.moves[verb]
    changes = "".join(f", {name} = :{name}" for name in columns)
    states = ", ".join(f"'{state}'" for state in sources)
    fence = " AND fence = :guard_" if guarded else ""
    change = (
        f"UPDATE {table.table} SET state = '{to}'{changes}"
        f" WHERE {table.key} = :key_ AND state IN ({states}){fence}"
    )
    return _with_event(table, change, engine) if whole else _unread(table, change, engine)


def _with_event(table: StateTable[R], change: str, engine: Engine) -> Query[R]:
    """The change, with its event on PostgreSQL, and the record that it leaves."""
    if engine == "sqlite":
        return Query(table.record, f"{change} RETURNING {table.columns}")
    return Query(table.record, noting(table, change, table.columns))


def _unread(table: StateTable[R], change: str, engine: Engine, *placed: str) -> Query[R]:
    """The same, and nothing is read back but whether it was made, and where it was placed among
    others: who makes it knows the rest."""
    columns = ", ".join((table.key, *placed))
    text = change if engine == "sqlite" else noting(table, change, columns)
    return Query(table.record, text, unread=True)


def noting(table: StateTable[R], change: str, columns: str) -> str:
    return f"""
        WITH written AS ({change} RETURNING *),
        noted AS (
            INSERT INTO events (at, actor, kind, verb, subject, project_id, data, run_id)
            SELECT :at_, :actor_, '{table.moves.kind}', :verb_, {table.public_id},
                   {table.project or "CAST(NULL AS TEXT)"}, CAST(:data_ AS JSON),
                   CAST(:origin_id AS TEXT)
            FROM written
        )
        SELECT {columns} FROM written
    """


def _refusal(
    tx: Tx, table: StateTable[R], verb: str, key: str | int, guard: int | None
) -> CorralError:
    """Why a guarded UPDATE found no row."""
    found: Any = table.get(tx, key)
    sources = table.moves[verb].sources
    if guard is not None and found.fence != guard:
        return taken_over(found.id, yours=guard, found=found.fence, owner=found.owner)
    allowed = table.moves.allowed_from(found.state)
    can = f"it allows {', '.join(allowed)}" if allowed else "that is its end"
    return IllegalMove(
        f"Cannot {verb} {found.id}: it is {found.state}, and {can}.",
        id=found.id,
        verb=verb,
        found=found.state,
        allowed=allowed,
        wanted=[str(source) for source in sources],
    )
