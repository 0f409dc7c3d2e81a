"""The same as `moves` for many rows at once: a statement or two, however many there are."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from corral.db.bulk_insert import insertion
from corral.db.dialect import Engine
from corral.db.statement import Statement
from corral.db.transitions import StateTable, noting
from corral.db.tx import Tx
from corral.kernel.errors import Invalid

R = TypeVar("R")


def create_many(
    tx: Tx,
    table: StateTable[R],
    rows: Sequence[Mapping[str, Any]],
    kinds: Mapping[str, str],
    *,
    unless: str = "",
    **shared: Any,
) -> None:
    """Insert many rows in their initial state, each with its event, in a statement or two.

    `kinds` names the columns in which they differ, each with its type: text, integer or json, as
    that the values stand in `rows`; `shared` is what all have alike. `unless` is an ON CONFLICT
    target: what is there already stays as it is.
    """
    given = {**shared, "rows": encode_rows(rows)}
    query = _insert_many(table, tuple(kinds.items()), tuple(shared), unless, tx.engine)
    _write_many(tx, table, query, given, table.moves.begin)


def move_many(
    tx: Tx, table: StateTable[R], verb: str, keys: Sequence[str | int], **columns: Any
) -> list[str]:
    """Take many rows along a legal move, each with its event; those in another state stay.

    Gives back the ids of those that moved.
    """
    if not keys:
        return []
    query = _update_many(table, verb, tuple(columns), tx.engine)
    return _write_many(tx, table, query, columns | {"keys_": encode_rows(keys)}, verb)


def encode_rows(rows: Sequence[Any]) -> str:
    """Many rows or keys as the one parameter of a statement; their text was checked before."""
    return msgspec.json.encode(rows).decode()


def import_many(
    tx: Tx, table: StateTable[R], rows: Sequence[Mapping[str, Any]]
) -> list[str | None]:
    """Insert rows of another program, each in the state that it names, with their events.

    Only in states that the type's table has for that. Gives back their ids in the order of the
    rows; None for one whose place is taken, of which nothing is kept.
    """
    moves = table.moves
    for row in rows:
        if row["state"] not in moves.imports:
            raise Invalid(
                f"No {moves.kind} comes in as {row['state']}; it may be {', '.join(moves.imports)}."
            )
    tx.several()
    returned = f"{table.key}, {table.public_id}, {table.project or 'NULL'}, state"
    statement = insertion(table.table, sorted(set().union(*rows)), returned, "anything")
    written = {row[0]: row[1:] for row in tx.run(statement, rows=encode_rows(rows))}
    # Numbers are given in the order of the rows, and nothing takes the place of a numbered one.
    keys = sorted(written) if table.number_of else [row[table.key] for row in rows]
    noted = [written[key] for key in keys if key in written]
    events = {"at": tx.now, "actor": tx.actor, "origin_id": tx.origin, "rows": encode_rows(noted)}
    tx.note_all(_note_imports(moves.kind), events, len(noted))
    return [written[key][0] if key in written else None for key in keys]


@cache
def _note_imports(kind: str) -> Statement:
    # The state is told too, since the verb alone does not say it.
    return Statement(f"""
        INSERT INTO events (at, actor, kind, verb, subject, project_id, data, run_id)
        SELECT :at, :actor, '{kind}', 'import', each.value ->> 0, each.value ->> 1,
               CAST('{{"state":"' || (each.value ->> 2) || '"}}' AS {{json}}),
               CAST(:origin_id AS TEXT)
        FROM {{each_of_rows}}
    """)


def _write_many(
    tx: Tx, table: StateTable[R], query: Statement, params: dict[str, Any], verb: str
) -> list[str]:
    if tx.engine == "postgres":
        params |= {"at_": tx.now, "actor_": tx.actor, "verb_": verb, "data_": None}
        params["origin_id"] = tx.origin
        written = tx.execute(query, params)
        tx.noted = tx.noted or bool(written)
    else:
        tx.several()
        written = tx.execute(query, params)
        events = {"at": tx.now, "actor": tx.actor, "origin_id": tx.origin, "verb": verb}
        events["rows"] = encode_rows(written)
        tx.note_all(_note_many(table), events, len(written))
    return [row[0] for row in written]


@cache
def _note_many(table: StateTable[R]) -> Statement:
    return Statement(f"""
        INSERT INTO events (at, actor, kind, verb, subject, project_id, run_id)
        SELECT :at, :actor, '{table.moves.kind}', :verb, each.value ->> 0, each.value ->> 1,
               CAST(:origin_id AS TEXT)
        FROM {{each_of_rows}}
    """)


@cache
def _insert_many(
    table: StateTable[R],
    kinds: tuple[tuple[str, str], ...],
    shared: tuple[str, ...],
    unless: str,
    engine: Engine,
) -> Statement:
    casts = {"text": "{}", "integer": "CAST({} AS {{integer}})", "json": "CAST({} AS {{json}})"}
    names = ", ".join([*(name for name, _ in kinds), *shared])
    values = [casts[kind].format(f"each.value ->> '{name}'") for name, kind in kinds]
    alike = [table.value_of(name, engine) for name in shared]
    for (name, _), value in zip(kinds, values, strict=True):
        alike = [re.sub(rf":{name}\b", value, expression) for expression in alike]
    listed = ", ".join([*values, *alike])
    # Without a WHERE, SQLite would take the ON of the conflict for that of a join.
    conflict = f" WHERE TRUE ON CONFLICT {unless} DO NOTHING" if unless else ""
    return _many_with_events(
        table,
        f"INSERT INTO {table.table} ({names}, state)"
        f" SELECT {listed}, '{table.moves.initial}' FROM {{each_of_rows}}{conflict}",
        engine,
    )


@cache
def _update_many(
    table: StateTable[R], verb: str, columns: tuple[str, ...], engine: Engine
) -> Statement:
    sources, to = table.moves[verb]
    changes = "".join(f", {name} = :{name}" for name in columns)
    states = ", ".join(f"'{state}'" for state in sources)
    listed = "{is_numbered}" if table.number_of else "{is_listed}"
    return _many_with_events(
        table,
        f"UPDATE {table.table} SET state = '{to}'{changes}"
        f" WHERE {table.key} {listed} AND state IN ({states})",
        engine,
    )


def _many_with_events(table: StateTable[R], change: str, engine: Engine) -> Statement:
    if engine == "sqlite":
        return Statement(f"{change} RETURNING {table.public_id}, {table.project or 'NULL'}")
    return Statement(noting(table, change, table.public_id))
