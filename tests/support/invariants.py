"""What holds for every store at every moment, whatever was done to it and wherever it was stopped.

Read from the tables, past the rooms' own code, because that is what is being checked.
"""

import json
from typing import Any

from corral.db.moves import StateTable
from corral.db.statement import Row, Statement
from corral.db.tx import Tx
from corral.library import Corral
from corral.library.catalogue import declared


def check_store(store: Corral) -> None:
    """Every invariant that needs to know nothing of what the store was used for."""
    broken = [finding for finding in store.db.verify() if finding.state != "ok"]
    assert not broken, broken
    store._database.read(_check_rows)


def _check_rows(tx: Tx) -> None:
    for table in declared(StateTable).values():
        _check_states(tx, table)
    _check_settings(tx)


def _check_states(tx: Tx, table: StateTable[Any]) -> None:
    """The events of each row, followed along the table of moves, lead to the state it is in."""
    moves = table.moves
    reached: dict[str, str] = {}
    for verb, subject in _rows(
        tx, f"SELECT verb, subject FROM events WHERE kind = '{moves.kind}' ORDER BY seq"
    ):
        if verb == moves.begin:
            assert subject not in reached, f"{subject} was made twice"
            reached[subject] = moves.initial
        elif verb in moves.verbs:
            sources, to = moves[verb]
            assert reached[subject] in sources, f"{subject}: {verb} from {reached[subject]}"
            reached[subject] = to
        elif verb == "delete":
            del reached[subject]
    found = dict(_rows(tx, f"SELECT {table.public_id}, state FROM {table.table}"))
    assert found == reached, "rows and events disagree"


def _check_settings(tx: Tx) -> None:
    """The last event of each setting names the value that it has."""
    told: dict[str, Any] = {}
    for kind, verb, subject, data in _rows(
        tx,
        "SELECT kind, verb, subject, data FROM events WHERE kind IN ('setting', 'project') "
        "ORDER BY seq",
    ):
        if (kind, verb) == ("setting", "set"):
            told[subject] = json.loads(data)["value"]
        elif (kind, verb) == ("setting", "unset"):
            del told[subject]
        elif (kind, verb) == ("project", "delete"):
            gone = f"project:{subject}/"
            told = {name: value for name, value in told.items() if not name.startswith(gone)}
    found = {
        f"{scope}/{name}": json.loads(value)
        for scope, name, value in _rows(tx, "SELECT scope, name, value FROM settings")
    }
    assert found == told, "settings and their events disagree"


def _rows(tx: Tx, query: str) -> list[Row]:
    return tx.run(Statement(query))
