"""Routable messages: plain messages of admitted senders, which need no moderation.

This is the fast path of `receive`. `try_route` decides whether a message can take it, and
`deliver_all` stores a batch of such messages with few statements.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from corral.adapters.channels.contract import MessageKind
from corral.db.bulk_transitions import create_numbered
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.inbound import commands
from corral.domain.chat.inbound.message import InboundMessage
from corral.domain.chat.inbound.message_rows import build_row, encode_event_data
from corral.domain.chat.inbound.router import parse_command
from corral.domain.chat.inbound.routing_cache import Recipient, RoutingCache, explain_ignored
from corral.domain.chat.model import Message, Route
from corral.domain.chat.payloads import draft_chat_letter
from corral.domain.mail import ops as mail
from corral.domain.mail.model import LetterDraft


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


def try_route(cache: RoutingCache, inbound: InboundMessage) -> Routable | None:
    """Route a plain message of an admitted sender; None when it needs moderation.

    Opens the sessions of the agents that it wakes, as `RoutingCache.open_recipients` does.
    """
    if inbound.place.awaits_secret or not _is_for_agents(inbound) or inbound.is_empty:
        return None
    if inbound.is_stranger or inbound.explain_rejection():
        return None
    recipients = cache.open_recipients(
        inbound.routing_input, inbound.place, inbound.incoming.thread
    )
    if not recipients and inbound.can_ask_for_agent:
        return None  # an owner is asked which agent should listen here
    return Routable(inbound, recipients, explain_ignored(recipients))


def _is_for_agents(inbound: InboundMessage) -> bool:
    """Whether it is text for agents, not a reaction, a pressed button or a command of Corral."""
    is_text = inbound.incoming.kind is MessageKind.TEXT
    return is_text and parse_command(inbound.text) not in commands.COMMANDS


def deliver_all(tx: Tx, routables: Sequence[Routable]) -> list[Message]:
    """Store routable messages in order, and put a letter to each session that they wake."""
    routed_messages: list[RoutedMessage] = []
    # Messages with the same first state are stored by one statement.
    for is_ignored, group in groupby(routables, key=lambda routable: routable.reason is not None):
        routed_messages += _store_routables(tx, list(group), is_ignored=is_ignored)
    return put_letters(tx, routed_messages)


def _store_routables(
    tx: Tx, routables: Sequence[Routable], *, is_ignored: bool
) -> list[RoutedMessage]:
    rows = [
        build_row(tx, routable.inbound, routable.reason, routable.recipients)
        for routable in routables
    ]
    event_data = [
        encode_event_data(routable.inbound.place.id, routable.reason) for routable in routables
    ]
    verb = "ignore" if is_ignored else "route"
    messages = create_numbered(tx, sql.MESSAGES, rows, verb=verb, event_data=event_data)
    routed_messages: list[RoutedMessage] = []
    for routable, message in zip(routables, messages, strict=True):
        assert message is not None, "the event id was checked under its lock"
        routed_messages.append(RoutedMessage(routable, message))
    return routed_messages


def put_letters(tx: Tx, routed_messages: Sequence[RoutedMessage]) -> list[Message]:
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
