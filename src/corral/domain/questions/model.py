"""A question is something that somebody must answer, with options and a deadline.

Who may answer, and until when, is the same for a question and for a decision that waits to be
confirmed; the rules stand here.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from corral.domain.mail.model import check_mailbox
from corral.kernel.clock import SECOND, YEAR
from corral.kernel.errors import Invalid, Refused
from corral.kernel.states import Moves, move
from corral.kernel.text import check_int


class QuestionState(StrEnum):
    OPEN = "open"  # an answer is waited for, until its deadline
    ANSWERED = "answered"  # somebody answered, in time
    EXPIRED = "expired"  # nobody did, or they do not agree; the fallback counts, if there is one
    WITHDRAWN = "withdrawn"  # nobody needs to know any more


S = QuestionState
MOVES = Moves(
    "question",
    QuestionState,
    begin="ask",
    initial=S.OPEN,
    imports=(S.ANSWERED, S.EXPIRED, S.WITHDRAWN),
    verbs={
        # One of several has answered, and others must yet.
        "vote": move(S.OPEN, to=S.OPEN),
        "answer": move(S.OPEN, to=S.ANSWERED),
        "expire": move(S.OPEN, to=S.EXPIRED),
        "withdraw": move(S.OPEN, to=S.WITHDRAWN),
    },
)


class Vote(msgspec.Struct, frozen=True):
    """What one of several answered."""

    by: str
    answer: str
    at: int


class Question(msgspec.Struct, frozen=True):
    id: str
    project_id: str | None
    asker: str
    run_id: str | None
    key: str | None
    text: str
    options: list[str]
    free: bool
    answerers: list[str]
    fallback: str | None
    effect: str | None
    needed: int
    votes: list[Vote]
    state: QuestionState
    answer: str | None
    answered_by: str | None
    deadline_at: int
    created_at: int
    ended_at: int | None


MAX_ANSWERERS = 20


def check_answerers(given: Sequence[str]) -> list[str]:
    """Who may answer, each once: user:NAME or agent:NAME."""
    if len(given) > MAX_ANSWERERS:
        raise Invalid(
            f"{MAX_ANSWERERS} may be named to answer, not {len(given)}; name a few, or nobody "
            "for any person."
        )
    for name in given:
        if check_mailbox(name).partition(":")[0] not in ("user", "agent"):
            raise Invalid(f"{name} cannot answer; name user:NAME or agent:NAME.", name=name)
    return list(dict.fromkeys(given))


def is_person(who: str) -> bool:
    """Whether it is no agent, nor a conversation or run of one."""
    return who.partition(":")[0] in ("user", "token")


def check_may_answer(id: str, by: str, *, asker: str, answerers: Sequence[str]) -> None:
    """Refused unless `by` may answer: whoever is named, else any person; an agent never itself."""
    if by == asker and not is_person(by):
        raise Refused(f"{by} asks {id} itself; somebody else must answer.", id=id, by=by)
    if by in answerers or (not answerers and is_person(by)):
        return
    who = " or ".join(answerers) if answerers else "a person"
    raise Refused(
        f"{id} is to be answered by {who}, not by {by}.", id=id, by=by, reason="not_an_answerer"
    )


def check_needed(given: int, answerers: Sequence[str]) -> int:
    """How many must give the same answer: no more than may answer."""
    most = len(answerers) or MAX_ANSWERERS
    if not 1 <= check_int(given, "How many must agree") <= most:
        raise Invalid(
            f"1 to {most} can agree, not {given}; name more who may answer.", needed=given
        )
    return given


class Tally(msgspec.Struct, frozen=True):
    """What the votes come to."""

    winners: list[str]
    """Who gave the answer that counts; empty: none counts yet."""
    is_hopeless: bool
    """Whether none can count any more, whatever the others answer."""


def tally(question: Question, votes: Sequence[Vote]) -> Tally:
    """Whether enough gave the last answer, or cannot any more give any."""
    groups: dict[str, list[str]] = {}
    for vote in votes:
        groups.setdefault(vote.answer, []).append(vote.by)
    same = groups[votes[-1].answer]
    if len(same) >= question.needed:
        return Tally(same, False)
    left = len(question.answerers) - len(votes)
    best = max(len(each) for each in groups.values())
    return Tally([], bool(question.answerers) and best + left < question.needed)


def deadline_of(now: int, deadline_ms: int) -> int:
    """The moment until which an answer is waited for."""
    if not SECOND <= check_int(deadline_ms, "The deadline") <= YEAR:
        raise Invalid("An answer is waited for from 1 s up to a year.", deadline_ms=deadline_ms)
    return now + deadline_ms
