"""A letter is a queued message for one mailbox, until it is acknowledged.

A claimed letter is still `waiting`: `owner`, `fence` and `due_at` are its lease. When the lease
expires at `due_at`, the letter can be claimed again; no sweep is needed.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.ids import parse_number
from corral.kernel.states import TransitionTable, allow
from corral.kernel.validation import check_int, encode_text


class LetterState(StrEnum):
    WAITING = "waiting"  # can be claimed, is claimed (see the lease), or waits for its retry
    UNCONFIRMED = "unconfirmed"  # the owner began to deliver and did not report back
    DONE = "done"  # acknowledged
    DEAD = "dead"  # dead letter: failed `mail.max_attempts` times
    REFUSED = "refused"  # rejected by a rule, or dropped by a person
    EXPIRED = "expired"  # not claimed before `expires_at`


TRANSITIONS = TransitionTable(
    "letter",
    LetterState,
    create_verb="put",
    initial=LetterState.WAITING,
    import_states=(LetterState.DONE, LetterState.DEAD, LetterState.REFUSED, LetterState.EXPIRED),
    verbs={
        # Before a side effect that must happen at most once: after a crash it stays unconfirmed.
        "begin_delivery": allow(LetterState.WAITING, to=LetterState.UNCONFIRMED),
        "ack": allow(LetterState.WAITING, LetterState.UNCONFIRMED, to=LetterState.DONE),
        "fail": allow(LetterState.WAITING, LetterState.UNCONFIRMED, to=LetterState.WAITING),
        "dead_letter": allow(LetterState.WAITING, LetterState.UNCONFIRMED, to=LetterState.DEAD),
        "refuse": allow(LetterState.WAITING, LetterState.UNCONFIRMED, to=LetterState.REFUSED),
        "expire": allow(LetterState.WAITING, to=LetterState.EXPIRED),
        # Resolve an unconfirmed delivery without its owner: it arrived, or it must be retried.
        "confirm": allow(LetterState.UNCONFIRMED, to=LetterState.DONE),
        "retry": allow(LetterState.UNCONFIRMED, to=LetterState.WAITING),
        "resend": allow(
            LetterState.DEAD, LetterState.REFUSED, LetterState.EXPIRED, to=LetterState.WAITING
        ),
        "drop": allow(
            LetterState.WAITING,
            LetterState.UNCONFIRMED,
            LetterState.DEAD,
            LetterState.EXPIRED,
            to=LetterState.REFUSED,
        ),
    },
)


class Letter(msgspec.Struct, frozen=True):
    """A queued message."""

    id: str
    mailbox: str
    sender: str | None
    project_id: str | None
    key: str | None
    body: Any
    priority: int
    state: LetterState
    due_at: int
    """Not claimable before this time. While the letter is claimed, the end of the lease."""
    queue_at: int
    """The queue position within a priority."""
    expires_at: int | None
    owner: str | None
    fence: int
    """The fencing token: increases with every claim, so that a late owner's write is rejected."""
    attempts: int
    last_error: str | None
    created_at: int
    ended_at: int | None

    @property
    def number(self) -> int:
        """The number in its id: the key of its row."""
        return parse_number("let", self.id)

    def is_claimed(self, now: int) -> bool:
        """Whether `owner` holds an unexpired lease on it."""
        return self.state is LetterState.WAITING and self.owner is not None and self.due_at > now

    def derived(self, now: int) -> dict[str, Any]:
        """Return the fields that depend on the current time."""
        return {"claimed": self.is_claimed(now)}


class LetterDraft(NamedTuple):
    """A letter for `put_many`, due immediately."""

    mailbox: str
    body: Any
    key: str
    sender: str | None = None


class StalledMailbox(msgspec.Struct, frozen=True):
    """A mailbox whose oldest due letter has been unclaimed for too long."""

    mailbox: str
    due_at: int


class OverlongLeases(msgspec.Struct, frozen=True):
    """Claimed letters whose lease ends too far in the future."""

    count: int
    first_seq: int | None
    until: int | None


class Chain(msgspec.Struct, frozen=True):
    """The sequence of letters between agents that caused a run or a letter."""

    correlation_id: str
    hops: int
    """The length of the longest path; 0: no letter of an agent caused it."""
    agent_id: str | None = None
    agent: str | None = None
    """The name of the agent that continues the chain, if known."""


class HopLimitReached(msgspec.Struct, frozen=True):
    """A letter was not put, because its chain has reached `mail.max_hops`."""

    limit: int

    @property
    def message(self) -> str:
        """The error message for the agent that sent the letter."""
        return (
            f"The limit of {self.limit} letters between agents (mail.max_hops) is reached. Stop "
            "here and tell a person what you need."
        )


class LetterChain(msgspec.Struct, frozen=True):
    """The chain and reply address of a letter from one agent to another."""

    letter_id: str
    correlation_id: str
    hops: int
    in_reply_to: str | None
    agent_id: str
    reply_to: str
    read_by: str | None
    created_at: int


def build_letter(number: int, values: Mapping[str, Any], state: LetterState) -> Letter:
    """Build the letter from the values of its INSERT, without reading it back."""
    return Letter(
        id=f"let_{number}",
        mailbox=values["mailbox"],
        sender=values.get("sender"),
        project_id=values.get("project_id"),
        key=values.get("key"),
        body=_BODY_DECODER.decode(values["body"]),
        priority=-values["rank"],
        state=state,
        due_at=values["due_at"],
        queue_at=values["queue_at"],
        expires_at=values.get("expires_at"),
        owner=None,
        fence=0,
        attempts=0,
        last_error=None,
        created_at=values["created_at"],
        ended_at=None,
    )


_BODY_DECODER = msgspec.json.Decoder()

MAILBOX_KINDS = ("agent", "hook", "place", "queue", "session", "user")
_MAILBOX = re.compile(rf"(?:{'|'.join(MAILBOX_KINDS)}):[^\s\x00-\x1f]{{1,200}}")


@lru_cache(1_024)  # called by every put and claim, mostly for the same few mailboxes
def check_mailbox(mailbox: str) -> str:
    """Return a valid mailbox address; raises Invalid for any other text."""
    if not _MAILBOX.fullmatch(mailbox):
        raise Invalid(
            f"Invalid mailbox {mailbox!r}: expected KIND:NAME without spaces, such as agent:ada or "
            f"queue:builds. Kinds are {', '.join(MAILBOX_KINDS)}.",
            mailbox=mailbox,
        )
    encode_text(mailbox, "The mailbox")  # raises Invalid for a lone surrogate
    return mailbox


MAX_PRIORITY = 100


def check_priority(priority: int) -> int:
    """Return a valid priority; raises Invalid when it is out of range."""
    if not -MAX_PRIORITY <= check_int(priority, "The priority") <= MAX_PRIORITY:
        raise Invalid(
            f"Invalid priority {priority}: expected -{MAX_PRIORITY} to {MAX_PRIORITY}.",
            priority=priority,
        )
    return priority


def mailbox_kind(address: str) -> str:
    """Return the kind of a mailbox, actor or owner: `agent` for `agent:ada`, else an empty text."""
    kind, colon, _ = address.partition(":")
    return kind if colon else ""


def agent_name_of(address: str) -> str | None:
    """Return the agent's name in a mailbox, actor or owner; None: it is not an agent's."""
    return address.removeprefix("agent:") if mailbox_kind(address) == "agent" else None


def is_person(actor: str) -> bool:
    """Whether an actor is a person: a user, or a person's token.

    An agent's token acts as `agent:NAME`. A run without an agent, a check, the daemon and the
    supervisors are neither persons nor agents.
    """
    return mailbox_kind(actor) in ("user", "token")


def session_id_of(address: str) -> str | None:
    """Return the session's id in a mailbox or owner; None: it is not a session's."""
    return address.removeprefix("session:") if mailbox_kind(address) == "session" else None


def is_ordered(mailbox: str) -> bool:
    """Whether the mailbox delivers in order, to one owner at a time.

    Only `queue:…` mailboxes do not: several workers claim from them concurrently.
    """
    return mailbox_kind(mailbox) != "queue"


# Fields of the bodies that Corral itself writes which contain text for people, best first.
_TEXT_FIELDS = ("text", "title", "result", "reason", "name", "subject")


def summarize_body(body: Any) -> Any:
    """Return a one-line summary of a body for lists; a body of unknown shape is returned as is."""
    if not isinstance(body, dict):
        return body
    kind = body.get("kind")
    text = next((body[name] for name in _TEXT_FIELDS if body.get(name)), None)
    if not isinstance(text, str) or not isinstance(kind, str):
        return body["text"] if isinstance(body.get("text"), str) else body
    outcome = body.get("event") or body.get("state")
    prefix = f"{kind} {outcome}" if isinstance(outcome, str) else kind
    return f"{prefix.replace('_', ' ')}: {text}"
