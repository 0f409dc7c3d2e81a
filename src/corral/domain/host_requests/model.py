"""A request is something that an agent asks the host to do, or a secret that it asks for."""

from enum import StrEnum
from typing import Any, Literal

import msgspec

from corral.kernel.states import Moves, move
from corral.kernel.text import encode_json


class RequestState(StrEnum):
    WAITING = "waiting"  # somebody must say whether it may be done, or give what is asked for
    DONE = "done"  # it was done
    REFUSED = "refused"  # somebody said no
    EXPIRED = "expired"  # nobody said yes in time
    FAILED = "failed"  # it was allowed, and could not be done


R = RequestState
MOVES = Moves(
    "request",
    RequestState,
    begin="ask",
    initial=R.WAITING,
    verbs={
        "do": move(R.WAITING, to=R.DONE),
        "refuse": move(R.WAITING, to=R.REFUSED),
        "expire": move(R.WAITING, to=R.EXPIRED),
        "fail": move(R.WAITING, to=R.FAILED),
    },
)


class Request(msgspec.Struct, frozen=True):
    """What an agent asks of the host."""

    id: str
    agent_id: str
    run_id: str | None
    session_id: str | None
    key: str | None
    action: str
    arguments: dict[str, Any]
    effect: str
    question_id: str | None
    state: RequestState
    decided_by: str | None
    result: dict[str, Any] | None
    reason: str | None
    created_at: int
    ended_at: int | None


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an action takes."""


class CreateAgent(Arguments, frozen=True):
    name: str
    instructions: str
    role: str | None = None
    model: str | None = None


class ScheduleTask(Arguments, frozen=True):
    text: str
    cron: str | None = None
    every_seconds: int | None = None
    time_zone: str = "UTC"
    script: str | None = None
    name: str | None = None


class ChangeTask(Arguments, frozen=True):
    task: str
    verb: Literal["pause", "resume", "run", "cancel"]


class GrantDestination(Arguments, frozen=True):
    place: str
    name: str | None = None


class GiveSecret(Arguments, frozen=True):
    name: str
    reason: str


def words_of(request: Request) -> str:
    """How a request stands, in a sentence for its agent."""
    what = f"Your request {request.id} ({request.action})"
    if request.state is RequestState.DONE and request.action == "secret":
        return f"The secret {request.arguments['name']} is there now, for what is started with it."
    if request.state is RequestState.DONE:
        return f"{what} was done: {encode_json(request.result, 'The result')}"
    if request.state is RequestState.WAITING:
        return f"{what} waits for somebody to decide; you are told."
    return f"{what} is {request.state}: {request.reason}."
