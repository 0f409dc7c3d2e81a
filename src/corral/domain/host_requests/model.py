"""A request of an agent: an action of the host, or a secret."""

from enum import StrEnum
from typing import Any, Literal

import msgspec

from corral.kernel.states import TransitionTable, allow
from corral.kernel.validation import encode_json


class RequestState(StrEnum):
    WAITING = "waiting"  # needs an approval, or the secret that is asked for
    DONE = "done"  # approved and carried out
    REFUSED = "refused"  # rejected by a person or a rule
    EXPIRED = "expired"  # not approved in time
    FAILED = "failed"  # approved, but the action failed


TRANSITIONS = TransitionTable(
    "host_request",
    RequestState,
    create_verb="ask",
    initial=RequestState.WAITING,
    verbs={
        "do": allow(RequestState.WAITING, to=RequestState.DONE),
        "refuse": allow(RequestState.WAITING, to=RequestState.REFUSED),
        "expire": allow(RequestState.WAITING, to=RequestState.EXPIRED),
        "fail": allow(RequestState.WAITING, to=RequestState.FAILED),
    },
)


class HostRequest(msgspec.Struct, frozen=True):
    """A request of an agent to the host."""

    id: str
    agent_id: str
    run_id: str | None
    session_id: str | None
    key: str | None
    action: str
    arguments: dict[str, Any]
    effect: str
    """Everything that the action does, in words. The approvers see exactly this."""
    question_id: str | None
    state: RequestState
    decided_by: str | None
    result: dict[str, Any] | None
    reason: str | None
    created_at: int
    ended_at: int | None


class ActionArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of an action."""


class CreateAgent(ActionArguments, frozen=True):
    name: str
    instructions: str
    role: str | None = None
    model: str | None = None


class SchedulePrompt(ActionArguments, frozen=True):
    text: str
    cron: str | None = None
    every_seconds: int | None = None
    time_zone: str = "UTC"
    script: str | None = None
    name: str | None = None


class ChangeScheduledPrompt(ActionArguments, frozen=True):
    schedule: str
    verb: Literal["pause", "resume", "run", "cancel"]


class GrantDestination(ActionArguments, frozen=True):
    place: str
    name: str | None = None


class GiveSecret(ActionArguments, frozen=True):
    name: str
    reason: str


def describe_request(request: HostRequest) -> str:
    """Describe the state of a request to its agent."""
    subject = f"Your request {request.id} ({request.action})"
    if request.state is RequestState.DONE and request.action == "secret":
        return f"The secret {request.arguments['name']} is available to new runs."
    if request.state is RequestState.DONE:
        return f"{subject} was carried out: {encode_json(request.result, 'The result')}"
    if request.state is RequestState.WAITING:
        return f"{subject} waits for approval. You will be notified."
    return f"{subject} is {request.state}: {request.reason}."
