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
    """A recorded choice with its reasons; a proposed one waits for confirmation."""

    id: str
    project_id: str | None
    author: str
    """The mailbox of its author, which gets the outcome."""
    run_id: str | None
    """The run that decided; None: not known."""
    key: str | None
    """The idempotency key, unique per author."""
    category: str
    """architecture, dependency, style, testing or another word."""
    title: str
    """The decision in one line."""
    rationale: str
    """The reasons for it."""
    alternatives: list[str]
    """The alternatives that were rejected."""
    answerers: list[str]
    """The mailboxes that may confirm, reject or dismiss it; empty: any person."""
    deadline_outcome: str
    """What happens without confirmation in time: reject or dismiss."""
    state: DecisionState
    decided_by: str | None
    """Who confirmed, rejected or dismissed it; None with `ended_at`: its deadline passed."""
    reason: str | None
    """The reason of the outcome."""
    deadline_at: int | None
    """From this time on, it cannot be confirmed; None: it was never proposed."""
    created_at: int
    ended_at: int | None
