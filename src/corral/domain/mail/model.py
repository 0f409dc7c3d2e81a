"""A letter is a message on its way to one mailbox, until it is acknowledged.

A letter that somebody has out is still `waiting`: its lease (owner, fence, and `due_at` as its end)
says who works on it, and when the lease runs out it is due again without anybody's doing.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.states import Moves, move
from corral.kernel.text import check_int, encode_text


class LetterState(StrEnum):
    WAITING = "waiting"  # to be claimed, or out with an owner, or between two attempts
    UNKNOWN = "unknown"  # its owner was about to act and has not said how it went
    DONE = "done"  # acknowledged
    DEAD = "dead"  # failed too often; somebody must look at it
    REFUSED = "refused"  # turned away: a rule or a person said no
    EXPIRED = "expired"  # nobody took it in time


L = LetterState
MOVES = Moves(
    "letter",
    LetterState,
    begin="put",
    initial=L.WAITING,
    imports=(L.DONE, L.DEAD, L.REFUSED, L.EXPIRED),
    verbs={
        # Said before an act that must not be done twice: a crash from here on leaves `unknown`.
        "doubt": move(L.WAITING, to=L.UNKNOWN),
        "ack": move(L.WAITING, L.UNKNOWN, to=L.DONE),
        "fail": move(L.WAITING, L.UNKNOWN, to=L.WAITING),
        "bury": move(L.WAITING, L.UNKNOWN, to=L.DEAD),
        "refuse": move(L.WAITING, L.UNKNOWN, to=L.REFUSED),
        "expire": move(L.WAITING, to=L.EXPIRED),
        # The two ways in which doubt ends without the owner: it was done after all, or it was not.
        "confirm": move(L.UNKNOWN, to=L.DONE),
        "retry": move(L.UNKNOWN, to=L.WAITING),
        "resend": move(L.DEAD, L.REFUSED, L.EXPIRED, to=L.WAITING),
        "drop": move(L.WAITING, L.UNKNOWN, L.DEAD, L.EXPIRED, to=L.REFUSED),
    },
)


class Letter(msgspec.Struct, frozen=True):
    id: str
    mailbox: str
    sender: str | None
    project_id: str | None
    key: str | None
    body: Any
    priority: int
    state: LetterState
    due_at: int
    line_at: int
    expires_at: int | None
    owner: str | None
    fence: int
    attempts: int
    last_error: str | None
    created_at: int
    ended_at: int | None

    def is_out(self, now: int) -> bool:
        """Whether somebody (`owner`) has it out, until `due_at`."""
        return self.state is LetterState.WAITING and self.owner is not None and self.due_at > now

    def derived(self, now: int) -> dict[str, Any]:
        """What a reader cannot see in the fields without the store's time."""
        return {"out": self.is_out(now)}


class Draft(NamedTuple):
    """A letter that is to be put at once."""

    mailbox: str
    body: Any
    key: str
    sender: str | None = None


class Stalled(msgspec.Struct, frozen=True):
    """A mailbox whose oldest due letter has not been claimed for long."""

    mailbox: str
    due_at: int


class Chain(msgspec.Struct, frozen=True):
    """The letters between agents that led to a run, or to what it made."""

    correlation_id: str
    hops: int
    """The length of the longest way; 0: no letter of an agent led to it."""
    agent_id: str | None = None
    agent: str | None = None
    """The name of the agent whose letter continues it, if known."""


class Exchange(msgspec.Struct, frozen=True):
    """What a letter that an agent wrote to an agent belongs to."""

    letter_id: str
    correlation_id: str
    hops: int
    answers: str | None
    agent_id: str
    reply_to: str
    read_by: str | None
    created_at: int


def fresh_letter(number: int, values: Mapping[str, Any], state: LetterState) -> Letter:
    """As it is read right after it was put."""
    return Letter(
        f"let_{number}",
        values["mailbox"],
        values.get("sender"),
        values.get("project_id"),
        values.get("key"),
        _BODY.decode(values["body"]),
        -values["rank"],
        state,
        values["due_at"],
        values["line_at"],
        values.get("expires_at"),
        None,
        0,
        0,
        None,
        values["created_at"],
        None,
    )


_BODY = msgspec.json.Decoder()

KINDS = ("agent", "hook", "place", "queue", "session", "user")
_MAILBOX = re.compile(rf"(?:{'|'.join(KINDS)}):[^\s\x00-\x1f]{{1,200}}")


@lru_cache(1_024)  # every put and claim asks, mostly for the same few
def check_mailbox(mailbox: str) -> str:
    if not _MAILBOX.fullmatch(mailbox) or not encode_text(mailbox, "The mailbox"):
        raise Invalid(
            f"{mailbox!r} is no mailbox; write one of {', '.join(KINDS)}, a colon and a "
            "name without spaces, as in agent:ada or queue:builds.",
            mailbox=mailbox,
        )
    return mailbox


MAX_PRIORITY = 100


def check_priority(priority: int) -> int:
    if not -MAX_PRIORITY <= check_int(priority, "The priority") <= MAX_PRIORITY:
        raise Invalid(
            f"A priority goes from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {priority}.",
            priority=priority,
        )
    return priority


def agent_of(mailbox: str) -> str | None:
    """The agent whose mailbox it is, for what was chosen for that agent."""
    return mailbox.removeprefix("agent:") if mailbox.startswith("agent:") else None


def keeps_order(mailbox: str) -> bool:
    """Whether letters go to one owner at a time, in line; `queue:…` are plain work queues."""
    return not mailbox.startswith("queue:")


# Where the letters that Corral itself puts have words for people, the best first.
_WORDS = ("text", "title", "result", "reason", "name", "subject")


def gist(body: Any) -> Any:
    """What a letter is about, in a line for a list; a body of another make is given back whole."""
    if not isinstance(body, dict):
        return body
    kind = body.get("kind")
    words = next((body[name] for name in _WORDS if body.get(name)), None)
    if not isinstance(words, str) or not isinstance(kind, str):
        return body["text"] if isinstance(body.get("text"), str) else body
    became = body.get("what") or body.get("state")
    head = f"{kind} {became}" if isinstance(became, str) else kind
    return f"{head.replace('_', ' ')}: {words}"
