"""Receive events of a platform: store each once, moderate it and route it to agents.

The path of an event, top down:

    receive_all             one transaction for a batch of events
    _Batch.receive          skip an event that is stored, record its place and sender
    routable.try_route
                            fast path: a plain message of an admitted sender is routed at once
    router.route_message    which wirings wake their agents, and why
    routable.deliver_all    store the messages and put a letter to each session that is woken

Everything else goes through `_Batch._moderate`: rejected senders, secrets, strangers that wait for
approval, answers to questions, and commands.
"""

from collections.abc import Sequence

import msgspec

from corral.adapters.channels.contract import IncomingEvent, MessageKind
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import AgentState
from corral.domain.chat import queries, sql
from corral.domain.chat.channels import ops, people, places, wirings
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.inbound import moderation
from corral.domain.chat.inbound.message import (
    MAX_EVENT_ID,
    MAX_TEXT,
    InboundMessage,
    clean_message,
)
from corral.domain.chat.inbound.message_rows import store_message
from corral.domain.chat.inbound.routable import Routable, deliver_all, try_route
from corral.domain.chat.inbound.router import RoutingInput, route_message
from corral.domain.chat.inbound.routing_cache import EventContext, RoutingCache
from corral.domain.chat.model import (
    MAX_PLATFORM_ID,
    ChannelState,
    Message,
    Place,
    Route,
    Wiring,
)
from corral.domain.chat.outbound import cards, queue
from corral.domain.chat.outbound.queue import MessageDraft
from corral.kernel.errors import Refused
from corral.kernel.validation import check_text


def receive(tx: Tx, channel: str, incoming: IncomingEvent) -> Message:
    """Store one event of a platform and route it.

    Idempotent by the event's id: an event that was stored before returns its message. After the
    commit the event may be acknowledged to the platform. The message has its routes with reasons.
    """
    return receive_all(tx, channel, [incoming])[0]


def receive_all(
    tx: Tx, channel: str, events: Sequence[IncomingEvent], *, cursor: str | None = None
) -> list[Message]:
    """Store a batch of events in order, with the platform's cursor behind them; all or nothing.

    The channel, places, senders and wirings are read once for the batch.
    """
    ids = [
        f"in:{check_text(event.event_id, 'The event', max_bytes=MAX_EVENT_ID)}" for event in events
    ]
    batch = _Batch(tx, channel, ids)
    for event_id, event in zip(ids, events, strict=True):
        batch.receive(event_id, event)
    messages = batch.flush()
    if cursor is not None:
        ops.save_cursor(tx, batch.cache.channel_id, cursor)
    return messages


class _Batch:
    """The events of one transaction. Consecutive routable messages are stored in one statement."""

    def __init__(self, tx: Tx, channel: str, event_ids: list[str]) -> None:
        self._tx = tx
        self.cache = RoutingCache(tx, channel)
        self.cache.lock_events(event_ids)
        self._messages: list[Message] = []
        self._pending: dict[str, Routable] = {}

    def receive(self, event_id: str, incoming: IncomingEvent) -> None:
        for value, what in ((incoming.place, "The place"), (incoming.sender, "The sender")):
            check_text(value, what, max_bytes=MAX_PLATFORM_ID)
        if event_id in self._pending:  # the same event twice in one batch
            self.flush()
        event = self.cache.look_up(event_id, incoming.place, incoming.sender)
        if event.channel.state is not ChannelState.ACTIVE:
            raise Refused(
                f"Channel {event.channel.name} was removed.",
                channel=event.channel.id,
                reason="channel_removed",
            )
        if event.number is not None:
            self.flush()
            self._messages.append(queries.get_message(self._tx, f"msg_{event.number}"))
            return
        inbound = self._resolve(event, incoming)
        routable = None  # in a place with an open question, the message may be its answer
        if not event.has_open_question:
            routable = try_route(self.cache, inbound)
        if routable is not None:
            self._pending[event_id] = routable
        else:
            self.flush()
            message = self._moderate(inbound)
            self._messages.append(self.cache.record_stored(event_id, message))

    def flush(self) -> list[Message]:
        """Store the pending messages; return all messages of the batch so far."""
        if self._pending:
            delivered = deliver_all(self._tx, list(self._pending.values()))
            for event_id, message in zip(self._pending, delivered, strict=True):
                self._messages.append(self.cache.record_stored(event_id, message))
            self._pending.clear()
        return self._messages

    def _resolve(self, event: EventContext, incoming: IncomingEvent) -> InboundMessage:
        """Record the place and the sender of an event, or update their names."""
        channel, place, sender = event.channel, event.place, event.sender
        # Only text messages report reliably whether the chat is direct; a pressed button does not.
        direct = incoming.direct if incoming.kind is MessageKind.TEXT or place is None else None
        if (
            place is None
            or incoming.place_name not in (None, "", place.name)
            or direct not in (None, place.direct)
        ):
            self.cache.invalidate()
            place = places.ensure_place(
                self._tx, channel, incoming.place, name=incoming.place_name, direct=direct
            )
        if sender is None or incoming.sender_name not in (None, "", sender.name):
            self.cache.invalidate()
            sender = people.ensure_sender(self._tx, channel, incoming.sender, incoming.sender_name)
        text = clean_message(incoming.text)
        return InboundMessage(channel, place, sender, incoming, text)

    def _moderate(self, inbound: InboundMessage) -> Message:
        """Store a message that cannot be routed at once."""
        tx = self._tx
        if inbound.place.awaits_secret and cards.can_be_secret(tx, inbound.place, inbound.incoming):
            return _reject_secret(tx, inbound)
        if reason := inbound.explain_rejection():
            return store_message(tx, inbound, "refuse", reason)
        if inbound.is_empty:
            return store_message(tx, inbound, "ignore", "the message has no text and no file")
        self.cache.invalidate()  # a command or an answer may change how later events are routed
        if inbound.is_stranger:
            return moderation.hold_for_approval(tx, inbound)
        held = store_message(tx, inbound, "hold", "moderation is in progress")
        return moderation.moderate(tx, inbound, held)


def has_possible_secret(tx: Tx, channel: str, incoming: IncomingEvent) -> bool:
    """Whether an event may contain a secret that is asked for in its place.

    If so, neither its text nor its files may be stored.
    """
    place = tx.first(sql.PLACE_BY_PLATFORM, channel_id=channel, platform_id=incoming.place)
    return place is not None and place.awaits_secret and cards.can_be_secret(tx, place, incoming)


def _reject_secret(tx: Tx, inbound: InboundMessage) -> Message:
    """Store a redacted message without its files, and tell the sender what to do."""
    bare = msgspec.structs.replace(inbound.incoming, text=cards.REDACTED, files=[], attached=[])
    redacted = inbound._replace(incoming=bare, text=cards.REDACTED)
    message = store_message(tx, redacted, "refuse", cards.NOT_KEPT_REPLY)
    draft = MessageDraft(cards.NOT_KEPT_REPLY, thread=message.thread, key=f"{message.id}:secret")
    queue.enqueue(tx, inbound.place, draft)
    return message


def record_unreadable(tx: Tx, channel: str, event_id: str, reason: str) -> None:
    """Record that an event of a platform cannot be stored and is skipped."""
    source = ops.get_channel(tx, channel)
    event = clean_message(event_id)[:MAX_EVENT_ID]
    tx.emit("channel", "skip_event", source.id, data={"event": event, "reason": reason})


def preview_routes(
    tx: Tx, place: str, text: str, *, known: bool = True, mentioned: bool = False
) -> list[Route]:
    """Return how a text in a place would be routed, without storing anything.

    A place that is not recorded yet (CHANNEL/ID) is covered by the wirings of its whole channel.
    """
    target = places.resolve_place(tx, place)
    covering = wirings.list_covering(tx, target)
    followed = {
        conversation.agent_id for conversation in conversations.list_of_place(tx, target.id)
    }
    direct = isinstance(target, Place) and target.direct
    message = RoutingInput(
        check_text(text, "The text", max_bytes=MAX_TEXT), direct, mentioned, known
    )
    return route_message(
        message, covering, names=_list_active_names(tx, covering), followed=followed
    )


def _list_active_names(tx: Tx, covering: list[Wiring]) -> dict[str, str]:
    wired = [agents.get(tx, wiring.agent_id) for wiring in covering]
    return {agent.id: agent.name for agent in wired if agent.state is AgentState.ACTIVE}
