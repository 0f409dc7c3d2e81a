"""What has to be known to judge a message: two looks at the store, kept for a whole batch.

Nothing is kept longer than a transaction, so nothing that somebody changes is ever missed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from corral.db.moves import encode_rows
from corral.db.tx import Tx
from corral.kernel.ids import number_of
from corral.kernel.text import encode_json
from corral.rooms.gateway import ops, sql, talking, wiring
from corral.rooms.gateway.model import (
    Channel,
    Message,
    Mode,
    Place,
    Route,
    Sender,
    Talk,
    Trigger,
    Wiring,
)
from corral.rooms.gateway.routing import Said, route

_channel, _place, _sender = (
    sql.CHANNELS.by_key.make,
    sql.PLACES.by_key.make,
    sql.SENDERS.by_key.make,
)
_wiring, _talk = sql.WIRINGS.by_key.make, sql.TALK.make
_FIELDS = [len(record.__struct_fields__) for record in (Channel, Place, Sender, Wiring)]
_TO_PLACE, _TO_SENDER = _FIELDS[0], _FIELDS[0] + _FIELDS[1]
_TO_REST = _TO_SENDER + _FIELDS[2]
_WIRED = _FIELDS[3]


class Arrival(NamedTuple):
    """What is known where an event arrives."""

    channel: Channel
    place: Place | None
    sender: Sender | None
    number: int | None
    """Of the message, when the event came before."""
    asked: bool
    """Whether a question is shown in the place."""


class Listener(NamedTuple):
    """A wiring that covers a place, and its agent there."""

    wiring: Wiring
    name: str | None
    """The agent's; None: it is retired."""
    allowed: bool
    """Whether it has a destination there, granted or taken back."""
    talk: Talk | None
    """Its session there; None: none yet, or one that somebody closed."""


class Seat(NamedTuple):
    """What a wiring made of a message, and the session of the agent that hears it."""

    route: Route
    wiring: Wiring
    talk: Talk | None


class Desk:
    """Where a transaction takes in what a channel brought."""

    def __init__(self, tx: Tx, channel: str) -> None:
        self._tx = tx
        whole = sql.CHANNEL_IDS.is_whole(channel)
        self.channel_id = channel if whole else ops.get_channel(tx, channel).id
        self._places: dict[str, tuple[Place, bool]] = {}
        self._senders: dict[str, Sender] = {}
        self._listeners: dict[tuple[str, str], list[Listener]] = {}
        self._channel: Channel | None = None
        self._numbers: dict[str, int] | None = None

    def expect(self, event_ids: Sequence[str]) -> None:
        """Nobody else takes these events in until we are done; what came before is known."""
        for event_id in sorted({*event_ids}):  # in one order, so that nobody waits in a circle
            self._tx.serialize(f"channel:{self.channel_id}:{event_id}")
        if len(event_ids) > 1:
            found = self._tx.run(
                sql.NUMBERS_BY_EVENT, channel_id=self.channel_id, keys_=encode_rows(event_ids)
            )
            self._numbers = dict(found)

    def stored(self, event_id: str, message: Message) -> Message:
        """One of them is stored; it may come again in the same batch."""
        if self._numbers is not None:
            self._numbers[event_id] = number_of("msg", message.id)
        return message

    def forget(self) -> None:
        """Something was changed that decides what is heard; look again."""
        self._places.clear()
        self._senders.clear()
        self._listeners.clear()

    def look(self, event_id: str, place: str, sender: str) -> Arrival:
        """What is known of an event, by the platform's ids."""
        numbers = self._numbers
        if (
            numbers is not None
            and self._channel is not None
            and place in self._places
            and sender in self._senders
        ):
            where, asked = self._places[place]
            return Arrival(
                self._channel, where, self._senders[sender], numbers.get(event_id), asked
            )
        rows = self._tx.run(
            sql.ARRIVAL,
            channel_id=self.channel_id,
            place=place,
            sender=sender,
            event_id=event_id,
        )
        if not rows:
            raise sql.CHANNELS.missing(self.channel_id)
        row = rows[0]
        number, asked = row[_TO_REST:]
        self._channel = _channel(row[:_TO_PLACE])
        found = _known(_place, row[_TO_PLACE:_TO_SENDER])
        who = _known(_sender, row[_TO_SENDER:_TO_REST])
        if found is not None and who is not None:
            self._places[place] = found, bool(asked)
            self._senders[sender] = who
        return Arrival(self._channel, found, who, number, bool(asked))

    def listeners(self, place: Place, thread: str | None) -> list[Listener]:
        """The wirings that cover a place; of two of one agent its own counts."""
        key = place.id, thread or ""
        if key not in self._listeners:
            self._listeners[key] = self._listening(place, thread or "")
        return self._listeners[key]

    def _listening(self, place: Place, thread: str) -> list[Listener]:
        rows = self._tx.run(
            sql.LISTENERS,
            channel_id=place.channel_id,
            place_id=place.id,
            thread=thread,
            limit=wiring.MAX_WIRINGS,
        )
        found = []
        for row in rows:
            name, destination, is_open = row[_WIRED : _WIRED + 3]
            talk = _known(_talk, row[_WIRED + 3 :])
            usable = talk is not None and (talk.run_id is not None or bool(is_open))
            found.append(
                Listener(
                    _wiring(row[:_WIRED]), name, destination is not None, talk if usable else None
                )
            )
        own = {each.wiring.agent_id for each in found if each.wiring.place_id is not None}
        return [
            each
            for each in found
            if each.wiring.place_id is not None or each.wiring.agent_id not in own
        ]

    def seats(self, said: Said, place: Place, thread: str | None) -> list[Seat]:
        """What each wiring makes of a message; whoever hears it has a session for it, and may
        answer. Empty: no agent is wired there."""
        listeners = self.listeners(place, thread)
        if not listeners:
            return []
        wired = {each.wiring.id: each for each in listeners}
        routes = route(
            said,
            [each.wiring for each in listeners],
            names={each.wiring.agent_id: each.name for each in listeners if each.name is not None},
            followed=self._followed(listeners, place, thread),
        )
        return [
            self._seat(each, wired[each.wiring_id], place, thread)
            if each.heard
            else Seat(each, wired[each.wiring_id].wiring, None)
            for each in routes
        ]

    def _seat(self, told: Route, listener: Listener, place: Place, thread: str | None) -> Seat:
        talk = listener.talk
        if not listener.allowed:
            wiring.allow(self._tx, told.agent_id, place)
        if talk is None:
            talk = talking.sit_down(self._tx, listener.wiring, place, thread)
        if not listener.allowed or listener.talk is None:
            self._listeners.clear()
        there = Route(told.wiring_id, told.agent_id, True, told.reason, talk.session_id)
        return Seat(there, listener.wiring, talk)

    def _followed(self, listeners: list[Listener], place: Place, thread: str | None) -> set[str]:
        """The agents that were addressed there before, where that matters to anybody."""
        if not any(each.wiring.trigger is Trigger.STICKY for each in listeners):
            return set()
        apart = {each.wiring.agent_id for each in listeners if each.wiring.mode is Mode.THREAD}
        return {
            talk.agent_id
            for talk in talking.talks_of_place(self._tx, place.id)
            # Where each thread has a session of its own, only this thread's counts.
            if talk.agent_id not in apart or talk.thread == (thread or "")
        }


def unheard(seats: Sequence[Seat]) -> str | None:
    """Why nobody hears a message; None: somebody does."""
    if not seats:
        return "no agent is wired to this place"
    if not any(seat.route.heard for seat in seats):
        return "it woke none of the agents wired here"
    return None


def routes_of(seats: Sequence[Seat]) -> str:
    """The routes of a message as they are kept; a letter is found by its mailbox and message."""
    return _encoded(tuple([seat.route for seat in seats]))


@lru_cache(256)  # most that is said in a place goes the same way
def _encoded(routes: tuple[Route, ...]) -> str:
    return encode_json(routes, "The routes")


def _known(make: Any, columns: tuple[Any, ...]) -> Any:
    """The record of a row that a LEFT JOIN found, if it did."""
    return make(columns) if columns[0] is not None else None
