"""What was held goes on, or is turned away: as owners answer, or as somebody says without being
asked."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from corral.adapters.channels.contract import Incoming
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels import ops, wirings
from corral.domain.chat.inbound import moderation
from corral.domain.chat.inbound.moderation import MAX_HELD, NO, NO_AGENT_YET, NOBODY, YES
from corral.domain.chat.model import HOST, Message, Place, Policy, Sender, Wiring
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question, QuestionState

P = ParamSpec("P")


def hear(tx: Tx, question: Question, about: str, id: str) -> None:
    """Do what owners answered about an account or a place, and let what was held go on, or turn it
    away."""
    if about == "sender":
        _hear_about_sender(tx, question, id)
    elif about == "place":
        _hear_about_place(tx, question, id)


def _hear_about_sender(tx: Tx, question: Question, id: str) -> None:
    sender = sql.SENDERS.get(tx, id)
    if question.answer == YES:
        ops.know(tx, sender, None, None)
        release(tx, sender)
    elif question.answer == NO:
        block(tx, id)
    else:
        _refuse_held(tx, sender, "nobody said in time that it may talk here")


def _hear_about_place(tx: Tx, question: Question, id: str) -> None:
    place = sql.PLACES.get(tx, id)
    if question.answer not in (None, NOBODY) and not wirings.wirings_of(tx, place):
        trigger = "always" if place.direct else "mention"
        wirings.add_wiring(tx, str(question.answer), place=id, trigger=trigger)
    held = tx.all(sql.HELD_OF_PLACE, place_id=id, limit=MAX_HELD)
    _replay(tx, held, question.answer in (None, NOBODY))


def _heard_from_now_on(
    add: Callable[Concatenate[Tx, P], Wiring],
) -> Callable[Concatenate[Tx, P], Wiring]:
    """What was held because no agent heard a place goes on as soon as one does."""

    @wraps(add)
    def added(tx: Tx, /, *args: P.args, **how: P.kwargs) -> Wiring:
        made = add(tx, *args, **how)
        _release_waiting(tx, made)
        return made

    return added


add_wiring = _heard_from_now_on(wirings.add_wiring)


def _release_waiting(tx: Tx, made: Wiring) -> None:
    if made.place_id is not None:
        held = tx.all(sql.HELD_OF_PLACE, place_id=made.place_id, limit=MAX_HELD)
    else:
        held = tx.all(sql.HELD_OF_CHANNEL, channel_id=made.channel_id, limit=MAX_HELD)
    waited = [message for message in held if message.reason == NO_AGENT_YET]
    for message in waited:  # of each place, the first of them has a question
        _ask_nobody(tx, f"place:{message.place_id}:{message.id}", "an agent hears it now")
    _replay(tx, waited, False)


def approve(tx: Tx, sender: str, *, person: str | None = None, role: str | None = None) -> Sender:
    """Say who is behind an account: it may talk, and what it said while it waited is heard now.

    One that has not spoken yet is named as CHANNEL/ID, with the platform's own id.
    """
    channel, slash, own = sender.partition("/")
    found = (
        ops.meet_sender(tx, ops.get_channel(tx, channel), own, None)
        if slash
        else ops.get_sender(tx, sender)
    )
    known = ops.know(tx, found, person, role)
    _ask_no_more(tx, known)
    release(tx, known)
    return known


def block(tx: Tx, sender: str) -> Sender:
    """Turn away whatever an account says, also what it said while it waited."""
    gone = ops.turn_out(tx, ops.get_sender(tx, sender))
    _ask_no_more(tx, gone)
    _refuse_held(tx, gone, f"{gone.called} is blocked")
    return gone


def _ask_no_more(tx: Tx, sender: Sender) -> None:
    """Somebody said without being asked whether an account may talk: owners need not say it."""
    for first in tx.all(sql.HELD_OF_SENDER, sender_id=sender.id, limit=1):
        _ask_nobody(tx, f"sender:{sender.id}:{first.id}", f"it is {sender.state} now")


def _ask_nobody(tx: Tx, key: str, why: str) -> None:
    asked = questions.under(tx, HOST, key)
    if asked is not None and asked.state is QuestionState.OPEN:
        questions.withdraw(tx, asked.id, reason=why, by=HOST)


def release(tx: Tx, sender: Sender) -> None:
    """Let what an account said go on, in the order in which it was said."""
    _replay(tx, tx.all(sql.HELD_OF_SENDER, sender_id=sender.id, limit=MAX_HELD), False)


def _replay(tx: Tx, held: list[Message], nobody: bool) -> None:
    for message in held:
        place = sql.PLACES.get(tx, message.place_id)
        sender = sql.SENDERS.get(tx, str(message.sender_id))
        channel = sql.CHANNELS.get(tx, message.channel_id)
        heard = moderation.Heard(
            channel, place, sender, _again(message, place, sender), message.text
        )
        if why := moderation.turned_away(heard):
            moderation.let_go(tx, message, "refuse", why)
        elif heard.is_stranger:
            continue
        elif nobody or (not wirings.wirings_of(tx, place) and heard.policy is not Policy.ASK):
            moderation.let_go(tx, message, "pass_over", "no agent is wired to this place")
        else:
            moderation.judge(tx, heard, message)


def _again(message: Message, place: Place, sender: Sender) -> Incoming:
    return Incoming(
        event_id=message.event_id.removeprefix("in:"),
        place=place.platform_id,
        sender=sender.platform_id,
        text=message.text,
        kind=message.kind,
        thread=message.thread,
        mentioned=bool((message.data or {}).get("mentioned")),
    )


def _refuse_held(tx: Tx, sender: Sender, why: str) -> None:
    for message in tx.all(sql.HELD_OF_SENDER, sender_id=sender.id, limit=MAX_HELD):
        moderation.let_go(tx, message, "refuse", why)
