"""The only code that creates rows with a state and changes their state.

A creation or a transition is one conditional statement and its event, in one transaction. The
condition is compiled from the type's `TransitionTable`, so an illegal transition updates no row. On
PostgreSQL the statement and its event are one round trip (a data-modifying WITH). SQLite has no
such syntax and no round trips, so they are two statements there.

No other module writes a `state` column.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from corral.db.bulk_insert import insert_statement
from corral.db.dialect import Engine
from corral.db.listing import Listing
from corral.db.lookup import not_found
from corral.db.statement import Query, Row, Statement, columns_of
from corral.db.tx import Tx
from corral.kernel.errors import Conflict, CorralError, IllegalMove, Invalid, NotFound
from corral.kernel.ids import parse_number
from corral.kernel.lease import stale_fence_error
from corral.kernel.pagination import LAST_ID, LAST_NUMBER
from corral.kernel.states import TransitionTable
from corral.kernel.text import encode_json

R = TypeVar("R")


class StatefulTable(Generic[R]):
    """A table whose rows have a state: its record type, transition table and columns.

    - `record`: the record type of a row; it has the fields `id` and `state`.
    - `columns`: the SELECT list of the record, if it is not just its fields.
    - `key`: the primary key column; `project`: the column with the project of a row.
    - `id_prefix`: the prefix of the public id, for tables whose key is a sequence number.
    - `make_record`: builds the record of a new row from its number, values and state, so that the
      row is not read back. For tables with so many inserts that this matters.
    - `extra_columns`: columns that transitions may set although the record has no field with their
      name.
    - `insert_expressions`: columns whose INSERT value is a SQL expression in terms of the given
      values (`:column`). PostgreSQL only, where concurrent writers could otherwise choose the same
      queue position; SQLite has one writer and inserts the values as given.
    """

    def __init__(
        self,
        record: type[R],
        transitions: TransitionTable,
        *,
        table: str,
        columns: str | None = None,
        key: str = "id",
        id_prefix: str | None = None,
        project: str | None = None,
        make_record: Callable[[int, Mapping[str, Any], Any], R] | None = None,
        extra_columns: Iterable[str] = (),
        insert_expressions: Mapping[str, str] | None = None,
    ) -> None:
        self.record = record
        self.transitions = transitions
        self.table = table
        self.columns = columns or columns_of(record)
        self.key = key
        self.id_prefix = id_prefix
        self.project = project
        self.make_record = make_record
        self.insert_expressions = insert_expressions or {}
        fields: Any = record
        self.writable = {*fields.__struct_fields__, *extra_columns} - {"id", "state", key}
        self._inserts: dict[tuple[str, ...], Query[R]] = {}
        self.by_key = Query(record, f"SELECT {self.columns} FROM {table} WHERE {key} = :key_")
        self.by_key_for_update = Query(record, f"{self.by_key.text} {{locked}}")

    def get(self, tx: Tx, key: str | int, *, for_update: bool = False) -> R:
        """Return the row with this key, or raise NotFound."""
        row = tx.first(self.by_key_for_update if for_update else self.by_key, key_=key)
        if row is None:
            raise self.not_found(key)
        return row

    def get_for_update(self, tx: Tx, key: str | int) -> R:
        """Return the row and lock it until this transaction ends."""
        tx.begin()
        return self.get(tx, key, for_update=True)

    def not_found(self, key: str | int) -> NotFound:
        id = f"{self.id_prefix}_{key}" if self.id_prefix else key
        return not_found(self.transitions.kind, id)

    def insert_query(
        self, values: Mapping[str, Any], on_conflict: str, verb: str, engine: Engine
    ) -> "Query[R]":
        """Return the INSERT of a new row with these columns."""
        shape = (engine, verb, on_conflict, *values)
        query = self._inserts.get(shape)
        if query is None:
            query = self._inserts[shape] = self._build_insert(values, on_conflict, verb, engine)
        return query

    def _build_insert(
        self, columns: Iterable[str], on_conflict: str, verb: str, engine: Engine
    ) -> "Query[R]":
        names = ", ".join(columns)
        values = ", ".join(self.insert_value(name, engine) for name in columns)
        conflict = f" ON CONFLICT {on_conflict} DO NOTHING" if on_conflict else ""
        insert = (
            f"INSERT INTO {self.table} ({names}, state)"
            f" VALUES ({values}, '{self.transitions.entries[verb]}'){conflict}"
        )
        if self.make_record is None:
            return _build_record_query(self, insert, engine)
        return _build_key_query(self, insert, engine, *self.insert_expressions)

    def insert_value(self, column: str, engine: Engine) -> str:
        """Return the SQL for the value of a column in the INSERT of a new row."""
        parameter = f":{column}"
        return parameter if engine == "sqlite" else self.insert_expressions.get(column, parameter)

    def newest_first(self, condition: str = "") -> Listing[R]:
        """Return the list of the rows that meet a condition, newest first.

        Ids and sequence numbers ascend with the creation time.
        """
        and_condition = f" AND {condition}" if condition else ""
        query = Query(
            self.record,
            f"SELECT {self.columns} FROM {self.table} WHERE {self.key} < :before{and_condition}"
            f" ORDER BY {self.key} DESC LIMIT :limit",
        )
        start = LAST_NUMBER if self.id_prefix else LAST_ID
        return Listing(query, start={"before": start}, key=self._sort_key)

    def _sort_key(self, record: Any) -> tuple[str | int]:
        return (parse_number(self.id_prefix, record.id) if self.id_prefix else record.id,)

    @property
    def public_id(self) -> str:
        """The SQL expression of the public id of a row."""
        return f"'{self.id_prefix}_' || {self.key}" if self.id_prefix else self.key


def create(
    tx: Tx,
    table: StatefulTable[R],
    values: dict[str, Any],
    *,
    verb: str | None = None,
    event_data: dict[str, Any] | None = None,
) -> R:
    """Insert a row with its event; by default with the table's create verb.

    `values` is modified.
    """
    record = create_if_absent(tx, table, values, on_conflict="", verb=verb, event_data=event_data)
    assert record is not None, "an INSERT without ON CONFLICT returns a row or raises"
    return record


def create_if_absent(
    tx: Tx,
    table: StatefulTable[R],
    values: dict[str, Any],
    *,
    on_conflict: str,
    verb: str | None = None,
    event_data: dict[str, Any] | None = None,
) -> R | None:
    """Insert a row with its event, unless a row with the same key exists.

    `on_conflict` is the ON CONFLICT target that names the key. On a conflict nothing is written and
    the result is None. `values` is modified.
    """
    verb = verb or table.transitions.create_verb
    query = table.insert_query(values, on_conflict, verb, tx.engine)
    make_record = table.make_record
    if make_record is None or not query.returns_key_only:
        return _write(tx, table, query, query.make, values, verb, event_data)
    state = table.transitions.entries[verb]

    def make(row: Row) -> R:
        if len(row) > 1:
            values.update(zip(table.insert_expressions, row[1:], strict=True))
        return make_record(row[0], values, state)

    return _write(tx, table, query, make, values, verb, event_data)


def create_numbered(
    tx: Tx,
    table: StatefulTable[R],
    rows: Sequence[dict[str, Any]],
    *,
    on_conflict: str = "",
    verb: str | None = None,
    event_data: Sequence[str | None] | None = None,
) -> list[int | None]:
    """Insert rows with the same columns into a table with `make_record`, in order.

    As `create`, but a row costs little more than its statements. `event_data` is the data of each
    event, as JSON. Returns the sequence number of each row, None where it conflicts. `rows` are
    modified.
    """
    if not rows:
        return []
    verb = verb or table.transitions.create_verb
    query = table.insert_query(rows[0], on_conflict, verb, tx.engine)
    assert query.returns_key_only, "only a table with `make_record` returns sequence numbers"
    data = event_data or [None] * len(rows)
    if tx.engine == "postgres":
        # In place: redaction changes these dictionaries, and the caller builds records from them.
        for row, row_data in zip(rows, data, strict=True):
            row |= _build_event_params(tx, verb, row_data)
    numbers = [result[0][0] if result else None for result in tx.execute_batch(query, rows)]
    if tx.engine == "sqlite":
        kind, project = table.transitions.kind, table.project
        events = [
            {
                "kind": kind,
                "verb": verb,
                "subject": f"{table.id_prefix}_{number}",
                "project_id": project and row.get(project),
                "data": row_data,
            }
            for number, row, row_data in zip(numbers, rows, data, strict=True)
            if number is not None
        ]
        tx.emit_batch(events)
    tx.has_events = True
    return numbers


def transition(
    tx: Tx,
    table: StatefulTable[R],
    verb: str,
    key: str | int,
    *,
    expected_fence: int | None = None,
    current: Any = None,
    event_data: dict[str, Any] | None = None,
    **columns: Any,
) -> R:
    """Apply a verb to a row, set `columns`, write the event, and return the new record.

    `expected_fence` is the fence that the caller was given with its lease. `current` is the record
    that the caller has: the new record is then built from it and not read back, so `columns` must
    contain everything that may have changed.

    Raises NotFound; IllegalMove with the current state and the verbs that it allows; or Held if
    another owner has taken the row over.
    """
    names = tuple(columns)
    query: Query[R] = _update_query(
        table, verb, names, expected_fence is not None, current is None, tx.engine
    )
    params = {**columns, "key_": key, "fence_": expected_fence}

    def update_current(_: Row) -> R:
        stored = {name: params[name] for name in names} if query.redactable_params else columns
        updated: R = replace(current, state=table.transitions[verb].to, **stored)
        return updated

    make = query.make if current is None else update_current
    record = _write(tx, table, query, make, params, verb, event_data)
    if record is None:
        raise _explain_failure(tx, table, verb, key, expected_fence)
    return record


def _write(
    tx: Tx,
    table: StatefulTable[R],
    query: Query[R],
    make: Callable[[Row], R],
    params: dict[str, Any],
    verb: str,
    event_data: dict[str, Any] | None,
) -> R | None:
    """Run the statement and write its event; None if it changed no row."""
    if tx.engine == "postgres":
        data = encode_json(event_data, "An event") if event_data else None
        params |= _build_event_params(tx, verb, data)
        rows = tx.execute(query, params)
        tx.has_events = tx.has_events or bool(rows)
        return make(rows[0]) if rows else None
    if tx.mode == "one":
        tx.begin()
    rows = tx.execute(query, params)
    if not rows:
        return None
    written: Any = make(rows[0])
    project_id = getattr(written, table.project) if table.project else None
    tx.emit(table.transitions.kind, verb, written.id, project_id=project_id, data=event_data)
    record: R = written
    return record


def _build_event_params(tx: Tx, verb: str, data: str | None = None) -> dict[str, Any]:
    """Return the parameters of a statement that inserts events with `data` as JSON.

    The trailing underscores keep them apart from the columns of the changed row.
    """
    return {
        "at_": tx.now,
        "actor_": tx.actor,
        "verb_": verb,
        "data_": data,
        "run_id_": tx.run_id,
    }


@cache
def _update_query(
    table: StatefulTable[R],
    verb: str,
    columns: tuple[str, ...],
    has_fence: bool,
    reads_back: bool,
    engine: Engine,
) -> Query[R]:
    if unknown := set(columns) - table.writable:
        raise TypeError(f"{table.record.__name__} has no fields {', '.join(sorted(unknown))}")
    sources, to = table.transitions[verb]
    assignments = "".join(f", {name} = :{name}" for name in columns)
    states = ", ".join(f"'{state}'" for state in sources)
    # Rejects a late write of an owner whose lease was taken over.
    fence = " AND fence = :fence_" if has_fence else ""
    # `state IN` is the transition table: from any other state the statement updates no row.
    update = (
        f"UPDATE {table.table} SET state = '{to}'{assignments}"
        f" WHERE {table.key} = :key_ AND state IN ({states}){fence}"
    )
    build = _build_record_query if reads_back else _build_key_query
    return build(table, update, engine)


def _build_record_query(table: StatefulTable[R], change: str, engine: Engine) -> Query[R]:
    """Return the change as a query for the new record; on PostgreSQL it also inserts the event."""
    if engine == "sqlite":
        return Query(table.record, f"{change} RETURNING {table.columns}")
    return Query(table.record, _add_event(table, change, table.columns))


def _build_key_query(
    table: StatefulTable[R], change: str, engine: Engine, *computed: str
) -> Query[R]:
    """Return the change as a query for the key and the `computed` columns only.

    The caller knows the other values, and reading them back would cost time.
    """
    columns = ", ".join((table.key, *computed))
    text = change if engine == "sqlite" else _add_event(table, change, columns)
    return Query(table.record, text, returns_key_only=True)


def _add_event(table: StatefulTable[R], change: str, columns: str) -> str:
    """Return PostgreSQL's statement for a change and its events.

    It makes the change, inserts an event for each changed row, and selects `columns` of these rows.
    """
    return f"""
        WITH written AS ({change} RETURNING *),
        noted AS (
            INSERT INTO events (at, actor, kind, verb, subject, project_id, data, run_id)
            SELECT :at_, :actor_, '{table.transitions.kind}', :verb_, {table.public_id},
                   {table.project or "CAST(NULL AS TEXT)"}, CAST(:data_ AS JSON),
                   CAST(:run_id_ AS TEXT)
            FROM written
        )
        SELECT {columns} FROM written
    """


def _explain_failure(
    tx: Tx, table: StatefulTable[R], verb: str, key: str | int, expected_fence: int | None
) -> CorralError:
    """Read the row to find out why a conditional UPDATE matched no row."""
    row: Any = table.get(tx, key)
    sources = table.transitions[verb].sources
    if expected_fence is not None and row.fence != expected_fence:
        return stale_fence_error(row.id, yours=expected_fence, current=row.fence, owner=row.owner)
    allowed = table.transitions.allowed_from(row.state)
    hint = f"Allowed: {', '.join(allowed)}." if allowed else "That state is final."
    return IllegalMove(
        f"Cannot {verb} {row.id}: it is {row.state}. {hint}",
        id=row.id,
        verb=verb,
        state=row.state,
        allowed=allowed,
        required=[str(source) for source in sources],
    )


# -- many rows at once: one or two statements, however many rows there are ------------------------


def create_many(
    tx: Tx,
    table: StatefulTable[R],
    rows: Sequence[Mapping[str, Any]],
    types: Mapping[str, str],
    *,
    on_conflict: str = "",
    **shared: Any,
) -> None:
    """Insert many rows in their initial state, each with its event.

    `types` maps the columns in which the rows differ to their type: text, integer or json.
    `shared` has the values that all rows have in common. `on_conflict` is an ON CONFLICT target:
    rows that conflict are skipped.
    """
    params = {**shared, "rows": encode_rows(rows)}
    query = _insert_many(table, tuple(types.items()), tuple(shared), on_conflict, tx.engine)
    _write_many(tx, table, query, params, table.transitions.create_verb)


def transition_many(
    tx: Tx, table: StatefulTable[R], verb: str, keys: Sequence[str | int], **columns: Any
) -> list[str]:
    """Apply a verb to many rows, each with its event, and return the ids of the changed rows.

    Rows whose state does not allow the verb are skipped.
    """
    if not keys:
        return []
    query = _update_many(table, verb, tuple(columns), tx.engine)
    return _write_many(tx, table, query, columns | {"keys_": encode_rows(keys)}, verb)


def encode_rows(rows: Sequence[Any]) -> str:
    """Encode rows or keys as one JSON parameter; the caller has validated their text."""
    return msgspec.json.encode(rows).decode()


def import_many(
    tx: Tx, table: StatefulTable[R], rows: Sequence[Mapping[str, Any]]
) -> list[str | None]:
    """Insert rows of another program, each in its own state, with their events.

    Returns their ids in the order of the rows; None for a row whose unique key is taken, which is
    not stored. Raises Invalid if the transition table does not list a state in `import_states`, and
    Conflict if a unique key is taken in a table whose key is a sequence number.
    """
    transitions = table.transitions
    for row in rows:
        if row["state"] not in transitions.import_states:
            raise Invalid(
                f"Cannot import a {transitions.kind} in the state {row['state']}. Allowed: "
                f"{', '.join(transitions.import_states)}."
            )
    tx.begin()
    returning = f"{table.key}, {table.public_id}, {table.project or 'NULL'}, state"
    statement = insert_statement(table.table, sorted(set().union(*rows)), returning, "anything")
    written = {row[0]: row[1:] for row in tx.run(statement, rows=encode_rows(rows))}
    if table.id_prefix and len(written) < len(rows):
        # A skipped row cannot be told from its neighbours, and would shift the ids of all rows
        # after it.
        raise Conflict(
            f"Cannot import {len(rows) - len(written)} of {len(rows)} rows of {table.table}: their "
            "unique keys are taken.",
            table=table.table,
        )
    # Sequence numbers are assigned in the order of the rows.
    keys = sorted(written) if table.id_prefix else [row[table.key] for row in rows]
    subjects = [written[key] for key in keys if key in written]
    params = _build_event_params(tx, "import") | {"rows": encode_rows(subjects)}
    tx.emit_with(_import_events(transitions.kind), params, len(subjects))
    return [written[key][0] if key in written else None for key in keys]


@cache
def _import_events(kind: str) -> Statement:
    # The event records the state, because the verb `import` does not imply it.
    return Statement(f"""
        INSERT INTO events (at, actor, kind, verb, subject, project_id, data, run_id)
        SELECT :at_, :actor_, '{kind}', :verb_, each.value ->> 0, each.value ->> 1,
               CAST('{{"state":"' || (each.value ->> 2) || '"}}' AS {{json}}),
               CAST(:run_id_ AS TEXT)
        FROM {{each_of_rows}}
    """)


def _write_many(
    tx: Tx, table: StatefulTable[R], query: Statement, params: dict[str, Any], verb: str
) -> list[str]:
    """Run the statement and write an event for each changed row; return the ids of these rows."""
    if tx.engine == "postgres":
        params |= _build_event_params(tx, verb)
        written = tx.execute(query, params)
        tx.has_events = tx.has_events or bool(written)
    else:
        tx.begin()
        written = tx.execute(query, params)
        events = _build_event_params(tx, verb) | {"rows": encode_rows(written)}
        tx.emit_with(_build_events_statement(table), events, len(written))
    return [row[0] for row in written]


@cache
def _build_events_statement(table: StatefulTable[R]) -> Statement:
    return Statement(f"""
        INSERT INTO events (at, actor, kind, verb, subject, project_id, run_id)
        SELECT :at_, :actor_, '{table.transitions.kind}', :verb_,
               each.value ->> 0, each.value ->> 1, CAST(:run_id_ AS TEXT)
        FROM {{each_of_rows}}
    """)


@cache
def _insert_many(
    table: StatefulTable[R],
    types: tuple[tuple[str, str], ...],
    shared: tuple[str, ...],
    on_conflict: str,
    engine: Engine,
) -> Statement:
    casts = {"text": "{}", "integer": "CAST({} AS {{integer}})", "json": "CAST({} AS {{json}})"}
    names = ", ".join([*(name for name, _ in types), *shared])
    values = [casts[type].format(f"each.value ->> '{name}'") for name, type in types]
    shared_values = [table.insert_value(name, engine) for name in shared]
    # An insert expression may refer to a column in which the rows differ.
    for (name, _), value in zip(types, values, strict=True):
        shared_values = [re.sub(rf":{name}\b", value, expression) for expression in shared_values]
    selected = ", ".join([*values, *shared_values])
    # WHERE TRUE: without a WHERE clause, SQLite parses ON CONFLICT as the ON of a join.
    conflict = f" WHERE TRUE ON CONFLICT {on_conflict} DO NOTHING" if on_conflict else ""
    return _build_ids_statement(
        table,
        f"INSERT INTO {table.table} ({names}, state)"
        f" SELECT {selected}, '{table.transitions.initial}' FROM {{each_of_rows}}{conflict}",
        engine,
    )


@cache
def _update_many(
    table: StatefulTable[R], verb: str, columns: tuple[str, ...], engine: Engine
) -> Statement:
    if unknown := set(columns) - table.writable:
        raise TypeError(f"{table.record.__name__} has no fields {', '.join(sorted(unknown))}")
    sources, to = table.transitions[verb]
    assignments = "".join(f", {name} = :{name}" for name in columns)
    states = ", ".join(f"'{state}'" for state in sources)
    has_key = "{is_numbered}" if table.id_prefix else "{is_listed}"
    return _build_ids_statement(
        table,
        f"UPDATE {table.table} SET state = '{to}'{assignments}"
        f" WHERE {table.key} {has_key} AND state IN ({states})",
        engine,
    )


def _build_ids_statement(table: StatefulTable[R], change: str, engine: Engine) -> Statement:
    """Return the change as a statement that yields the public ids of the changed rows.

    On SQLite it yields their projects too, from which the events are then written.
    """
    if engine == "sqlite":
        return Statement(f"{change} RETURNING {table.public_id}, {table.project or 'NULL'}")
    return Statement(_add_event(table, change, table.public_id))
