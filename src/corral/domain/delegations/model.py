"""Delegations: a task or a text that an agent or a person hands to an agent, and its result.

Both sides receive letters: the agent when work is delegated or taken away, the sender when the
delegation ends, whatever the outcome.
"""

from enum import StrEnum
from typing import Any

import msgspec

from corral.kernel.states import TransitionTable, allow


class DelegationState(StrEnum):
    ACTIVE = "active"  # sent; no result yet
    DONE = "done"  # the result was sent back
    FAILED = "failed"  # the agent could not do it, with a reason
    CANCELLED = "cancelled"  # taken away by the sender
    EXPIRED = "expired"  # no result before the deadline


TRANSITIONS = TransitionTable(
    "delegation",
    DelegationState,
    create_verb="delegate",
    initial=DelegationState.ACTIVE,
    import_states=(
        DelegationState.DONE,
        DelegationState.FAILED,
        DelegationState.CANCELLED,
        DelegationState.EXPIRED,
    ),
    verbs={
        "finish": allow(DelegationState.ACTIVE, to=DelegationState.DONE),
        "fail": allow(DelegationState.ACTIVE, to=DelegationState.FAILED),
        "cancel": allow(DelegationState.ACTIVE, to=DelegationState.CANCELLED),
        "expire": allow(DelegationState.ACTIVE, to=DelegationState.EXPIRED),
    },
)


class DelegationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller delegates, as given: names are not resolved yet."""

    to: str
    """The agent that gets the work."""
    text: str
    context: str | None = None
    project_id: str | None = None
    parent: str | None = None
    """The delegation of which this one is a part."""
    deadline_at: int | None = None
    sender: str | None = None
    """The mailbox that gets the result; None: the caller's."""
    agent: str | None = None
    """The agent on whose behalf a person calls."""
    task_id: str | None = None


class Delegation(msgspec.Struct, frozen=True):
    """A task or a text that an agent or a person handed to an agent, with its result."""

    id: str
    project_id: str | None
    state: DelegationState
    from_mailbox: str
    """The sender's mailbox, which gets the result."""
    to_agent_id: str
    to_mailbox: str
    """The recipient's mailbox, which gets the work."""
    parent_id: str | None
    """The delegation of which it is a part. Cancelling the parent cancels its parts."""
    task_id: str | None
    """The delegated task, whose outcome ends the delegation; None: only the text."""
    text: str
    """The work; for a task, its title and description."""
    context: str | None
    """Background for the recipient."""
    result: Any
    """What the recipient sent back; for a task, its final state and its evidence."""
    reason: str | None
    """Why it failed, expired or was cancelled."""
    letter_id: str | None
    """The letter that brought the work to the recipient."""
    deadline_at: int | None
    """When it expires without a result; None: never."""
    created_at: int
    ended_at: int | None
