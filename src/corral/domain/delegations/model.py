"""A delegation is a task or a text that one handed to an agent, with its result.

Both sides are told by letters: the agent when it is handed over or taken back, whoever handed it
over when it has come to its end, in whatever way.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import Moves, move


class DelegationState(StrEnum):
    ACTIVE = "active"  # handed over; no result yet
    DONE = "done"  # the result was handed back
    FAILED = "failed"  # it could not be done, with a reason
    CANCELLED = "cancelled"  # taken back
    EXPIRED = "expired"  # no result came in time


S = DelegationState
MOVES = Moves(
    "delegation",
    DelegationState,
    begin="delegate",
    initial=S.ACTIVE,
    imports=(S.DONE, S.FAILED, S.CANCELLED, S.EXPIRED),
    verbs={
        "finish": move(S.ACTIVE, to=S.DONE),
        "fail": move(S.ACTIVE, to=S.FAILED),
        "cancel": move(S.ACTIVE, to=S.CANCELLED),
        "expire": move(S.ACTIVE, to=S.EXPIRED),
    },
)


class Delegation(msgspec.Struct, frozen=True):
    id: str
    project_id: str | None
    state: DelegationState
    from_mailbox: str
    to_agent_id: str
    to_mailbox: str
    parent_id: str | None
    task_id: str | None
    text: str
    context: str | None
    result: Any
    reason: str | None
    letter_id: str | None
    deadline_at: int | None
    created_at: int
    ended_at: int | None
