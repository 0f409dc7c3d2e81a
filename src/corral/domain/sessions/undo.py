"""Undo of turns.

Turns are append-only, so undoing one appends a system turn that names it. Numbers and cursors stay
valid, and readers that follow the session see the undo.
"""

from corral.db.tx import Tx
from corral.domain.sessions import lineage
from corral.domain.sessions.lookup import get_open
from corral.domain.sessions.model import NewTurn, Session, Turn, find_undone_number
from corral.domain.sessions.ops import append_many

_BATCH_SIZE = 20


def undo_last_turn(tx: Tx, session: Session | str) -> Turn | None:
    """Undo the latest turn that is not undone, since the last clear; None when there is none.

    Returns the undone turn, which stays readable. Serialized with other appends.
    """
    current = get_open(tx, session)
    tx.serialize(f"turns:{current.id}")
    turn = _find_latest(tx, get_open(tx, current))
    if turn is not None:
        text = f"Turn {turn.number} was undone."
        append_many(tx, current, [NewTurn("system", text, meta={"undoes": turn.number})])
    return turn


def _find_latest(tx: Tx, session: Session) -> Turn | None:
    undone: set[int] = set()
    before = session.turns + 1
    while before > session.cleared_turn + 1:
        for turn in lineage.list_newest(tx, session, before, _BATCH_SIZE):
            before = turn.number
            if turn.number <= session.cleared_turn:
                return None
            if (number := find_undone_number(turn)) is not None:
                undone.add(number)
            elif turn.number not in undone:
                return turn
    return None
