"""Delegations: a task or a text that an agent or a person hands to an agent, and its result.

Both sides receive messages: the agent when work is delegated or taken away, the sender when the
delegation ends, whatever the outcome.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import TransitionTable, transition


class DelegationState(StrEnum):
    ACTIVE = "active"  # sent; no result yet
    DONE = "done"  # the result was sent back
    FAILED = "failed"  # the agent could not do it, with a reason
    CANCELLED = "cancelled"  # taken away by the sender
    EXPIRED = "expired"  # no result before the deadline


S = DelegationState
TRANSITIONS = TransitionTable(
    "delegation",
    DelegationState,
    create_verb="delegate",
    initial=S.ACTIVE,
    import_states=(S.DONE, S.FAILED, S.CANCELLED, S.EXPIRED),
    verbs={
        "finish": transition(S.ACTIVE, to=S.DONE),
        "fail": transition(S.ACTIVE, to=S.FAILED),
        "cancel": transition(S.ACTIVE, to=S.CANCELLED),
        "expire": transition(S.ACTIVE, to=S.EXPIRED),
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
