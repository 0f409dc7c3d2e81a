"""A question waits for an answer, with options and a deadline.

The rules about who may answer, and until when, also apply to proposed decisions.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from corral.domain.mail.model import check_mailbox, is_person, mailbox_kind
from corral.kernel.clock import SECOND, YEAR
from corral.kernel.errors import Invalid, Refused
from corral.kernel.states import TransitionTable, allow
from corral.kernel.validation import check_int


class QuestionState(StrEnum):
    OPEN = "open"  # waits for an answer until its deadline
    ANSWERED = "answered"  # answered in time
    EXPIRED = "expired"  # no answer in time, or no agreement; the fallback applies, if any
    WITHDRAWN = "withdrawn"  # taken back by the asker or a person


TRANSITIONS = TransitionTable(
    "question",
    QuestionState,
    create_verb="ask",
    initial=QuestionState.OPEN,
    import_states=(QuestionState.ANSWERED, QuestionState.EXPIRED, QuestionState.WITHDRAWN),
    verbs={
        # One of several required answers; the question stays open.
        "vote": allow(QuestionState.OPEN, to=QuestionState.OPEN),
        "answer": allow(QuestionState.OPEN, to=QuestionState.ANSWERED),
        "expire": allow(QuestionState.OPEN, to=QuestionState.EXPIRED),
        "withdraw": allow(QuestionState.OPEN, to=QuestionState.WITHDRAWN),
    },
)


class Vote(msgspec.Struct, frozen=True):
    """One answer to a question that needs several."""

    by: str
    answer: str
    at: int


class Question(msgspec.Struct, frozen=True):
    """A request for an answer, with options and a deadline."""

    id: str
    project_id: str | None
    asker: str
    """The mailbox that gets the answer."""
    run_id: str | None
    """The run that asked; None: not known."""
    key: str | None
    """The idempotency key, unique per asker."""
    text: str
    options: list[str]
    """The possible answers; empty: any text."""
    free_text: bool
    """Whether any text is accepted."""
    answerers: list[str]
    """The mailboxes that may answer, as user:NAME or agent:NAME; empty: any person."""
    fallback: str | None
    """The answer that applies when there is none in time, or no agreement."""
    effect: str | None
    """Everything that is done on the answer, in words."""
    required_votes: int
    """How many people must give the same answer."""
    votes: list[Vote]
    """The answers so far, where several are required."""
    state: QuestionState
    answer: str | None
    """The answer, or the fallback when it expired."""
    answered_by: str | None
    """Who answered; several names, joined by commas, where several votes decided."""
    deadline_at: int
    """From this time on, answers are rejected."""
    created_at: int
    ended_at: int | None
    """When it was answered, expired or was withdrawn."""


MAX_ANSWERERS = 20


def check_answerers(value: Sequence[str]) -> list[str]:
    """Validate who may answer (user:NAME or agent:NAME), without duplicates; raises Invalid."""
    if len(value) > MAX_ANSWERERS:
        raise Invalid(
            f"Too many answerers: {len(value)}, the limit is {MAX_ANSWERERS}. Without any, every "
            "person may answer."
        )
    for name in value:
        if mailbox_kind(check_mailbox(name)) not in ("user", "agent"):
            raise Invalid(f"Invalid answerer {name}: expected user:NAME or agent:NAME.", name=name)
    return list(dict.fromkeys(value))


def check_may_answer(id: str, by: str, *, asker: str, answerers: Sequence[str]) -> None:
    """Check that `by` may answer: a named answerer, else any person, but never the asking agent."""
    if by == asker and not is_person(by):
        raise Refused(f"{by} cannot answer its own question {id}.", id=id, by=by)
    if by in answerers or (not answerers and is_person(by)):
        return
    allowed = " or ".join(answerers) if answerers else "a person"
    raise Refused(
        f"{by} may not answer {id}: only {allowed} may.", id=id, by=by, reason="not_an_answerer"
    )


def check_required_votes(value: int, answerers: Sequence[str]) -> int:
    """Validate how many must give the same answer: at most the number of answerers."""
    limit = len(answerers) or MAX_ANSWERERS
    if not 1 <= check_int(value, "How many must agree") <= limit:
        raise Invalid(
            f"Between 1 and {limit} answers can be required, not {value}. Name more answerers.",
            required_votes=value,
        )
    return value


class VoteCount(msgspec.Struct, frozen=True):
    """The result of counting votes."""

    winners: list[str]
    """Who gave the winning answer; empty while there is none."""
    is_hopeless: bool
    """Whether no answer can win any more."""


def count_votes(question: Question, votes: Sequence[Vote]) -> VoteCount:
    """Count votes: only the last vote can have completed the required number."""
    groups: dict[str, list[str]] = {}
    for vote in votes:
        groups.setdefault(vote.answer, []).append(vote.by)
    same = groups[votes[-1].answer]
    if len(same) >= question.required_votes:
        return VoteCount(same, False)
    left = len(question.answerers) - len(votes)
    best = max(len(voters) for voters in groups.values())
    return VoteCount([], bool(question.answerers) and best + left < question.required_votes)


def compute_deadline(now: int, deadline_ms: int) -> int:
    """Return the deadline as a time; raises Invalid unless it is 1 second to 1 year away."""
    if not SECOND <= check_int(deadline_ms, "The deadline") <= YEAR:
        raise Invalid(
            "The deadline must be between 1 second and 1 year away.", deadline_ms=deadline_ms
        )
    return now + deadline_ms
