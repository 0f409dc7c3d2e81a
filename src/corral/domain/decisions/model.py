"""A decision is a choice that somebody recorded; a proposed one waits to be confirmed.

Silence confirms nothing: at its deadline a proposed decision is rejected, or dismissed if that was
chosen, and whoever proposed it is told.
"""

from enum import StrEnum

import msgspec

from corral.kernel.states import Moves, move


class DecisionState(StrEnum):
    RECORDED = "recorded"  # it stands, and may still be judged
    PROPOSED = "proposed"  # nothing may be done on it until it is confirmed
    CONFIRMED = "confirmed"  # somebody said yes
    REJECTED = "rejected"  # somebody said no, or nobody said yes in time
    DISMISSED = "dismissed"  # nobody will judge it


S = DecisionState
_JUDGED = (S.RECORDED, S.PROPOSED)
MOVES = Moves(
    "decision",
    DecisionState,
    begin="record",
    initial=S.RECORDED,
    imports=(S.RECORDED, S.CONFIRMED, S.REJECTED, S.DISMISSED),
    verbs={
        "propose": move(S.RECORDED, to=S.PROPOSED),
        "confirm": move(*_JUDGED, to=S.CONFIRMED),
        "reject": move(*_JUDGED, to=S.REJECTED),
        "dismiss": move(*_JUDGED, to=S.DISMISSED),
    },
)

VERDICTS = ("confirm", "reject", "dismiss")


class Decision(msgspec.Struct, frozen=True):
    id: str
    project_id: str | None
    author: str
    run_id: str | None
    key: str | None
    category: str
    title: str
    rationale: str
    alternatives: list[str]
    answerers: list[str]
    at_deadline: str
    state: DecisionState
    decided_by: str | None
    reason: str | None
    deadline_at: int | None
    created_at: int
    ended_at: int | None
