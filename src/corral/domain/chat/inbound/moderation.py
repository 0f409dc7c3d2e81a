"""Moderate inbound messages: route, hold or reject them.

`find_recipients` and `deliver_all` handle messages that can be routed without moderation. Every
other message is stored as held first, then `moderate` treats it as the answer to a question, as a
command or as text for agents. Messages that wait for an owner's decision stay held; `held` releases
them.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from corral.adapters.channels.contract import IncomingEvent, MessageKind
from corral.db.transitions import create, create_numbered, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat import sql
from corral.domain.chat.channels import people, places
from corral.domain.chat.inbound import commands
from corral.domain.chat.inbound.router import RoutingInput, parse_command
from corral.domain.chat.inbound.routing_cache import (
    Recipient,
    RoutingCache,
    encode_routes,
    explain_ignored,
)
from corral.domain.chat.model import (
    CHAT_MAILBOX,
    Channel,
    Message,
    MessageState,
    Person,
    Place,
    PlaceState,
    Route,
    Sender,
    SenderState,
    StrangerPolicy,
)
from corral.domain.chat.outbound import cards, queue
from corral.domain.chat.payloads import draft_chat_letter
from corral.domain.mail import ops as mail
from corral.domain.mail.model import LetterDraft
from corral.domain.questions import ops as questions
from corral.kernel.errors import Refused
from corral.kernel.ids import parse_number
from corral.kernel.text import check_text, encode_json

MAX_EVENT_ID = 500
MAX_TEXT = 64 * 1024
MAX_HELD = 1_000
"""Held messages of one account, or of one place."""
MAX_AGENT_OPTIONS = 15
MAX_EXCERPT = 200
YES, NO, NOBODY = "yes", "no", "nobody"
NO_AGENT_YET = "an owner has not chosen an agent for this place yet"


class InboundMessage(NamedTuple):
    """A message that is being moderated."""

    channel: Channel
    place: Place
    sender: Sender
    incoming: IncomingEvent
    text: str
    """The text as it is stored."""

    @property
    def policy(self) -> StrangerPolicy:
        return self.place.policy or self.channel.policy

    @property
    def is_known(self) -> bool:
        return self.sender.state is SenderState.KNOWN

    @property
    def is_stranger(self) -> bool:
        """Whether an owner must approve the sender first."""
        return not self.is_known and self.policy is StrangerPolicy.ASK

    @property
    def can_ask_for_agent(self) -> bool:
        """Whether the owners are asked for an agent when none is wired to the place."""
        return self.policy is StrangerPolicy.ASK

    @property
    def routing_input(self) -> RoutingInput:
        return RoutingInput(self.text, self.place.direct, self.incoming.mentioned, self.is_known)


class Routable(NamedTuple):
    """A message that can be routed without moderation."""

    inbound: InboundMessage
    recipients: list[Recipient]
    reason: str | None
    """Why it wakes no agent; None when it wakes one."""


class RoutedMessage(NamedTuple):
    """A routable message, and the record that was stored for it."""

    routable: Routable
    message: Message

    def draft_letters(self) -> list[LetterDraft]:
        """Draft one letter for each session that the message wakes."""
        inbound = self.routable.inbound
        return [
            draft_chat_letter(route, wiring, self.message, inbound.place, inbound.sender)
            for route, wiring in self.routable.recipients
            if route.wakes
        ]


# -- the fast path --------------------------------------------------------------------------------


def find_recipients(cache: RoutingCache, inbound: InboundMessage) -> Routable | None:
    """Route a plain message of an admitted sender; None when it needs moderation."""
    if inbound.place.awaits_secret or not is_for_agents(inbound) or is_empty(inbound):
        return None
    if inbound.is_stranger or explain_rejection(inbound):
        return None
    recipients = cache.find_recipients(
        inbound.routing_input, inbound.place, inbound.incoming.thread
    )
    if not recipients and inbound.can_ask_for_agent:
        return None  # an owner is asked which agent should listen here
    return Routable(inbound, recipients, explain_ignored(recipients))


def deliver_all(tx: Tx, routables: Sequence[Routable]) -> list[Message]:
    """Store routable messages in order, and put a letter to each session that they wake."""
    routed_messages: list[RoutedMessage] = []
    # Messages with the same first state are stored by one statement.
    for is_ignored, group in groupby(routables, key=lambda routable: routable.reason is not None):
        routed_messages += _store_routables(tx, list(group), is_ignored=is_ignored)
    return _put_letters(tx, routed_messages)


def _store_routables(
    tx: Tx, routables: Sequence[Routable], *, is_ignored: bool
) -> list[RoutedMessage]:
    rows = [
        _build_row(tx, routable.inbound, routable.reason, routable.recipients)
        for routable in routables
    ]
    event_data = [
        _encode_event_data(routable.inbound.place.id, routable.reason) for routable in routables
    ]
    verb = "ignore" if is_ignored else "route"
    state = MessageState.IGNORED if is_ignored else MessageState.ROUTED
    numbers = create_numbered(tx, sql.MESSAGES, rows, verb=verb, event_data=event_data)
    routed_messages: list[RoutedMessage] = []
    for routable, row, number in zip(routables, rows, numbers, strict=True):
        assert number is not None, "the event id was checked under its lock"
        routed_messages.append(RoutedMessage(routable, sql.build_message(number, row, state)))
    return routed_messages


def _put_letters(tx: Tx, routed_messages: Sequence[RoutedMessage]) -> list[Message]:
    """Put the letters of messages; return the messages with the letter ids in their routes."""
    drafts = [draft for routed in routed_messages for draft in routed.draft_letters()]
    letter_ids = {
        (draft.mailbox, draft.key): letter_id
        for draft, letter_id in zip(drafts, mail.put_many(tx, drafts), strict=True)
    }
    messages: list[Message] = []
    for routable, message in routed_messages:
        routes = [
            _with_letter(recipient.route, message, letter_ids) for recipient in routable.recipients
        ]
        messages.append(msgspec.structs.replace(message, routes=routes))
    return messages


def _with_letter(
    route: Route, message: Message, letter_ids: Mapping[tuple[str, str], str]
) -> Route:
    """Return a route with the id of its letter, if it wakes its agent."""
    if not route.wakes:
        return route
    letter_id = letter_ids[f"session:{route.session_id}", message.id]
    return msgspec.structs.replace(route, letter_id=letter_id)


# -- checks ---------------------------------------------------------------------------------------


def explain_rejection(inbound: InboundMessage) -> str | None:
    """Return why a message is rejected; None when it is admitted."""
    if inbound.place.state is PlaceState.BLOCKED:
        return f"{inbound.place.display_name} is blocked"
    if inbound.sender.state is SenderState.BLOCKED:
        return f"{inbound.sender.display_name} is blocked"
    if inbound.policy is StrangerPolicy.STRICT and not inbound.is_known:
        return f"{inbound.sender.display_name} is unknown, and the policy rejects strangers"
    return None


def is_for_agents(inbound: InboundMessage) -> bool:
    """Whether it is text for agents, not a reaction, a pressed button or a command of Corral."""
    is_text = inbound.incoming.kind is MessageKind.TEXT
    return is_text and parse_command(inbound.text) not in commands.COMMANDS


def is_empty(inbound: InboundMessage) -> bool:
    """Whether a message has neither text nor files, such as a notice that a member joined."""
    incoming = inbound.incoming
    return incoming.kind is MessageKind.TEXT and not incoming.files and not inbound.text.strip()


# -- moderation -----------------------------------------------------------------------------------


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
    recipients = cache.find_recipients(inbound.routing_input, inbound.place, message.thread)
    if not recipients and inbound.can_ask_for_agent:
        return _hold_for_agent(tx, inbound, message)
    reason = explain_ignored(recipients)
    finished = finish_held(tx, message, "dismiss" if reason else "release", reason, recipients)
    routed = RoutedMessage(Routable(inbound, recipients, reason), finished)
    return _put_letters(tx, [routed])[0]


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
        queue.enqueue(tx, inbound.place, reply, thread=message.thread, key=f"{message.id}:answer")
    return finish_held(tx, message, "release" if accepted else "reject", reply)


def _handle_command(
    tx: Tx, inbound: InboundMessage, message: Message, person: Person | None
) -> Message | None:
    name = parse_command(message.text)
    if message.kind is not MessageKind.TEXT or name not in commands.COMMANDS:
        return None
    allowed, reply = commands.run_command(tx, name, inbound.place, message.thread, person)
    queue.enqueue(tx, inbound.place, reply, thread=message.thread, key=f"{message.id}:command")
    return finish_held(tx, message, "release" if allowed else "reject", f"the command /{name}")


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
    names = [agent.name for agent in agents.list_agents(tx, limit=MAX_AGENT_OPTIONS).items]
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


# -- rows -----------------------------------------------------------------------------------------


def store_message(
    tx: Tx,
    inbound: InboundMessage,
    verb: str,
    reason: str | None,
    recipients: Sequence[Recipient] = (),
) -> Message:
    """Store a message; `verb` gives its first state."""
    row = _build_row(tx, inbound, reason, recipients)
    row |= {"ended_at": None if verb == "hold" else tx.now}
    return create(
        tx, sql.MESSAGES, row, verb=verb, event_data=_build_event_data(inbound.place.id, reason)
    )


def finish_held(
    tx: Tx,
    message: Message,
    verb: str,
    reason: str | None,
    recipients: Sequence[Recipient] = (),
) -> Message:
    """Move a held message to its final state."""
    return transition(
        tx,
        sql.MESSAGES,
        verb,
        parse_number("msg", message.id),
        event_data={"reason": reason} if reason else None,
        reason=reason,
        routes=encode_routes(recipients),
        ended_at=tx.now,
    )


def _build_row(
    tx: Tx, inbound: InboundMessage, reason: str | None, recipients: Sequence[Recipient]
) -> dict[str, Any]:
    incoming = inbound.incoming
    return {
        "channel_id": inbound.channel.id,
        "place_id": inbound.place.id,
        "thread": _clean_platform_id(incoming.thread),
        "direction": "in",
        "kind": incoming.kind,
        "event_id": f"in:{incoming.event_id}",
        "platform_ids": encode_json([incoming.message_id], "The ids")
        if incoming.message_id
        else "[]",
        "reply_to": _clean_platform_id(incoming.reply_to),
        "sender_id": inbound.sender.id,
        "text": inbound.text,
        "data": _encode_data(incoming),
        "reason": reason,
        "routes": encode_routes(recipients),
        "at": incoming.at if incoming.at is not None else tx.now,
        "created_at": tx.now,
        "ended_at": tx.now,
    }


def _encode_data(incoming: IncomingEvent) -> str:
    if not (incoming.mentioned or incoming.files or incoming.question):
        return '{"mentioned":false}'
    data: dict[str, Any] = {"mentioned": incoming.mentioned}
    if incoming.files:
        data["files"] = [msgspec.to_builtins(file) for file in incoming.files]
    if incoming.question:
        data["question"] = incoming.question
    return encode_json(data, "The data")


def _build_event_data(place_id: str, reason: str | None) -> dict[str, Any]:
    return {"in": place_id, "reason": reason} if reason else {"in": place_id}


@lru_cache(256)  # mostly the same for one place
def _encode_event_data(place_id: str, reason: str | None) -> str:
    return encode_json(_build_event_data(place_id, reason), "An event")


def _clean_platform_id(value: str | None) -> str | None:
    return check_text(value, "The platform's id", max_bytes=MAX_EVENT_ID) if value else None


def clean_message(text: str) -> str:
    """Remove NUL characters and cut a text at MAX_TEXT bytes. A longer text is kept as a file."""
    text = text.replace("\0", "")
    if text.isascii():
        return text[:MAX_TEXT]
    return text.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore")
