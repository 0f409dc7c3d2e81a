"""The data that routing needs, read by two statements and cached for a batch of events.

The cache lives as long as one transaction, so it never misses a committed change.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels import destinations, ops
from corral.domain.chat.channels.wirings import MAX_WIRINGS
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.inbound.router import RoutingInput, route_message
from corral.domain.chat.model import (
    Channel,
    Message,
    Place,
    Route,
    Sender,
    SessionMode,
    Trigger,
    Wiring,
)
from corral.kernel.ids import parse_number
from corral.kernel.validation import encode_json


class EventContext(NamedTuple):
    """What the store knows about an event."""

    channel: Channel
    place: Place | None
    """None until the place is recorded."""
    sender: Sender | None
    number: int | None
    """The number of the message when the event was stored before."""
    has_open_question: bool
    """Whether the place shows an open question."""


class PlaceListener(NamedTuple):
    """A wiring that covers a place, with its agent's state there."""

    wiring: Wiring
    name: str | None
    """The agent's name; None when it is retired."""
    has_destination: bool
    """Whether the agent has a destination there, granted or revoked."""
    session_id: str | None
    """The agent's session there; None when one must be opened."""


class Audience(NamedTuple):
    """All listeners of a place."""

    listeners: dict[str, PlaceListener]
    """By wiring id."""
    wirings: list[Wiring]
    names: dict[str, str]
    """The names of the active agents, by agent id."""
    has_sticky_wiring: bool
    """Whether a wiring is sticky, so that routing depends on earlier messages."""


class Recipient(NamedTuple):
    """A wiring, and the route that it made of a message.

    When the message wakes the agent, the route has the session.
    """

    route: Route
    wiring: Wiring


class RoutingCache:
    """Caches channel, places, senders and listeners while one transaction receives events."""

    def __init__(self, tx: Tx, channel: str) -> None:
        self._tx = tx
        is_id = sql.CHANNEL_IDS.is_full_id(channel)
        self.channel_id = channel if is_id else ops.get_channel(tx, channel).id
        self._places: dict[str, tuple[Place, bool]] = {}
        self._senders: dict[str, Sender] = {}
        self._audiences: dict[tuple[str, str], Audience] = {}
        self._channel: Channel | None = None
        self._numbers: dict[str, int] | None = None

    def lock_events(self, event_ids: Sequence[str]) -> None:
        """Serialize with other receivers of these events, and look up those stored before."""
        for event_id in sorted({*event_ids}):  # sorted, to avoid deadlocks
            self._tx.serialize(f"channel:{self.channel_id}:{event_id}")
        if len(event_ids) > 1:
            rows = self._tx.run(
                sql.NUMBERS_BY_EVENT, channel_id=self.channel_id, keys_=encode_rows(event_ids)
            )
            self._numbers = dict(rows)

    def record_stored(self, event_id: str, message: Message) -> Message:
        """Record that an event is stored now: the same batch may contain it again."""
        if self._numbers is not None:
            self._numbers[event_id] = parse_number("msg", message.id)
        return message

    def invalidate(self) -> None:
        """Drop the cache after a change that affects routing."""
        self._places.clear()
        self._senders.clear()
        self._audiences.clear()

    def look_up(self, event_id: str, place: str, sender: str) -> EventContext:
        """Return what is known about an event, by the platform's ids."""
        numbers = self._numbers
        if (
            numbers is not None
            and self._channel is not None
            and place in self._places
            and sender in self._senders
        ):
            known_place, has_open_question = self._places[place]
            return EventContext(
                self._channel,
                known_place,
                self._senders[sender],
                numbers.get(event_id),
                has_open_question,
            )
        rows = self._tx.run(
            sql.EVENT_CONTEXT,
            channel_id=self.channel_id,
            place=place,
            sender=sender,
            event_id=event_id,
        )
        if not rows:
            raise sql.CHANNELS.not_found(self.channel_id)
        number, has_open_question = rows[0][-2:]
        self._channel, found_place, found_sender = _decode_event_row(rows[0][:-2])
        if found_place is not None and found_sender is not None:
            self._places[place] = found_place, bool(has_open_question)
            self._senders[sender] = found_sender
        return EventContext(
            self._channel, found_place, found_sender, number, bool(has_open_question)
        )

    def open_recipients(
        self, message: RoutingInput, place: Place, thread: str | None
    ) -> list[Recipient]:
        """Route a message and open the sessions of the agents that it wakes.

        A woken agent also gets a destination, so that it can answer. Returns one recipient for each
        wiring; an empty list means that no agent is wired to the place.
        """
        audience = self._load_audience(place, thread or "")
        followed = (
            self._list_followed(audience.wirings, place, thread)
            if audience.has_sticky_wiring
            else set()
        )
        routes = route_message(message, audience.wirings, names=audience.names, followed=followed)
        return [
            self._open_session(route, audience.listeners[route.wiring_id], place, thread)
            if route.wakes
            else Recipient(route, audience.listeners[route.wiring_id].wiring)
            for route in routes
        ]

    def _load_audience(self, place: Place, thread: str) -> Audience:
        key = place.id, thread
        audience = self._audiences.get(key)
        if audience is None:
            rows = self._tx.run(
                sql.LISTENERS_OF_PLACE,
                channel_id=place.channel_id,
                place_id=place.id,
                thread=thread,
                limit=MAX_WIRINGS,
            )
            audience = self._audiences[key] = _decode_audience(tuple(rows))
        return audience

    def _open_session(
        self, route: Route, listener: PlaceListener, place: Place, thread: str | None
    ) -> Recipient:
        session_id = listener.session_id
        if not listener.has_destination:
            destinations.ensure_destination(self._tx, route.agent_id, place)
        if session_id is None:
            conversation = conversations.open_for_wiring(self._tx, listener.wiring, place, thread)
            session_id = conversation.session_id
        if not listener.has_destination or listener.session_id is None:
            self._audiences.clear()
        opened = msgspec.structs.replace(route, session_id=session_id)
        return Recipient(opened, listener.wiring)

    def _list_followed(self, wirings: list[Wiring], place: Place, thread: str | None) -> set[str]:
        """Return the agents that were addressed in this place or thread before."""
        per_thread = {wiring.agent_id for wiring in wirings if wiring.mode is SessionMode.THREAD}
        return {
            conversation.agent_id
            for conversation in conversations.list_of_place(self._tx, place.id)
            # With one session for each thread, only the session of this thread counts.
            if conversation.agent_id not in per_thread or conversation.thread == (thread or "")
        }


def explain_ignored(recipients: Sequence[Recipient]) -> str | None:
    """Return why a message wakes no agent; None when it wakes one."""
    if not recipients:
        return "no agent is wired to this place"
    if not any(recipient.route.wakes for recipient in recipients):
        return "no wiring of this place matched"
    return None


def encode_routes(recipients: Sequence[Recipient]) -> str:
    """Encode the routes of a message for its row.

    The letters are left out: they are found by mailbox and message id.
    """
    return _encode_routes(tuple([recipient.route for recipient in recipients]))


@lru_cache(256)  # most messages of a place have the same routes
def _encode_routes(routes: tuple[Route, ...]) -> str:
    return encode_json(routes, "The routes")


# -- decoding of rows -----------------------------------------------------------------------------
#
# Cached: the rows of a place rarely change between messages, and decoding costs more than reading.

_make_channel = sql.CHANNELS.by_key.make
_make_place = sql.PLACES.by_key.make
_make_sender = sql.SENDERS.by_key.make
_make_wiring = sql.WIRINGS.by_key.make
_PLACE_AT = len(Channel.__struct_fields__)
_SENDER_AT = _PLACE_AT + len(Place.__struct_fields__)
_WIRING_END = len(Wiring.__struct_fields__)


@lru_cache(512)
def _decode_event_row(row: tuple[Any, ...]) -> tuple[Channel, Place | None, Sender | None]:
    return (
        _make_channel(row[:_PLACE_AT]),
        _decode_optional(_make_place, row[_PLACE_AT:_SENDER_AT]),
        _decode_optional(_make_sender, row[_SENDER_AT:]),
    )


@lru_cache(512)
def _decode_audience(rows: tuple[tuple[Any, ...], ...]) -> Audience:
    """Decode the listeners of a place.

    An agent's wiring of the place overrides its wiring of the whole channel.
    """
    decoded = []
    for row in rows:
        name, destination, session_id = row[_WIRING_END:]
        wiring = _make_wiring(row[:_WIRING_END])
        decoded.append(PlaceListener(wiring, name, destination is not None, session_id))
    wired_here = {
        listener.wiring.agent_id for listener in decoded if listener.wiring.place_id is not None
    }
    listeners = {
        listener.wiring.id: listener
        for listener in decoded
        if listener.wiring.place_id is not None or listener.wiring.agent_id not in wired_here
    }
    wirings = [listener.wiring for listener in listeners.values()]
    return Audience(
        listeners,
        wirings,
        {
            listener.wiring.agent_id: listener.name
            for listener in listeners.values()
            if listener.name is not None
        },
        any(wiring.trigger is Trigger.STICKY for wiring in wirings),
    )


def _decode_optional(make: Any, columns: tuple[Any, ...]) -> Any:
    """Decode the columns of a LEFT JOIN; None when it matched no row."""
    return make(columns) if columns[0] is not None else None
