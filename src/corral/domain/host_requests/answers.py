"""Apply the answers to questions that Corral itself asks: about senders, places and requests."""

from corral.db.tx import Tx
from corral.domain.chat.inbound import approvals
from corral.domain.chat.model import CHAT_MAILBOX
from corral.domain.host_requests import ops
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.mail.payloads import QuestionPayload, parse_payload
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question
from corral.kernel.errors import NotFound


def apply_answer(tx: Tx, letter: Letter) -> None:
    """Carry out the decision of an answered question, and acknowledge its letter."""
    payload = parse_payload(letter)
    question = questions.get(tx, payload.question) if isinstance(payload, QuestionPayload) else None
    if question is None or question.asker != CHAT_MAILBOX or question.ended_at is None:
        # Any process can put a letter here; only a stored answer counts.
        mail.refuse(tx, letter, "it is not an answer to a question of Corral")
        return
    about, id = _parse_subject(question)
    if about == "request":
        ops.apply_answer(tx, question, id)
    else:
        approvals.apply_answer(tx, question, about, id)
    mail.ack(tx, letter)


def record_failure(tx: Tx, letter: Letter, reason: str) -> None:
    """Record that a decision could not be carried out.

    A request fails and its agent is notified. Any other decision is retried.
    """
    try:
        about, id = _parse_subject(questions.get(tx, letter.body["question"]))
    except NotFound:  # deleted by retention; the letter becomes dead at its limit of attempts
        about, id = "", ""
    if about != "request":
        mail.fail(tx, letter, reason)
        return
    ops.mark_failed(tx, id, reason)
    mail.ack(tx, letter)


def _parse_subject(question: Question) -> tuple[str, str]:
    """Return the subject of a question, from its key: sender, place or request, and its id."""
    about, id, _ = (question.key or "::").split(":", 2)
    return about, id
