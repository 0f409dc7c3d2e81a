"""What people answered to what Corral itself asks is done: about an account, a place, a request."""

from corral.db.tx import Tx
from corral.domain.chat.inbound import held
from corral.domain.chat.model import HOST
from corral.domain.host_requests import ops
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question
from corral.kernel.errors import NotFound


def hear(tx: Tx, letter: Letter) -> None:
    """Do what an answer says."""
    id = letter.body.get("question") if isinstance(letter.body, dict) else None
    question = questions.get(tx, id) if isinstance(id, str) else None
    if question is None or question.asker != HOST or question.ended_at is None:
        # Whoever put it here: what Corral asked is not answered by it.
        mail.refuse(tx, letter, "it is no answer to a question of the gateway")
        return
    about, id = _about(question)
    if about == "request":
        ops.hear(tx, question, id)
    else:
        held.hear(tx, question, about, id)
    mail.ack(tx, letter)


def could_not_do(tx: Tx, letter: Letter, why: str) -> None:
    """What an answer says could not be done: a request has failed, and its agent is told; all else
    is tried again."""
    try:
        about, id = _about(questions.get(tx, str(letter.body.get("question"))))
    except NotFound:  # the question was pruned; the letter dies at its limit
        about, id = "", ""
    if about != "request":
        mail.fail(tx, letter, why)
        return
    ops.fail(tx, id, why)
    mail.ack(tx, letter)


def _about(question: Question) -> tuple[str, str]:
    """What Corral asked about: a sender, a place or a request, with its id."""
    about, id, _ = (question.key or "::").split(":", 2)
    return about, id
