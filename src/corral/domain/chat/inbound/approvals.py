"""Held messages: route them after an approval, or reject them.

An owner decides by answering the question about a sender or a place, or without being asked: by
approving or blocking the sender, or by wiring an agent to the place. In that case the open question
is withdrawn.
"""

from corral.adapters.channels.contract import IncomingEvent
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels import ops, people, wirings
from corral.domain.chat.channels.wirings import WiringRules
from corral.domain.chat.inbound import moderation
from corral.domain.chat.inbound.message import InboundMessage
from corral.domain.chat.inbound.message_rows import finish_held
from corral.domain.chat.inbound.moderation import MAX_HELD, NO, NO_AGENT_YET, NOBODY, YES
from corral.domain.chat.model import (
    CHAT_MAILBOX,
    Message,
    Place,
    Sender,
    Wiring,
)
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question, QuestionState

# -- by answering a question ----------------------------------------------------------------------


def apply_answer(tx: Tx, question: Question, about: str, id: str) -> None:
    """Apply the owners' answer about a sender or a place to its held messages."""
    if about == "sender":
        _apply_to_sender(tx, question, id)
    elif about == "place":
        _apply_to_place(tx, question, id)


def _apply_to_sender(tx: Tx, question: Question, id: str) -> None:
    sender = sql.SENDERS.get(tx, id)
    if question.answer == YES:
        people.identify_sender(tx, sender, None, None)
        release_held(tx, sender)
    elif question.answer == NO:
        block_sender(tx, id)
    else:
        _reject_held(tx, sender, "no owner approved the sender in time")


def _apply_to_place(tx: Tx, question: Question, id: str) -> None:
    place = sql.PLACES.get(tx, id)
    if question.answer not in (None, NOBODY) and not wirings.list_covering(tx, place):
        trigger = "always" if place.direct else "mention"
        wirings.create_wiring(tx, str(question.answer), WiringRules(trigger), place=id)
    held = tx.all(sql.HELD_OF_PLACE, place_id=id, limit=MAX_HELD)
    _moderate_again(tx, held, without_agent=question.answer in (None, NOBODY))


# -- without a question ---------------------------------------------------------------------------


def approve_sender(
    tx: Tx, sender: str, *, person: str | None = None, role: str | None = None
) -> Sender:
    """Approve a sender as a person, and route its held messages.

    A sender of which no message has arrived yet is named CHANNEL/ID, with the platform's own id.
    """
    channel, slash, platform_id = sender.partition("/")
    target = (
        people.ensure_sender(tx, ops.get_channel(tx, channel), platform_id, None)
        if slash
        else people.get_sender(tx, sender)
    )
    approved = people.identify_sender(tx, target, person, role)
    _withdraw_sender_question(tx, approved)
    release_held(tx, approved)
    return approved


def block_sender(tx: Tx, sender: str) -> Sender:
    """Reject all messages of a sender, including its held ones."""
    blocked = people.mark_sender_blocked(tx, people.get_sender(tx, sender))
    _withdraw_sender_question(tx, blocked)
    _reject_held(tx, blocked, f"{blocked.display_name} is blocked")
    return blocked


def wire_agent(
    tx: Tx,
    agent: str,
    *,
    place: str | None = None,
    channel: str | None = None,
    trigger: str = "always",
    pattern: str | None = None,
    scope: str = "all",
    unmatched: str = "drop",
    mode: str = "shared",
    priority: int = 0,
    project: str | None = None,
) -> Wiring:
    """Let an agent receive the messages of one place, or of all places of a channel.

    `trigger` selects the messages that wake the agent: always, mention, sticky (a mention, then the
    rest of the thread), pattern or command; the last two need `pattern`. `unmatched` drops the
    other messages, or keeps them as context for the next one that wakes the agent. `mode` is shared
    (one session for each place), thread (one for each thread) or agent (one for all places).

    The agent may answer in the place. Messages that were held because the place had no agent are
    routed now. Raises Conflict when the agent is wired there already.
    """
    rules = WiringRules(trigger, pattern, scope, unmatched, mode, priority)
    wiring = wirings.create_wiring(tx, agent, rules, place=place, channel=channel, project=project)
    _release_for_wiring(tx, wiring)
    return wiring


def _release_for_wiring(tx: Tx, wiring: Wiring) -> None:
    if wiring.place_id is not None:
        held = tx.all(sql.HELD_OF_PLACE, place_id=wiring.place_id, limit=MAX_HELD)
    else:
        held = tx.all(sql.HELD_OF_CHANNEL, channel_id=wiring.channel_id, limit=MAX_HELD)
    waiting = [message for message in held if message.reason == NO_AGENT_YET]
    for message in waiting:  # the first one of each place has the question
        key = f"place:{message.place_id}:{message.id}"
        _withdraw_question(tx, key, "an agent is wired to the place now")
    _moderate_again(tx, waiting)


def _withdraw_sender_question(tx: Tx, sender: Sender) -> None:
    # The question is stored under the first held message.
    for first in tx.all(sql.HELD_OF_SENDER, sender_id=sender.id, limit=1):
        _withdraw_question(
            tx, f"sender:{sender.id}:{first.id}", f"the sender is {sender.state} now"
        )


def _withdraw_question(tx: Tx, key: str, reason: str) -> None:
    question = questions.find_by_key(tx, CHAT_MAILBOX, key)
    if question is not None and question.state is QuestionState.OPEN:
        questions.withdraw(tx, question.id, reason=reason, by=CHAT_MAILBOX)


# -- the held messages ----------------------------------------------------------------------------


def release_held(tx: Tx, sender: Sender) -> None:
    """Route the held messages of a sender, in the order of arrival."""
    _moderate_again(tx, tx.all(sql.HELD_OF_SENDER, sender_id=sender.id, limit=MAX_HELD))


def _reject_held(tx: Tx, sender: Sender, reason: str) -> None:
    for message in tx.all(sql.HELD_OF_SENDER, sender_id=sender.id, limit=MAX_HELD):
        finish_held(tx, message, "reject", reason)


def _moderate_again(tx: Tx, held: list[Message], *, without_agent: bool = False) -> None:
    """Moderate held messages by the rules that apply now."""
    for message in held:
        place = sql.PLACES.get(tx, message.place_id)
        sender = sql.SENDERS.get(tx, str(message.sender_id))
        channel = sql.CHANNELS.get(tx, message.channel_id)
        inbound = InboundMessage(
            channel, place, sender, _to_incoming(message, place, sender), message.text
        )
        if reason := inbound.explain_rejection():
            finish_held(tx, message, "reject", reason)
        elif inbound.is_stranger:
            continue
        elif without_agent or not (inbound.can_ask_for_agent or wirings.list_covering(tx, place)):
            finish_held(tx, message, "dismiss", "no agent is wired to this place")
        else:
            moderation.moderate(tx, inbound, message)


def _to_incoming(message: Message, place: Place, sender: Sender) -> IncomingEvent:
    """Rebuild the event of a stored message."""
    return IncomingEvent(
        event_id=message.event_id.removeprefix("in:"),
        place=place.platform_id,
        sender=sender.platform_id,
        text=message.text,
        kind=message.kind,
        thread=message.thread,
        mentioned=bool((message.data or {}).get("mentioned")),
    )
