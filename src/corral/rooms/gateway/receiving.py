"""What comes in: stored once, judged, and given to those who are to hear it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from corral.adapters.channels.contract import Incoming, Kind
from corral.db.moves import create, move
from corral.db.tx import Tx
from corral.kernel.errors import Refused
from corral.kernel.ids import number_of
from corral.kernel.text import clean_text, encode_json
from corral.rooms.agents import ops as agents
from corral.rooms.agents.model import AgentState
from corral.rooms.gateway import cards, commands, looking, ops, sending, sql, talking, wiring
from corral.rooms.gateway.hearing import Desk, Seat, routes_of, unheard
from corral.rooms.gateway.model import (
    Channel,
    ChannelState,
    Message,
    Person,
    Place,
    PlaceState,
    Policy,
    Route,
    Sender,
    SenderState,
    Wiring,
)
from corral.rooms.gateway.routing import Said, command_of, route
from corral.rooms.mail import ops as mail
from corral.rooms.mail.model import Letter
from corral.rooms.questions import ops as questions
from corral.rooms.questions.model import Question

MAILBOX = "queue:gateway"
"""Where answers go to what Corral itself asks of owners."""
MAX_EVENT = 500
MAX_TEXT = 64 * 1024
MAX_HELD = 1_000
MOST_NAMES = 15
YES, NO, NOBODY = "yes", "no", "nobody"
NO_AGENT_YET = "nobody has said which agent is to hear this place"


class _Heard(NamedTuple):
    """A message that is being judged."""

    channel: Channel
    place: Place
    sender: Sender
    incoming: Incoming
    text: str
    """Its words as they are kept."""

    @property
    def policy(self) -> Policy:
        return self.place.policy or self.channel.policy

    @property
    def known(self) -> bool:
        return self.sender.state is SenderState.KNOWN


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
    desk = Desk(tx, channel)
    ids = [f"in:{clean_text(each.event_id, 'The event', most=MAX_EVENT)}" for each in events]
    desk.expect(ids)
    stored = [
        desk.stored(id, _receive(tx, desk, id, each)) for id, each in zip(ids, events, strict=True)
    ]
    if cursor is not None:
        ops.note_cursor(tx, desk.channel_id, cursor)
    return stored


def _receive(tx: Tx, desk: Desk, event: str, incoming: Incoming) -> Message:
    for given, what in ((incoming.place, "The place"), (incoming.sender, "The sender")):
        clean_text(given, what, most=ops.MAX_PLATFORM_ID)
    at = desk.look(event, incoming.place, incoming.sender)
    on = at.channel
    if on.state is not ChannelState.ACTIVE:
        raise Refused(f"The channel {on.name} was removed.", channel=on.id)
    if at.number is not None:
        return looking.get(tx, f"msg_{at.number}")
    place, sender = at.place, at.sender
    if place is None or incoming.place_name not in (None, "", place.name):
        desk.forget()
        place = ops.meet_place(
            tx, on, incoming.place, name=incoming.place_name, direct=incoming.direct
        )
    if sender is None or incoming.sender_name not in (None, "", sender.name):
        desk.forget()
        sender = ops.meet_sender(tx, on, incoming.sender, incoming.sender_name)
    heard = _Heard(on, place, sender, incoming, _clean(incoming.text))
    if why := _turned_away(heard):
        return _store(tx, heard, "turn_away", why)
    if heard.policy is Policy.ASK and not heard.known:
        return _hold(tx, heard, f"nobody has said whether {sender.called} may talk here")
    if incoming.kind is Kind.TEXT and not at.asked and not _is_command(heard.text):
        return _hear(tx, desk, heard)
    desk.forget()
    return _judge(tx, heard, _store(tx, heard, "hold", "it is being judged"))


def _hear(tx: Tx, desk: Desk, heard: _Heard) -> Message:
    """Store words that are clear at once, with who hears them."""
    seats = desk.seats(_said(heard), heard.place, heard.incoming.thread)
    if not seats and heard.policy is Policy.ASK:
        desk.forget()
        return _ask_for_agent(tx, heard, _store(tx, heard, "hold", "it is being judged"))
    reason = unheard(seats)
    message = _store(tx, heard, "ignore" if reason else "hear", reason, seats)
    return _told(tx, heard, message, seats)


def _told(tx: Tx, heard: _Heard, message: Message, seats: Sequence[Seat]) -> Message:
    """Give a message to those who hear it."""
    routes = [
        talking.tell(tx, seat.route, seat.wiring, seat.talk, message, heard.place, heard.sender)
        if seat.talk is not None
        else seat.route
        for seat in seats
    ]
    return msgspec.structs.replace(message, routes=routes)


def _said(heard: _Heard) -> Said:
    return Said(heard.text, heard.place.direct, heard.incoming.mentioned, heard.known)


def _is_command(text: str) -> bool:
    return command_of(text) in commands.KNOWN


def _turned_away(heard: _Heard) -> str | None:
    if heard.place.state is PlaceState.BLOCKED:
        return f"{heard.place.called} is blocked"
    if heard.sender.state is SenderState.BLOCKED:
        return f"{heard.sender.called} is blocked"
    if heard.policy is Policy.STRICT and not heard.known:
        return f"{heard.sender.called} is not known here, and strangers are not heard"
    return None


def _store(
    tx: Tx, heard: _Heard, verb: str, reason: str | None, seats: Sequence[Seat] = ()
) -> Message:
    incoming = heard.incoming
    ended = None if verb == "hold" else tx.now
    data: dict[str, Any] = {"mentioned": incoming.mentioned}
    if incoming.files:
        data["files"] = [msgspec.to_builtins(file) for file in incoming.files]
    if incoming.question:
        data["question"] = incoming.question
    made = create(
        tx,
        sql.MESSAGES,
        {
            "channel_id": heard.channel.id,
            "place_id": heard.place.id,
            "thread": _short(incoming.thread),
            "direction": "in",
            "kind": incoming.kind,
            "event_id": f"in:{incoming.event_id}",
            "platform_ids": encode_json([incoming.message_id], "The ids")
            if incoming.message_id
            else "[]",
            "reply_to": _short(incoming.reply_to),
            "sender_id": heard.sender.id,
            "text": heard.text,
            "data": encode_json(data, "The data"),
            "reason": reason,
            "routes": routes_of(seats),
            "at": incoming.at if incoming.at is not None else tx.now,
            "created_at": tx.now,
            "ended_at": ended,
        },
        begin=verb,
        note={"in": heard.place.id, "reason": reason} if reason else {"in": heard.place.id},
    )
    assert made is not None
    return made


def _judge(tx: Tx, heard: _Heard, message: Message) -> Message:
    """Give a message that is held to whoever is to hear it."""
    who = ops.person(tx, heard.sender.person)
    for treat in (_as_answer, _as_command):
        said = treat(tx, heard, message, who)
        if said is not None:
            return said
    if message.kind is not Kind.TEXT:
        return _let_go(tx, message, "pass_over", f"agents are not woken by a {message.kind}")
    seats = Desk(tx, heard.channel.id).seats(_said(heard), heard.place, message.thread)
    if not seats and heard.policy is Policy.ASK:
        return _ask_for_agent(tx, heard, message)
    reason = unheard(seats)
    verb = "pass_over" if reason else "admit"
    return _told(tx, heard, _let_go(tx, message, verb, reason, seats), seats)


def note_unreadable(tx: Tx, channel: str, event_id: str, reason: str) -> None:
    """Put on record that an event of a platform cannot be stored; it is passed over."""
    found = ops.get_channel(tx, channel)
    shown = _clean(event_id)[:MAX_EVENT]
    tx.note("channel", "pass_over", found.id, data={"event": shown, "reason": reason})


def try_out(
    tx: Tx, place: str, text: str, *, known: bool = True, mentioned: bool = False
) -> list[Route]:
    """Who would hear a text in a place, and why; nothing is stored."""
    where = ops.get_place(tx, place)
    wirings = wiring.wirings_of(tx, where)
    followed = {talk.agent_id for talk in talking.talks_of_place(tx, where.id)}
    said = Said(clean_text(text, "The text", most=MAX_TEXT), where.direct, mentioned, known)
    return route(said, wirings, names=_names(tx, wirings), followed=followed)


def _names(tx: Tx, wirings: list[Wiring]) -> dict[str, str]:
    found = [agents.get(tx, each.agent_id) for each in wirings]
    return {agent.id: agent.name for agent in found if agent.state is AgentState.ACTIVE}


def _let_go(
    tx: Tx, message: Message, verb: str, reason: str | None, seats: Sequence[Seat] = ()
) -> Message:
    return move(
        tx,
        sql.MESSAGES,
        verb,
        number_of("msg", message.id),
        note={"reason": reason} if reason else None,
        reason=reason,
        routes=routes_of(seats),
        ended_at=tx.now,
    )


def _as_answer(tx: Tx, heard: _Heard, message: Message, who: Person | None) -> Message | None:
    """An answer to a question that is shown: by a button, or by its number or words."""
    asked = (message.data or {}).get("question") if message.kind is Kind.ANSWER else None
    text = message.text
    if asked is None:
        if message.kind is not Kind.TEXT:
            return None
        meant = cards.meant_in(tx, heard.place, text)
        if meant is None:
            return None
        asked, text = meant.id, cards.option_of(meant, text)
    if who is None:
        counts, said = False, f"{heard.sender.called} is not known here and may not answer."
    else:
        counts, said = cards.answer(tx, asked, text, who.mailbox)
    if not counts:
        sending.queue(tx, heard.place, said, thread=message.thread, key=f"{message.id}:answer")
    return _let_go(tx, message, "admit" if counts else "refuse", said)


def _as_command(tx: Tx, heard: _Heard, message: Message, who: Person | None) -> Message | None:
    name = command_of(message.text)
    if message.kind is not Kind.TEXT or name not in commands.KNOWN:
        return None
    allowed, said = commands.run(tx, name, heard.place, message.thread, who)
    sending.queue(tx, heard.place, said, thread=message.thread, key=f"{message.id}:command")
    return _let_go(tx, message, "admit" if allowed else "refuse", f"the command /{name}")


# -- asking owners --------------------------------------------------------------------------------


def _hold(tx: Tx, heard: _Heard, why: str) -> Message:
    """Hold what a stranger said, and ask an owner, once however much the stranger says."""
    waiting = tx.all(sql.HELD_OF_SENDER, sender_id=heard.sender.id, limit=MAX_HELD)
    if len(waiting) >= MAX_HELD:
        return _store(tx, heard, "turn_away", f"{MAX_HELD} of its messages wait to be let in")
    message = _store(tx, heard, "hold", why)
    if waiting:
        return message
    text = (
        f"May {heard.sender.called} ({heard.sender.platform_id}) talk to agents on "
        f"{heard.channel.name}? It says in {heard.place.called}: {message.text[:200]}"
    )
    if not _ask(tx, heard, f"sender:{heard.sender.id}:{message.id}", text, [YES, NO]):
        return _let_go(tx, message, "refuse", "too many strangers wait to be let in")
    return message


def _ask_for_agent(tx: Tx, heard: _Heard, message: Message) -> Message:
    """Hold what was said where no agent listens, and ask an owner which one is to."""
    held = tx.all(sql.HELD_OF_PLACE, place_id=heard.place.id, limit=MAX_HELD)
    if len(held) >= MAX_HELD:
        return _let_go(tx, message, "refuse", f"{MAX_HELD} messages wait for an agent here")
    kept = move(tx, sql.MESSAGES, "keep", number_of("msg", message.id), reason=NO_AGENT_YET)
    if any(each.reason == NO_AGENT_YET for each in held):
        return kept
    names = [each.name for each in agents.list_agents(tx, limit=MOST_NAMES).items]
    if not names:
        return _let_go(tx, message, "pass_over", "no agent is wired to this place")
    text = (
        f"Which agent is to hear {heard.place.called} on {heard.channel.name}? "
        f"{heard.sender.called} says: {message.text[:200]}"
    )
    if not _ask(tx, heard, f"place:{heard.place.id}:{message.id}", text, [*names, NOBODY]):
        return _let_go(tx, message, "refuse", "too many places wait for an agent")
    return kept


def _ask(tx: Tx, heard: _Heard, key: str, text: str, options: list[str]) -> bool:
    try:
        question = questions.ask(
            tx, text, options=options, asker=MAILBOX, answerers=ops.owners(tx), key=key
        )
    except Refused:  # so many are asked already that more would only be noise
        return False
    where = heard.channel.config.get("owner_place")
    if isinstance(where, str):
        cards.show(tx, question, ops.meet_place(tx, heard.channel, where))
    return True


def hear_owner(tx: Tx, letter: Letter) -> None:
    """Do what an owner's answer says, and let what was held go on, or turn it away."""
    id = letter.body.get("question") if isinstance(letter.body, dict) else None
    question = questions.get(tx, id) if isinstance(id, str) else None
    if question is None or question.asker != MAILBOX or question.ended_at is None:
        # Whoever put it here: what Corral asked is not answered by it.
        mail.refuse(tx, letter, "it is no answer to a question of the gateway")
        return
    about, id, _ = (question.key or "::").split(":", 2)
    if about == "sender":
        _hear_about_sender(tx, question, id)
    elif about == "place":
        _hear_about_place(tx, question, id)
    mail.ack(tx, letter)


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
    if question.answer not in (None, NOBODY) and not wiring.wirings_of(tx, place):
        trigger = "always" if place.direct else "mention"
        wiring.add_wiring(tx, str(question.answer), place=id, trigger=trigger)
    held = tx.all(sql.HELD_OF_PLACE, place_id=id, limit=MAX_HELD)
    _replay(tx, held, question.answer in (None, NOBODY))


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
    release(tx, known)
    return known


def block(tx: Tx, sender: str) -> Sender:
    """Turn away whatever an account says, also what it said while it waited."""
    gone = ops.turn_out(tx, ops.get_sender(tx, sender))
    _refuse_held(tx, gone, f"{gone.called} is blocked")
    return gone


def release(tx: Tx, sender: Sender) -> None:
    """Let what an account said go on, in the order in which it was said."""
    _replay(tx, tx.all(sql.HELD_OF_SENDER, sender_id=sender.id, limit=MAX_HELD), False)


def _replay(tx: Tx, held: list[Message], nobody: bool) -> None:
    for message in held:
        place = sql.PLACES.get(tx, message.place_id)
        sender = sql.SENDERS.get(tx, str(message.sender_id))
        channel = sql.CHANNELS.get(tx, message.channel_id)
        heard = _Heard(channel, place, sender, _again(message, place, sender), message.text)
        if why := _turned_away(heard):
            _let_go(tx, message, "refuse", why)
        elif heard.policy is Policy.ASK and not heard.known:
            continue
        elif nobody or (not wiring.wirings_of(tx, place) and heard.policy is not Policy.ASK):
            _let_go(tx, message, "pass_over", "no agent is wired to this place")
        else:
            _judge(tx, heard, message)


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
        _let_go(tx, message, "refuse", why)


def _short(given: str | None) -> str | None:
    return clean_text(given, "The platform's id", most=MAX_EVENT) if given else None


def _clean(text: str) -> str:
    """The words as both engines keep them; what is longer than a message may be is in a file."""
    kept = text.replace("\0", "")
    if kept.isascii():
        return kept[:MAX_TEXT]
    return kept.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore")
