"""Create rows with a state, and change their state: many rows by few statements.

The guarantees are those of `transitions`: each row gets its event in the same transaction, and a
row whose state does not allow the verb is not changed.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from corral.db.bulk_insert import insert_statement
from corral.db.dialect import Engine
from corral.db.stateful_table import StatefulTable, build_event_params
from corral.db.statement import Statement, encode_rows
from corral.db.tx import Tx
from corral.kernel.errors import Conflict, Invalid

R = TypeVar("R")


def create_numbered(
    tx: Tx,
    table: StatefulTable[R],
    rows: Sequence[Mapping[str, Any]],
    *,
    on_conflict: str = "",
    verb: str | None = None,
    event_data: Sequence[str | None] | None = None,
) -> list[R | None]:
    """Insert rows with the same columns into a table with `make_record`, in order.

    As `create`, but a row costs little more than its statements. `event_data` is the data of each
    event, as JSON. Returns the record of each row, None where it conflicts.
    """
    if not rows:
        return []
    verb = verb or table.transitions.create_verb
    query = table.insert_query(rows[0], on_conflict, verb, tx.engine)
    assert query.returns_key_only, "the rows of a table without `make_record` are read back"
    data = event_data or [None] * len(rows)
    # Copies: redaction changes them, and the records are built from them.
    param_sets: list[dict[str, Any]] = [{**row} for row in rows]
    if tx.engine == "postgres":
        for params, row_data in zip(param_sets, data, strict=True):
            params |= build_event_params(tx, verb, row_data)
    results = tx.execute_batch(query, param_sets)
    records = [
        table.build_new_record(result[0], params, verb) if result else None
        for result, params in zip(results, param_sets, strict=True)
    ]
    if tx.engine == "sqlite":
        kind, project = table.transitions.kind, table.project
        events = [
            {
                "kind": kind,
                "verb": verb,
                "subject": f"{table.id_prefix}_{result[0][0]}",
                "project_id": project and params.get(project),
                "data": row_data,
            }
            for result, params, row_data in zip(results, param_sets, data, strict=True)
            if result
        ]
        tx.emit_batch(events)
    tx.has_events = True
    return records


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
    params = build_event_params(tx, "import") | {"rows": encode_rows(subjects)}
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
        params |= build_event_params(tx, verb)
        written = tx.execute(query, params)
        tx.has_events = tx.has_events or bool(written)
    else:
        tx.begin()
        written = tx.execute(query, params)
        events = build_event_params(tx, verb) | {"rows": encode_rows(written)}
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
    return table.build_ids_statement(
        f"INSERT INTO {table.table} ({names}, state)"
        f" SELECT {selected}, '{table.transitions.initial}' FROM {{each_of_rows}}{conflict}",
        engine,
    )


@cache
def _update_many(
    table: StatefulTable[R], verb: str, columns: tuple[str, ...], engine: Engine
) -> Statement:
    has_key = "{is_numbered}" if table.id_prefix else "{is_listed}"
    update = table.build_update(verb, columns, f"{table.key} {has_key}")
    return table.build_ids_statement(update, engine)
