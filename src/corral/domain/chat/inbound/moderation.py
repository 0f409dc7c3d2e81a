"""Moderation of inbound messages that cannot be routed at once.

Such a message is stored as held first, then `moderate` treats it as the answer to a question, as a
command or as text for agents. Messages that wait for an owner's decision stay held; `held` releases
them.
"""

from corral.adapters.channels.contract import MessageKind
from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat import sql
from corral.domain.chat.channels import people, places
from corral.domain.chat.inbound import commands
from corral.domain.chat.inbound.message import InboundMessage
from corral.domain.chat.inbound.message_rows import finish_held, store_message
from corral.domain.chat.inbound.routable import Routable, RoutedMessage, put_letters
from corral.domain.chat.inbound.router import parse_command
from corral.domain.chat.inbound.routing_cache import RoutingCache, explain_ignored
from corral.domain.chat.model import CHAT_MAILBOX, Message, Person
from corral.domain.chat.outbound import cards, queue
from corral.domain.chat.outbound.queue import MessageDraft
from corral.domain.questions import ops as questions
from corral.kernel.errors import Refused
from corral.kernel.ids import parse_number

MAX_HELD = 1_000
"""Held messages of one sender, or of one place."""
MAX_AGENT_OPTIONS = 15
MAX_EXCERPT = 200
YES, NO, NOBODY = "yes", "no", "nobody"
NO_AGENT_YET = "an owner has not chosen an agent for this place yet"


def moderate(tx: Tx, inbound: InboundMessage, message: Message) -> Message:
    """Finish a held message: as an answer, as a command, or by routing it to agents."""
    person = people.find_person(tx, inbound.sender.person)
    for handle in (_handle_answer, _handle_command):
        handled = handle(tx, inbound, message, person)
        if handled is not None:
            return handled
    if message.kind is not MessageKind.TEXT:
        return finish_held(tx, message, "dismiss", f"a {message.kind} does not wake agents")
    cache = RoutingCache(tx, inbound.channel.id)
    recipients = cache.open_recipients(inbound.routing_input, inbound.place, message.thread)
    if not recipients and inbound.can_ask_for_agent:
        return _hold_for_agent(tx, inbound, message)
    reason = explain_ignored(recipients)
    finished = finish_held(tx, message, "dismiss" if reason else "release", reason, recipients)
    routed = RoutedMessage(Routable(inbound, recipients, reason), finished)
    return put_letters(tx, [routed])[0]


def _handle_answer(
    tx: Tx, inbound: InboundMessage, message: Message, person: Person | None
) -> Message | None:
    """Answer a question that is shown in the place: by button, by option number or by its text."""
    question_id = (
        (message.data or {}).get("question") if message.kind is MessageKind.ANSWER else None
    )
    text = message.text
    if question_id is None:
        if message.kind is not MessageKind.TEXT:
            return None
        question = cards.find_answered(tx, inbound.place, text)
        if question is None:
            return None
        question_id, text = question.id, cards.match_option(question, text)
    if person is None:
        accepted, reply = False, f"{inbound.sender.display_name} is unknown and may not answer."
    else:
        accepted, reply = cards.answer_question(tx, question_id, text, person.mailbox)
    if not accepted:
        _reply(tx, inbound, message, reply, "answer")
    return finish_held(tx, message, "release" if accepted else "reject", reply)


def _handle_command(
    tx: Tx, inbound: InboundMessage, message: Message, person: Person | None
) -> Message | None:
    name = parse_command(message.text)
    if message.kind is not MessageKind.TEXT or name not in commands.COMMANDS:
        return None
    result = commands.run_command(tx, name, inbound.place, message.thread, person)
    _reply(tx, inbound, message, result.reply, "command")
    verb = "release" if result.is_allowed else "reject"
    return finish_held(tx, message, verb, f"the command /{name}")


def _reply(tx: Tx, inbound: InboundMessage, message: Message, text: str, what: str) -> None:
    """Reply to a message in Corral's own name, once for each `what`."""
    draft = MessageDraft(text, thread=message.thread, key=f"{message.id}:{what}")
    queue.enqueue(tx, inbound.place, draft)


# -- holding for an owner's decision --------------------------------------------------------------


def hold_for_approval(tx: Tx, inbound: InboundMessage) -> Message:
    """Hold a stranger's message. The first one asks the owners whether the stranger may talk."""
    waiting = tx.all(sql.HELD_OF_SENDER, sender_id=inbound.sender.id, limit=MAX_HELD)
    if len(waiting) >= MAX_HELD:
        return store_message(
            tx, inbound, "refuse", f"{MAX_HELD} messages of this sender wait for approval"
        )
    sender = inbound.sender.display_name
    message = store_message(tx, inbound, "hold", f"an owner has not approved {sender} yet")
    if waiting:
        return message
    text = (
        f"May {sender} talk to agents on {inbound.channel.name}? "
        f"They wrote in {inbound.place.display_name}: {message.text[:MAX_EXCERPT]}"
    )
    if not _ask_owners(tx, inbound, f"sender:{inbound.sender.id}:{message.id}", text, [YES, NO]):
        return finish_held(tx, message, "reject", "too many strangers wait for approval")
    return message


def _hold_for_agent(tx: Tx, inbound: InboundMessage, message: Message) -> Message:
    """Keep a message held where no agent listens. The first one asks the owners for an agent."""
    held = tx.all(sql.HELD_OF_PLACE, place_id=inbound.place.id, limit=MAX_HELD)
    if len(held) >= MAX_HELD:
        return finish_held(
            tx, message, "reject", f"{MAX_HELD} messages of this place wait for an agent"
        )
    held_message = transition(
        tx, sql.MESSAGES, "hold_again", parse_number("msg", message.id), reason=NO_AGENT_YET
    )
    if any(other.reason == NO_AGENT_YET for other in held):
        return held_message
    # An imported agent may have a reserved name.
    names = [
        agent.name
        for agent in agents.list_agents(tx, limit=MAX_AGENT_OPTIONS).items
        if agent.name.lower() != NOBODY
    ]
    if not names:
        return finish_held(tx, message, "dismiss", "no agent is wired to this place")
    text = (
        f"Which agent should listen in {inbound.place.display_name} on {inbound.channel.name}? "
        f"{inbound.sender.display_name} wrote: {message.text[:MAX_EXCERPT]}"
    )
    key = f"place:{inbound.place.id}:{message.id}"
    if not _ask_owners(tx, inbound, key, text, [*names, NOBODY]):
        return finish_held(tx, message, "reject", "too many places wait for an agent")
    return held_message


def _ask_owners(tx: Tx, inbound: InboundMessage, key: str, text: str, options: list[str]) -> bool:
    """Ask the owners and admins; False when too many questions are open."""
    try:
        question = questions.ask(
            tx,
            text,
            options=options,
            asker=CHAT_MAILBOX,
            answerers=people.list_approvers(tx),
            key=key,
        )
    except Refused:  # the limit of open questions
        return False
    owner_place = inbound.channel.config.get("owner_place")
    if isinstance(owner_place, str):
        cards.show_card(tx, question, places.ensure_place(tx, inbound.channel, owner_place))
    return True
