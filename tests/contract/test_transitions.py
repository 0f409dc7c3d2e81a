"""Transitions of all state tables, from all states, by all verbs, on both engines.

No concept is named here: a new state table is found and tested once it has a row in
`tests.support.state_rows`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from corral.api import Corral
from corral.db.bulk_transitions import create_many, import_many, transition_many
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Row
from corral.db.transitions import create, transition
from corral.kernel.errors import Conflict, Held, IllegalMove, Invalid, NotFound
from tests.support.grouped_cases import each_case
from tests.support.state_rows import NAMES, ROWS, has_lease, insert, state_tables, tied_to
from tests.support.store import list_events, rows, unchanged

TABLES = state_tables()
EACH_TABLE = each_case("table", TABLES.values(), ids=TABLES)
LEASED = {name: table for name, table in TABLES.items() if has_lease(table)}
EACH_LEASED_TABLE = each_case("table", LEASED.values(), ids=LEASED)

Table = StatefulTable[Any]


@contextmanager
def note_failure(verb: str, state: str = "any state") -> Iterator[None]:
    """Name the verb and the state in the failure, because one test covers a whole table."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"verb {verb}, from {state}")
        raise


def insert_row_in_state(store: Corral, table: Table, state: str) -> str | int:
    """Insert one more row in this state."""
    with store.transaction() as tx:
        return insert(tx, table, state)


def list_event_rows(store: Corral, subject: str, after: int = 0) -> list[Row]:
    return rows(
        store,
        "SELECT kind, verb FROM events WHERE subject = :subject AND seq > :after ORDER BY seq",
        subject=subject,
        after=after,
    )


def last_event(store: Corral) -> int:
    """Return the number of the last event.

    Events are compared from this number on, because rows of two tables may share a key: a run
    and its output.
    """
    ((number,),) = rows(store, "SELECT coalesce(max(seq), 0) FROM events")
    return int(str(number))


def read_state(store: Corral, table: Table, key: str | int) -> str:
    ((state,),) = rows(store, f"SELECT state FROM {table.table} WHERE {table.key} = :key", key=key)
    return str(state)


def move_row(store: Corral, table: Table, verb: str, key: str | int, **how: Any) -> Any:
    with store.transaction() as tx:
        return transition(tx, table, verb, key, **how, **tied_to(table, table.transitions[verb].to))


def test_every_state_table_has_a_sample_row() -> None:
    assert sorted(TABLES) == sorted(ROWS)


@EACH_TABLE
def test_verb_moves_from_its_source_states_with_one_event(store: Corral, table: Table) -> None:
    before = last_event(store)
    for verb, (sources, to) in table.transitions.verbs.items():
        for state in sources:
            with note_failure(verb, state):
                key = insert_row_in_state(store, table, state)
                moved = move_row(store, table, verb, key)
                assert moved.state is to
                assert read_state(store, table, key) == to
                assert list_event_rows(store, moved.id, before) == [(table.transitions.kind, verb)]


@EACH_TABLE
def test_verb_is_rejected_in_other_states_with_the_allowed_ones(
    store: Corral, table: Table
) -> None:
    keys = {state: insert_row_in_state(store, table, state) for state in table.transitions.states}
    illegal = [
        (verb, state, sources)
        for verb, (sources, _) in table.transitions.verbs.items()
        for state in {*table.transitions.states} - {*sources}
    ]
    with unchanged(store):
        for verb, state, sources in illegal:
            with note_failure(verb, state):
                with pytest.raises(IllegalMove) as caught:
                    move_row(store, table, verb, keys[state])
                assert caught.type is IllegalMove
                details = caught.value.details
                assert (details["verb"], details["state"]) == (verb, state)
                assert details["allowed"] == table.transitions.allowed_from(state)
                assert details["required"] == list(sources)
                for word in (verb, state, *details["allowed"]):
                    assert word in caught.value.message


@EACH_LEASED_TABLE
def test_stale_owner_is_rejected_in_every_state(store: Corral, table: Table) -> None:
    keys = {state: insert_row_in_state(store, table, state) for state in table.transitions.states}
    with unchanged(store):
        for verb in table.transitions.verbs:
            for state, key in keys.items():
                with note_failure(verb, state), pytest.raises(Held):
                    move_row(store, table, verb, key, expected_fence=ROWS[table.table]["fence"] - 1)


@EACH_LEASED_TABLE
def test_current_owner_moves_the_row(store: Corral, table: Table) -> None:
    for verb, (sources, to) in table.transitions.verbs.items():
        for state in sources:
            with note_failure(verb, state):
                key = insert_row_in_state(store, table, state)
                moved = move_row(store, table, verb, key, expected_fence=ROWS[table.table]["fence"])
                assert moved.state is to
                assert len(list_event_rows(store, moved.id)) == 1


@EACH_TABLE
def test_move_leaves_a_twin_row_unchanged(store: Corral, table: Table) -> None:
    twin_query = f"SELECT * FROM {table.table} WHERE {table.key} = :key"
    first = len(list_events(store)) + 1
    for number, (verb, (sources, _)) in enumerate(table.transitions.verbs.items(), first):
        with note_failure(verb, sources[0]):
            key = insert_row_in_state(store, table, sources[0])
            twin = insert_row_in_state(store, table, sources[0])
            before = rows(store, twin_query, key=twin)
            move_row(store, table, verb, key)
            assert rows(store, twin_query, key=twin) == before
            assert len(list_events(store)) == number


MOVED_TOGETHER = {name: table for name, table in TABLES.items() if table.id_prefix is None}
"""Tables that support `transition_many`: those without numbered ids."""


@each_case("table", MOVED_TOGETHER.values(), ids=MOVED_TOGETHER)
def test_moving_many_rows_equals_moving_each(store: Corral, table: Table) -> None:
    before = last_event(store)
    for verb, (sources, to) in table.transitions.verbs.items():
        with note_failure(verb):
            keys = {
                state: str(insert_row_in_state(store, table, state))
                for state in table.transitions.states
            }
            with store.transaction() as tx:
                moved = transition_many(tx, table, verb, list(keys.values()), **tied_to(table, to))
                assert transition_many(tx, table, verb, []) == []
            assert sorted(moved) == sorted(keys[state] for state in sources)
            for state, key in keys.items():
                assert read_state(store, table, key) == (to if state in sources else state)
                expected = [(table.transitions.kind, verb)] if state in sources else []
                assert list_event_rows(store, key, before) == expected


def test_creating_many_rows_writes_one_event_each(store: Corral) -> None:
    table = TABLES["projects"]
    shared = {"created_at": 1, "updated_at": 1}
    results = [{"id": f"prj_{n}", "dir": f"/{n}", "name": "ünï ' \\ ☃"} for n in range(3)]
    with store.transaction() as tx:
        create_many(tx, table, results, {"id": "text", "dir": "text", "name": "text"}, **shared)
    assert rows(store, "SELECT id, name, state, created_at FROM projects ORDER BY id") == [
        (row["id"], row["name"], "active", 1) for row in results
    ]
    assert rows(store, "SELECT verb, subject, actor, project_id FROM events ORDER BY seq") == [
        ("register", row["id"], "user:tester", row["id"]) for row in results
    ]


@EACH_TABLE
def test_move_of_a_missing_row_is_not_found_and_writes_nothing(store: Corral, table: Table) -> None:
    missing: str | int = 99 if table.id_prefix else "missing"
    with unchanged(store):
        for verb in table.transitions.verbs:
            with note_failure(verb), pytest.raises(NotFound):
                move_row(store, table, verb, missing)


@EACH_TABLE
def test_new_row_enters_its_initial_state_with_one_event(store: Corral, table: Table) -> None:
    for verb, initial in table.transitions.initial_states.items():
        values = {**ROWS[table.table], **tied_to(table, initial)}
        values |= {name: f"{values[name]}{verb}" for name in NAMES if name in values}
        with store.transaction() as tx:
            result: Any = create(tx, table, values, verb=verb, event_data={"why": "test"})
        assert result.state is initial
        assert list_event_rows(store, result.id) == [(table.transitions.kind, verb)]


@EACH_TABLE
def test_event_of_a_move_has_project_time_actor_and_note(store: Corral, table: Table) -> None:
    initial = table.transitions.initial
    verb = table.transitions.allowed_from(initial)[0]
    key = insert_row_in_state(store, table, initial)
    before = len(list_events(store))
    moved = move_row(store, table, verb, key, event_data={"why": "test"})
    project = getattr(moved, table.project) if table.project else None
    assert table.project is None or project is not None
    ((at, actor, project_id, data),) = rows(
        store, "SELECT at, actor, project_id, CAST(data AS TEXT) FROM events ORDER BY seq"
    )[before:]
    assert (actor, project_id, data) == ("user:tester", project, '{"why":"test"}')
    assert at == store.now()


@EACH_TABLE
def test_every_state_can_be_reached(table: Table) -> None:
    reached = {*table.transitions.initial_states.values()}
    while (
        grown := {move.to for move in table.transitions.verbs.values() if reached & {*move.sources}}
        - reached
    ):
        reached |= grown
    assert reached == {*table.transitions.states}


@EACH_TABLE
def test_every_verb_starts_and_ends_in_states_of_its_table(table: Table) -> None:
    states = {*table.transitions.states}
    for sources, to in table.transitions.verbs.values():
        assert sources
        assert {*sources, to} <= states
        assert len({*sources}) == len(sources)
    assert not {*table.transitions.initial_states} & {*table.transitions.verbs}


@EACH_TABLE
def test_check_constraint_in_the_catalogue_matches_the_enum(store: Corral, table: Table) -> None:
    assert _checked_states(store, table.table) == sorted(table.transitions.states)


@EACH_TABLE
def test_engine_rejects_an_unknown_state(store: Corral, table: Table) -> None:
    with (
        unchanged(store),
        pytest.raises(Exception, match=r"(?i)check constraint"),
        store.transaction() as tx,
    ):
        insert(tx, table, "no such state")


def _checked_states(store: Corral, table: str) -> list[str]:
    """Return the states that the engine's catalogue allows in `table.state`."""
    if store.db.engine == "sqlite":
        ((text,),) = rows(store, "SELECT sql FROM sqlite_schema WHERE name = :name", name=table)
        # SQLite has comparisons, see `translate_for_engine`; two states are a list.
        result = re.search(r"CHECK \(\(?state (?:=|IN) ([^)]*)\)", text)
        assert result is not None
        return sorted(re.findall(r"'(\w+)'", result[1]))
    definitions = [
        text
        for (text,) in rows(
            store,
            "SELECT pg_get_constraintdef(c.oid) FROM pg_constraint AS c"
            " JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attname = 'state'"
            " WHERE c.conrelid = CAST(CAST(:name AS TEXT) AS REGCLASS) AND c.contype = 'c'"
            " AND c.conkey = ARRAY[a.attnum]",
            name=table,
        )
    ]
    (definition,) = definitions
    return sorted(re.findall(r"'(\w+)'", definition))


IMPORTED = [
    pytest.param(table, id=name)
    for name, table in TABLES.items()
    if table.transitions.import_states
]


def foreign_row(table: Table, state: str, nth: int) -> dict[str, Any]:
    values = {**ROWS[table.table], **tied_to(table, state), "state": state}
    return values | {name: f"{values[name]}{nth}" for name in NAMES if name in values}


@each_case("table", IMPORTED)
def test_imported_rows_are_created_with_one_event_each(store: Corral, table: Table) -> None:
    states = table.transitions.import_states
    values = [foreign_row(table, state, nth) for nth, state in enumerate(states)]
    with store.transaction() as tx:
        ids = import_many(tx, table, values)
    for id, state in zip(ids, states, strict=True):
        key = id and (int(id.partition("_")[2]) if table.id_prefix else id)
        result = rows(store, f"SELECT state FROM {table.table} WHERE {table.key} = :key", key=key)
        assert result == [(str(state),)]
        assert list_event_rows(store, id or "") == [(table.transitions.kind, "import")]


@each_case("table", IMPORTED)
def test_imported_rows_are_rejected_in_other_states(store: Corral, table: Table) -> None:
    with unchanged(store):
        for state in {*table.transitions.states} - {*table.transitions.import_states}:
            with pytest.raises(Invalid), store.transaction() as tx:
                import_many(tx, table, [foreign_row(table, state, 1)])


def test_import_of_a_numbered_row_with_a_taken_key_is_rejected(store: Corral) -> None:
    """The ids of the other rows could not be assigned, because a skipped row has no number."""
    letters = TABLES["letters"]
    values = [foreign_row(letters, "done", nth) | {"key": key} for nth, key in enumerate("aab")]
    with unchanged(store), pytest.raises(Conflict), store.transaction() as tx:
        import_many(tx, letters, values)
