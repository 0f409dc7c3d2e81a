"""Invariants that hold for every store at any time, also after an interruption.

They read the tables directly, without the code under test.
"""

import json
from collections.abc import Iterable
from typing import Any

from corral.api import Corral
from corral.db.schema import list_nonempty_tables
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Row, Statement
from corral.db.tx import Tx
from corral.db.types import Finding, no_progress
from corral.kernel.clock import utc_date
from corral.services.store import verify
from corral.services.store.declarations import find_declarations
from tests.support.run_factories import NO_FOLDER

EventRows = list[Row]
"""The verb, subject, data and project of events, in the order in which they were written."""


def check_store(store: Corral, *, schema: bool = False) -> None:
    """Check every invariant that does not depend on how the store was used.

    With `schema`, also compare the schema with the migrations. Only opening, migrating, restoring
    and moving a store can change its schema, and on PostgreSQL the comparison is the largest part.
    """
    database = store._database
    findings = store.db.verify() if schema else database.check(thorough=True)
    if not schema:
        findings += verify.check_files(database, no_progress)
    _require_sound(findings)
    check_rows(store)


def check_rows(store: Corral) -> None:
    """Check the invariants that concern rows only, not pages and files."""
    _require_sound(verify.check_rows(store._database, no_progress))
    store._database.read(_check_rows)


def _require_sound(findings: Iterable[Finding]) -> None:
    # Tests use made-up run and session ids (only a warning), and runs without a process, whose
    # output is in no folder.
    broken = [
        finding
        for finding in findings
        if finding.state == "broken" and NO_FOLDER not in finding.message
    ]
    assert not broken, broken


def _check_rows(tx: Tx) -> None:
    filled = list_nonempty_tables(tx)
    events_by_kind: dict[str, EventRows] = {}
    for kind, *event in _rows(
        tx, "SELECT kind, verb, subject, data, project_id FROM events ORDER BY seq"
    ):
        events_by_kind.setdefault(kind, []).append(tuple(event))
    deleted = {
        subject for verb, subject, *_ in events_by_kind.get("project", []) if verb == "delete"
    }
    for table in find_declarations(StatefulTable).values():
        if table.table in filled or table.transitions.kind in events_by_kind:
            _check_states(tx, table, events_by_kind.get(table.transitions.kind, []), deleted)
    _check_settings(tx)
    if {"charges", "usage_totals"} & filled:
        _check_money(tx)
    if {"turns", "sessions"} & filled:
        _check_turns(tx)
    if "output_chunks" in filled:
        _check_outputs(tx)


def _check_turns(tx: Tx) -> None:
    """A session's turns are numbered from its inherited turns up to its count."""
    numbers: dict[str, list[int]] = {}
    for id, number in _rows(tx, "SELECT session_id, number FROM turns ORDER BY session_id, number"):
        numbers.setdefault(id, []).append(number)
    numbers.pop("", None)
    for id, parent_turn, count in _rows(tx, "SELECT id, parent_turn, turns FROM sessions"):
        assert numbers.pop(id, []) == list(range(parent_turn + 1, count + 1)), id
    assert not numbers, "turns of no session"


def _check_outputs(tx: Tx) -> None:
    """A sealed output is complete, and a deleted one is gone."""
    for run_id, state, expected, result in _rows(
        tx,
        """SELECT outputs.run_id, state, sealed_bytes, sum(length(data)) FROM outputs
        JOIN output_chunks ON output_chunks.run_id = outputs.run_id AND stream = 'output'
        GROUP BY outputs.run_id, state, sealed_bytes""",
    ):
        assert state != "deleted", f"{run_id} was deleted and has chunks"
        assert state != "sealed" or result == expected, f"{run_id}: {result} of {expected} bytes"


def _check_states(tx: Tx, table: StatefulTable[Any], events: EventRows, deleted: set[str]) -> None:
    """Replaying the events of each row through the transition table gives its state."""
    moves = table.transitions
    reached: dict[str, str] = {}
    projects: dict[str, str] = {}
    for verb, subject, data, project in events:
        projects[subject] = project
        if verb == "import":
            assert subject not in reached, f"{subject} was created twice"
            reached[subject] = json.loads(data)["state"]
        elif verb in moves.initial_states:
            assert subject not in reached, f"{subject} was created twice"
            reached[subject] = moves.initial_states[verb]
        elif verb in moves.verbs:
            sources, to = moves[verb]
            assert reached[subject] in sources, f"{subject}: {verb} from {reached[subject]}"
            reached[subject] = to
        elif verb in ("delete", "delete_record", "forget"):
            del reached[subject]
    result = dict(_rows(tx, f"SELECT {table.public_id}, state FROM {table.table}"))
    for subject in reached.keys() - result.keys():
        if projects[subject] in deleted:
            del reached[subject]  # deleted together with its project
    assert result == reached, "rows and events disagree"


def _check_settings(tx: Tx) -> None:
    """The last event of each setting has its current value."""
    values: dict[str, Any] = {}
    for kind, verb, subject, data in _rows(
        tx,
        "SELECT kind, verb, subject, data FROM events WHERE kind IN ('setting', 'project') "
        "ORDER BY seq",
    ):
        if (kind, verb) == ("setting", "set"):
            values[subject] = json.loads(data)["value"]
        elif (kind, verb) == ("setting", "unset"):
            del values[subject]
        elif (kind, verb) == ("project", "delete"):
            prefix = f"project:{subject}/"
            values = {name: value for name, value in values.items() if not name.startswith(prefix)}
    result = {
        f"{scope}/{name}": json.loads(value)
        for scope, name, value in _rows(tx, "SELECT scope, name, value FROM settings")
    }
    assert result == values, "settings and their events disagree"


_SUMMED = ("input", "output", "cache_read", "cache_write", "reasoning")


def _check_money(tx: Tx) -> None:
    """The totals equal the charges."""
    expected: dict[tuple[str, str], list[int]] = {}
    columns = ", ".join(_SUMMED)
    charges = _rows(
        tx,
        f"SELECT run_id, session_id, project_id, agent_id, model, at, cost_micros, {columns}"
        " FROM charges",
    )
    for run, session, project, agent, model, at, cost, *tokens in charges:
        figures = [1, int(cost is None), cost or 0, *tokens]
        keys = [("all", ""), ("all", utc_date(at))]
        for kind, id in (("project", project), ("agent", agent), ("model", model)):
            keys += [(f"{kind}:{id}", ""), (f"{kind}:{id}", utc_date(at))] if id else []
        keys += [(f"{kind}:{id}", "") for kind, id in (("run", run), ("session", session)) if id]
        for key in keys:
            before = expected.get(key, [0] * len(figures))
            expected[key] = [a + b for a, b in zip(before, figures, strict=True)]
    values = {
        (scope, day): figures
        for scope, day, *figures in _rows(
            tx, f"SELECT scope, day, charges, unpriced, cost_micros, {columns} FROM usage_totals"
        )
    }
    if values.get(("all", ""), [0])[0] == len(charges):
        assert values == expected, "charges and totals disagree"
        return
    # Some charges were pruned; totals outlive them.
    for key, figures in expected.items():
        assert all(a >= b for a, b in zip(values[key], figures, strict=True)), key


def _rows(tx: Tx, query: str) -> list[Row]:
    return tx.run(Statement(query))
