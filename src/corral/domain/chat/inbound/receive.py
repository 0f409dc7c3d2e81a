"""What comes in: stored once, judged, and given to those who are to hear it."""

from collections.abc import Sequence

import msgspec

from corral.adapters.channels.contract import Incoming, Kind
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import AgentState
from corral.domain.chat import queries, sql
from corral.domain.chat.channels import ops
from corral.domain.chat.channels import wirings as channels_wirings
from corral.domain.chat.conversations import turns
from corral.domain.chat.inbound import moderation
from corral.domain.chat.inbound.context import Arrival, Intake
from corral.domain.chat.inbound.moderation import MAX_EVENT, MAX_TEXT, Clear, Heard
from corral.domain.chat.inbound.router import Said, route
from corral.domain.chat.model import ChannelState, Message, Place, Route, Wiring
from corral.domain.chat.outbound import cards, queue
from corral.kernel.errors import Refused
from corral.kernel.text import clean_text


def receive(tx: Tx, channel: str, incoming: Incoming) -> Message:
    """Store an event of a platform, once, and give it to whoever is to hear it.

    When this returns, the platform may be told that we have it: an event that comes again gives
    back what was stored. Who heard it, and why, stands in the message.
    """
    return receive_all(tx, channel, [incoming])[0]


def receive_all(
    tx: Tx, channel: str, events: Sequence[Incoming], *, cursor: str | None = None
) -> list[Message]:
    """Store what a platform brought at once, in its order, and how far that is; all or nothing.

    What is to be known of channel, places and people is read once for all of it.
    """
    ids = [f"in:{clean_text(each.event_id, 'The event', most=MAX_EVENT)}" for each in events]
    batch = _Batch(tx, channel, ids)
    for id, each in zip(ids, events, strict=True):
        batch.receive(id, each)
    stored = batch.stored()
    if cursor is not None:
        ops.note_cursor(tx, batch.intake.channel_id, cursor)
    return stored


class _Batch:
    """Events on their way into the store: of those that are clear at once, all that come one after
    the other are stored together."""

    def __init__(self, tx: Tx, channel: str, ids: list[str]) -> None:
        self._tx = tx
        self.intake = Intake(tx, channel)
        self.intake.expect(ids)
        self._stored: list[Message] = []
        self._clear: dict[str, Clear] = {}

    def receive(self, event: str, incoming: Incoming) -> None:
        for given, what in ((incoming.place, "The place"), (incoming.sender, "The sender")):
            clean_text(given, what, most=ops.MAX_PLATFORM_ID)
        if event in self._clear:  # it came twice
            self.stored()
        at = self.intake.look(event, incoming.place, incoming.sender)
        if at.channel.state is not ChannelState.ACTIVE:
            raise Refused(f"The channel {at.channel.name} was removed.", channel=at.channel.id)
        if at.number is not None:
            self.stored().append(queries.get(self._tx, f"msg_{at.number}"))
            return
        heard = self._met(at, incoming)
        said = None if at.asked else moderation.clear(self.intake, heard)
        if said is not None:
            self._clear[event] = said
        else:
            self.stored().append(self.intake.stored(event, self._judged(heard)))

    def stored(self) -> list[Message]:
        """All of them that came so far."""
        if self._clear:
            made = moderation.hear(self._tx, list(self._clear.values()))
            for event, message in zip(self._clear, made, strict=True):
                self._stored.append(self.intake.stored(event, message))
            self._clear.clear()
        return self._stored

    def _judged(self, heard: Heard) -> Message:
        """A message of which something else may come than that agents hear it."""
        tx = self._tx
        if heard.place.guarded and cards.is_secret(tx, heard.place, heard.incoming):
            return _keep_nothing(tx, heard)
        if why := moderation.turned_away(heard):
            return moderation.store(tx, heard, "turn_away", why)
        if moderation.says_nothing(heard):
            return moderation.store(tx, heard, "ignore", "there are no words in it, and no file")
        self.intake.forget()  # what comes of it may decide what becomes of the next
        if heard.is_stranger:
            return moderation.hold(tx, heard)
        return moderation.judge(
            tx, heard, moderation.store(tx, heard, "hold", "it is being judged")
        )

    def _met(self, at: Arrival, incoming: Incoming) -> Heard:
        """An event with its place and sender, under the names that they have now."""
        on, place, sender = at.channel, at.place, at.sender
        # What is no message need not say where it was: a button is pressed without a look around.
        direct = incoming.direct if incoming.kind is Kind.TEXT or place is None else None
        if (
            place is None
            or incoming.place_name not in (None, "", place.name)
            or direct not in (None, place.direct)  # others have come: not all may do everything
        ):
            self.intake.forget()
            place = ops.meet_place(
                self._tx, on, incoming.place, name=incoming.place_name, direct=direct
            )
        if sender is None or incoming.sender_name not in (None, "", sender.name):
            self.intake.forget()
            sender = ops.meet_sender(self._tx, on, incoming.sender, incoming.sender_name)
        return Heard(on, place, sender, incoming, moderation.clean(incoming.text))


def is_secret(tx: Tx, channel: str, incoming: Incoming) -> bool:
    """Whether an event may be a secret that was asked for in its place: then nothing of it, nor of
    what is attached, is kept."""
    place = tx.one(sql.PLACE_BY_PLATFORM, channel_id=channel, platform_id=incoming.place)
    return place is not None and place.guarded and cards.is_secret(tx, place, incoming)


def _keep_nothing(tx: Tx, heard: Heard) -> Message:
    """Somebody typed a secret where it was asked for: nothing of it is kept, and that is said."""
    bare = msgspec.structs.replace(heard.incoming, text=cards.REDACTED, files=[], attached=[])
    redacted = heard._replace(incoming=bare, text=cards.REDACTED)
    stored = moderation.store(tx, redacted, "turn_away", cards.NOT_HERE)
    queue.queue(tx, heard.place, cards.NOT_HERE, thread=stored.thread, key=f"{stored.id}:secret")
    return stored


def note_unreadable(tx: Tx, channel: str, event_id: str, reason: str) -> None:
    """Put on record that an event of a platform cannot be stored; it is passed over."""
    found = ops.get_channel(tx, channel)
    shown = moderation.clean(event_id)[:MAX_EVENT]
    tx.note("channel", "pass_over", found.id, data={"event": shown, "reason": reason})


def try_out(
    tx: Tx, place: str, text: str, *, known: bool = True, mentioned: bool = False
) -> list[Route]:
    """Who would hear a text in a place, and why; nothing is stored.

    A place of which nothing was heard yet (CHANNEL/ID) is covered by the wirings of its whole
    channel.
    """
    where = ops.find_place(tx, place)
    wirings = channels_wirings.wirings_of(tx, where)
    followed = {talk.agent_id for talk in turns.talks_of_place(tx, where.id)}
    direct = isinstance(where, Place) and where.direct
    said = Said(clean_text(text, "The text", most=MAX_TEXT), direct, mentioned, known)
    return route(said, wirings, names=_names(tx, wirings), followed=followed)


def _names(tx: Tx, wirings: list[Wiring]) -> dict[str, str]:
    found = [agents.get(tx, each.agent_id) for each in wirings]
    return {agent.id: agent.name for agent in found if agent.state is AgentState.ACTIVE}
