"""A decision is a recorded choice. A proposed decision waits for confirmation.

A proposed decision is never confirmed by default: at its deadline it is rejected, or dismissed if
the author chose that, and the author is notified.
"""

from enum import StrEnum

import msgspec

from corral.kernel.states import TransitionTable, allow


class DecisionState(StrEnum):
    RECORDED = "recorded"  # in force; may still be confirmed, rejected or dismissed
    PROPOSED = "proposed"  # must not be acted on until it is confirmed
    CONFIRMED = "confirmed"  # approved
    REJECTED = "rejected"  # rejected, or not confirmed in time
    DISMISSED = "dismissed"  # closed without a verdict


_PENDING = (DecisionState.RECORDED, DecisionState.PROPOSED)
TRANSITIONS = TransitionTable(
    "decision",
    DecisionState,
    create_verb="record",
    initial=DecisionState.RECORDED,
    import_states=(
        DecisionState.RECORDED,
        DecisionState.CONFIRMED,
        DecisionState.REJECTED,
        DecisionState.DISMISSED,
    ),
    verbs={
        "propose": allow(DecisionState.RECORDED, to=DecisionState.PROPOSED),
        "confirm": allow(*_PENDING, to=DecisionState.CONFIRMED),
        "reject": allow(*_PENDING, to=DecisionState.REJECTED),
        "dismiss": allow(*_PENDING, to=DecisionState.DISMISSED),
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
    deadline_outcome: str
    state: DecisionState
    decided_by: str | None
    reason: str | None
    deadline_at: int | None
    created_at: int
    ended_at: int | None
