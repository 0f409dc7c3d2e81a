"""What still stands of a session: turns since it was last cleared, less those that were taken back.

Turns are only ever added, so taking one back is a turn too: of the system, and it says which one.
Numbers and cursors stay true, and whoever reads on sees what happened.
"""

from corral.db.tx import Tx
from corral.domain.sessions import lineage
from corral.domain.sessions.model import NewTurn, Session, Turn, taken_back_by
from corral.domain.sessions.ops import append_many, open_one

_PIECE = 20


def take_back(tx: Tx, session: Session | str) -> Turn | None:
    """Take back the latest turn that stands; gives it back, or None when none does.

    It stays readable. Another one that is said at the same moment comes before or behind both.
    """
    found = open_one(tx, session)
    tx.serialize(f"turns:{found.id}")
    latest = _latest(tx, open_one(tx, found))
    if latest is not None:
        words = f"Turn {latest.number} was taken back."
        append_many(tx, found, [NewTurn("system", words, meta={"takes_back": latest.number})])
    return latest


def _latest(tx: Tx, session: Session) -> Turn | None:
    gone: set[int] = set()
    before = session.turns + 1
    while before > session.cleared_turn + 1:
        for turn in lineage.newest(tx, session, before, _PIECE):
            before = turn.number
            if turn.number <= session.cleared_turn:
                return None
            if (number := taken_back_by(turn)) is not None:
                gone.add(number)
            elif turn.number not in gone:
                return turn
    return None
