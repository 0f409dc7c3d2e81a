"""Create rows with a state, and change their state.

A creation or a transition is one conditional statement and its event, in one transaction. The
condition is compiled from the type's `TransitionTable`, so an illegal transition updates no row. On
PostgreSQL the statement and its event are one round trip (a data-modifying WITH). SQLite has no
such syntax and no round trips, so they are two statements there.

`bulk_transitions` does the same for many rows. No other module writes a `state` column.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from msgspec.structs import replace

from corral.db.dialect import Engine
from corral.db.stateful_table import StatefulTable, build_event_params
from corral.db.statement import Query, Row
from corral.db.tx import Tx
from corral.kernel.errors import CorralError, IllegalMove
from corral.kernel.lease import stale_fence_error
from corral.kernel.validation import encode_json

R = TypeVar("R")


def create(
    tx: Tx,
    table: StatefulTable[R],
    values: Mapping[str, Any],
    *,
    verb: str | None = None,
    event_data: dict[str, Any] | None = None,
) -> R:
    """Insert a row with its event; by default with the table's create verb."""
    record = create_if_absent(tx, table, values, on_conflict="", verb=verb, event_data=event_data)
    assert record is not None, "an INSERT without ON CONFLICT returns a row or raises"
    return record


def create_if_absent(
    tx: Tx,
    table: StatefulTable[R],
    values: Mapping[str, Any],
    *,
    on_conflict: str,
    verb: str | None = None,
    event_data: dict[str, Any] | None = None,
) -> R | None:
    """Insert a row with its event, unless a row with the same key exists.

    `on_conflict` is the ON CONFLICT target that names the key. On a conflict nothing is written and
    the result is None.
    """
    create_verb = verb or table.transitions.create_verb
    query = table.insert_query(values, on_conflict, create_verb, tx.engine)
    params = {**values}  # a copy: redaction changes it, and the event adds its parameters

    def make_new(row: Row) -> R:
        return table.build_new_record(row, params, create_verb)

    make = make_new if query.returns_key_only else query.make
    return _write(tx, table, query, make, params, create_verb, event_data)


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
        params |= build_event_params(tx, verb, data)
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


@cache
def _update_query(
    table: StatefulTable[R],
    verb: str,
    columns: tuple[str, ...],
    has_fence: bool,
    reads_back: bool,
    engine: Engine,
) -> Query[R]:
    # The fence rejects a late write of an owner whose lease was taken over.
    fence = " AND fence = :fence_" if has_fence else ""
    update = table.build_update(verb, columns, f"{table.key} = :key_{fence}")
    build = table.build_record_query if reads_back else table.build_key_query
    return build(update, engine)


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
