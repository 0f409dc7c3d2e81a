"""What has to be known to judge a message: two looks at the store, kept for a whole batch.

Nothing is kept longer than a transaction, so nothing that somebody changes is ever missed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from corral.db.bulk_transitions import encode_rows
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels import ops
from corral.domain.chat.channels import wirings as channels_wirings
from corral.domain.chat.conversations import turns
from corral.domain.chat.inbound.router import Said, route
from corral.domain.chat.model import Channel, Message, Mode, Place, Route, Sender, Trigger, Wiring
from corral.kernel.ids import number_of
from corral.kernel.text import encode_json

_channel, _place, _sender = (
    sql.CHANNELS.by_key.make,
    sql.PLACES.by_key.make,
    sql.SENDERS.by_key.make,
)
_wiring = sql.WIRINGS.by_key.make
_FIELDS = [len(record.__struct_fields__) for record in (Channel, Place, Wiring)]
_TO_PLACE, _TO_SENDER, _WIRED = _FIELDS[0], _FIELDS[0] + _FIELDS[1], _FIELDS[2]


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
    session_id: str | None
    """Its session there; None: none yet, or one that somebody closed."""


class Audience(NamedTuple):
    """Everybody who listens in a place."""

    listeners: dict[str, Listener]
    """By the ids of their wirings."""
    wirings: list[Wiring]
    names: dict[str, str]
    """Of the agents that can be given work, by their ids."""
    sticks: bool
    """Whether it matters to any of them who was addressed before."""


class Seat(NamedTuple):
    """What a wiring made of a message, and the session of the agent that hears it."""

    route: Route
    wiring: Wiring


class Intake:
    """Where a transaction takes in what a channel brought."""

    def __init__(self, tx: Tx, channel: str) -> None:
        self._tx = tx
        whole = sql.CHANNEL_IDS.is_whole(channel)
        self.channel_id = channel if whole else ops.get_channel(tx, channel).id
        self._places: dict[str, tuple[Place, bool]] = {}
        self._senders: dict[str, Sender] = {}
        self._audiences: dict[tuple[str, str], Audience] = {}
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
        self._audiences.clear()

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
        number, asked = rows[0][-2:]
        self._channel, found, who = _people(rows[0][:-2])
        if found is not None and who is not None:
            self._places[place] = found, bool(asked)
            self._senders[sender] = who
        return Arrival(self._channel, found, who, number, bool(asked))

    def _audience(self, place: Place, thread: str) -> Audience:
        key = place.id, thread
        found = self._audiences.get(key)
        if found is None:
            rows = self._tx.run(
                sql.LISTENERS,
                channel_id=place.channel_id,
                place_id=place.id,
                thread=thread,
                limit=channels_wirings.MAX_WIRINGS,
            )
            found = self._audiences[key] = _audience(tuple(rows))
        return found

    def seats(self, said: Said, place: Place, thread: str | None) -> list[Seat]:
        """What each wiring makes of a message; whoever hears it has a session for it, and may
        answer. Empty: no agent is wired there."""
        here = self._audience(place, thread or "")
        followed = self._followed(here.wirings, place, thread) if here.sticks else set()
        routes = route(said, here.wirings, names=here.names, followed=followed)
        return [
            self._seat(each, here.listeners[each.wiring_id], place, thread)
            if each.heard
            else Seat(each, here.listeners[each.wiring_id].wiring)
            for each in routes
        ]

    def _seat(self, told: Route, listener: Listener, place: Place, thread: str | None) -> Seat:
        session_id = listener.session_id
        if not listener.allowed:
            channels_wirings.allow(self._tx, told.agent_id, place)
        if session_id is None:
            session_id = turns.sit_down(self._tx, listener.wiring, place, thread).session_id
        if not listener.allowed or listener.session_id is None:
            self._audiences.clear()
        there = Route(told.wiring_id, told.agent_id, True, told.reason, session_id)
        return Seat(there, listener.wiring)

    def _followed(self, wirings: list[Wiring], place: Place, thread: str | None) -> set[str]:
        """The agents that were addressed there before."""
        apart = {each.agent_id for each in wirings if each.mode is Mode.THREAD}
        return {
            talk.agent_id
            for talk in turns.talks_of_place(self._tx, place.id)
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


# The rows of a place are the same from message to message, mostly; reading them into records costs
# more than finding them does.


@lru_cache(512)
def _people(row: tuple[Any, ...]) -> tuple[Channel, Place | None, Sender | None]:
    return (
        _channel(row[:_TO_PLACE]),
        _known(_place, row[_TO_PLACE:_TO_SENDER]),
        _known(_sender, row[_TO_SENDER:]),
    )


@lru_cache(512)
def _audience(rows: tuple[tuple[Any, ...], ...]) -> Audience:
    """Of two wirings of one agent, that of the place counts."""
    found = []
    for row in rows:
        name, destination, session_id = row[_WIRED:]
        found.append(Listener(_wiring(row[:_WIRED]), name, destination is not None, session_id))
    own = {each.wiring.agent_id for each in found if each.wiring.place_id is not None}
    listeners = {
        each.wiring.id: each
        for each in found
        if each.wiring.place_id is not None or each.wiring.agent_id not in own
    }
    wirings = [each.wiring for each in listeners.values()]
    return Audience(
        listeners,
        wirings,
        {each.wiring.agent_id: each.name for each in listeners.values() if each.name is not None},
        any(each.trigger is Trigger.STICKY for each in wirings),
    )


def _known(make: Any, columns: tuple[Any, ...]) -> Any:
    """The record of a row that a LEFT JOIN found, if it did."""
    return make(columns) if columns[0] is not None else None
