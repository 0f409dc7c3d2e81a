"""The bodies of letters that Corral itself writes: a tagged union, told apart by `kind`.

A caller of `mail.put` may send any JSON value, so a body that looks like one of these can be
forged. Code that acts on a payload checks the letter's sender and key too, or reads the record
that the payload names.
"""

from typing import Any

import msgspec

from corral.domain.mail.model import Letter
from corral.kernel.validation import convert


class Payload(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The base of all payloads."""


class UndeliveredNotice(Payload, frozen=True, kw_only=True, tag="undelivered"):
    """A letter or message of the recipient was not delivered. It wakes no agent."""

    undelivered: str
    """The id of the letter, of the sandboxed message, or of the chain of letters."""
    reason: str
    mailbox: str | None = None
    state: str | None = None
    key: str | None = None


class QuestionPayload(Payload, frozen=True, kw_only=True, tag="question"):
    """A question for an answerer, or its outcome for the asker."""

    question: str
    state: str
    text: str
    answer: str | None
    answered_by: str | None
    asker: str | None = None
    options: list[str] = []
    effect: str | None = None
    required_votes: int = 1
    deadline_at: int | None = None


class DecisionPayload(Payload, frozen=True, kw_only=True, tag="decision"):
    """A proposed decision for a person, or its outcome for the author."""

    decision: str
    state: str
    author: str
    title: str
    rationale: str
    decided_by: str | None
    reason: str | None
    deadline_at: int | None


class DelegationPayload(
    Payload, frozen=True, kw_only=True, tag="delegation", rename={"sender": "from"}
):
    """Work that one agent or person delegated to an agent."""

    delegation: str
    sender: str
    task: str | None
    text: str
    context: str | None
    deadline_at: int | None


class DelegationResult(
    Payload, frozen=True, kw_only=True, tag="delegation_result", rename={"sender": "from"}
):
    """The result of a delegation, for the agent or person that delegated the work."""

    delegation: str
    sender: str
    state: str
    task: str | None
    result: Any
    reason: str | None


class DelegationEnded(
    Payload, frozen=True, kw_only=True, omit_defaults=True, tag="delegation_ended"
):
    """A delegation ended before its recipient sent a result."""

    delegation: str
    state: str
    task: str | None = None
    reason: str | None = None


class HostRequestOutcome(Payload, frozen=True, kw_only=True, tag="host_request"):
    """The outcome of a request to the host, for the requesting agent."""

    request: str
    action: str
    state: str
    result: Any
    text: str


class TaskNotice(Payload, frozen=True, kw_only=True, tag="task"):
    """A change of a task, for its lead or its agent."""

    event: str
    task: str
    key: str
    title: str
    state: str
    reason: str | None


class RaceNotice(Payload, frozen=True, kw_only=True, tag="race"):
    """A change of a round, for the agent or person that started the race."""

    event: str
    race: str
    name: str | None
    round: int
    state: str
    reason: str | None


class LockNotice(Payload, frozen=True, kw_only=True, tag="lock"):
    """A change of a lock, for its owner."""

    lock: str
    state: str
    path: str
    mode: str
    until: int | None
    text: str


class GroupPost(Payload, frozen=True, kw_only=True, tag="post", rename={"author": "from"}):
    """A post, for a member of its group."""

    group: str
    name: str
    number: int
    author: str
    text: str
    reply_to: int | None


class AlertPayload(Payload, frozen=True, kw_only=True, tag="alert"):
    """A notification of an alert."""

    alert: str
    event: str
    subject: str
    at: int
    edge: str | None = None
    project_id: str | None = None
    agent_id: str | None = None
    data: Any = None


class OutboundMessage(Payload, frozen=True, kw_only=True, tag="message"):
    """A chat message to send, in the mailbox of its place."""

    message: str


class ScriptCheck(Payload, frozen=True, kw_only=True, tag="script"):
    """An occurrence of a schedule whose script has to run."""

    occurrence: str


class ChatPayload(Payload, frozen=True, kw_only=True, omit_defaults=True, tag="chat"):
    """An inbound chat message, in the mailbox of a session."""

    message: str
    place: str
    place_name: str
    direct: bool
    thread: str | None = None
    sender: str
    text: str
    files: list[dict[str, Any]] = []
    has_context: bool = False
    """Whether the prompt includes the earlier messages that did not wake the agent."""


LetterPayload = (
    UndeliveredNotice
    | QuestionPayload
    | DecisionPayload
    | DelegationPayload
    | DelegationResult
    | DelegationEnded
    | HostRequestOutcome
    | TaskNotice
    | RaceNotice
    | LockNotice
    | GroupPost
    | AlertPayload
    | OutboundMessage
    | ScriptCheck
    | ChatPayload
)


def parse_payload(letter: Letter) -> LetterPayload | None:
    """Return the payload of a letter; None when Corral did not write its body."""
    if not isinstance(letter.body, dict) or "kind" not in letter.body:
        return None
    try:
        payload: LetterPayload = convert(letter.body, LetterPayload)  # type: ignore[arg-type]
    except msgspec.ValidationError:
        return None
    return payload
