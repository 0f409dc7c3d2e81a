"""What becomes of a message that came in: it is stored with who hears it, or held until an owner
has said what is to become of it, or turned away."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from corral.adapters.channels.contract import Incoming, Kind
from corral.db.transitions import create, create_each, move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat import sql
from corral.domain.chat.channels import ops
from corral.domain.chat.conversations import turns
from corral.domain.chat.inbound import commands
from corral.domain.chat.inbound.context import Intake, Seat, routes_of, unheard
from corral.domain.chat.inbound.router import Said, command_of
from corral.domain.chat.model import (
    HOST,
    Channel,
    Message,
    MessageState,
    Person,
    Place,
    PlaceState,
    Policy,
    Route,
    Sender,
    SenderState,
    fresh_message,
)
from corral.domain.chat.outbound import cards, queue
from corral.domain.mail import ops as mail
from corral.domain.questions import ops as questions
from corral.kernel.errors import Refused
from corral.kernel.ids import number_of
from corral.kernel.text import clean_text, encode_json

MAX_EVENT = 500
MAX_TEXT = 64 * 1024
MAX_HELD = 1_000
MOST_NAMES = 15
YES, NO, NOBODY = "yes", "no", "nobody"
NO_AGENT_YET = "nobody has said which agent is to hear this place"


class Heard(NamedTuple):
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

    @property
    def is_stranger(self) -> bool:
        """Whether an owner must say first that whoever speaks may talk there."""
        return not self.known and self.policy is Policy.ASK


def turned_away(heard: Heard) -> str | None:
    """Why nothing of it is heard by anybody; None: it may be heard."""
    if heard.place.state is PlaceState.BLOCKED:
        return f"{heard.place.called} is blocked"
    if heard.sender.state is SenderState.BLOCKED:
        return f"{heard.sender.called} is blocked"
    if heard.policy is Policy.STRICT and not heard.known:
        return f"{heard.sender.called} is not known here, and strangers are not heard"
    return None


def store(
    tx: Tx, heard: Heard, verb: str, reason: str | None, seats: Sequence[Seat] = ()
) -> Message:
    """Store a message; the verb says how it begins."""
    row = _row(tx, heard, reason, seats) | {"ended_at": None if verb == "hold" else tx.now}
    made = create(tx, sql.MESSAGES, row, begin=verb, note=_note(heard.place.id, reason))
    assert made is not None
    return made


def _row(tx: Tx, heard: Heard, reason: str | None, seats: Sequence[Seat]) -> dict[str, Any]:
    incoming = heard.incoming
    return {
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
        "data": _data(incoming),
        "reason": reason,
        "routes": routes_of(seats),
        "at": incoming.at if incoming.at is not None else tx.now,
        "created_at": tx.now,
        "ended_at": tx.now,
    }


def _data(incoming: Incoming) -> str:
    if not (incoming.mentioned or incoming.files or incoming.question):
        return '{"mentioned":false}'
    data: dict[str, Any] = {"mentioned": incoming.mentioned}
    if incoming.files:
        data["files"] = [msgspec.to_builtins(file) for file in incoming.files]
    if incoming.question:
        data["question"] = incoming.question
    return encode_json(data, "The data")


def _note(place_id: str, reason: str | None) -> dict[str, Any]:
    return {"in": place_id, "reason": reason} if reason else {"in": place_id}


@lru_cache(256)  # of one place, mostly the same
def _noted(place_id: str, reason: str | None) -> str:
    return encode_json(_note(place_id, reason), "An event")


class Clear(NamedTuple):
    """Words of which is clear at once who hears them."""

    heard: Heard
    seats: list[Seat]
    reason: str | None
    """Why nobody does."""


def clear(intake: Intake, heard: Heard) -> Clear | None:
    """Who hears what was said; None: it takes more than that to say what becomes of it."""
    if heard.place.guarded or not is_plain(heard) or says_nothing(heard):
        return None
    if heard.is_stranger or turned_away(heard):
        return None
    seats = intake.seats(_said(heard), heard.place, heard.incoming.thread)
    if not seats and heard.policy is Policy.ASK:
        return None
    return Clear(heard, seats, unheard(seats))


def hear(tx: Tx, said: Sequence[Clear]) -> list[Message]:
    """Store words that are clear at once, in their order, and give them to who hears them."""
    messages: list[Message] = []
    for ignored, alike in groupby(said, key=lambda each: each.reason is not None):
        rows, notes = [], []
        for heard, seats, reason in alike:
            rows.append(_row(tx, heard, reason, seats))
            notes.append(_noted(heard.place.id, reason))
        verb = "ignore" if ignored else "hear"
        numbers = create_each(tx, sql.MESSAGES, rows, begin=verb, notes=notes)
        state = MessageState.UNHEARD if ignored else MessageState.HEARD
        for number, row in zip(numbers, rows, strict=True):
            assert number is not None, "its event was looked for before"
            messages.append(fresh_message(number, row, state))
    return _told(tx, messages, said)


def judge(tx: Tx, heard: Heard, message: Message) -> Message:
    """Give a message that is held to whoever is to hear it."""
    who = ops.person(tx, heard.sender.person)
    for treat in (_as_answer, _as_command):
        said = treat(tx, heard, message, who)
        if said is not None:
            return said
    if message.kind is not Kind.TEXT:
        return let_go(tx, message, "pass_over", f"agents are not woken by a {message.kind}")
    seats = Intake(tx, heard.channel.id).seats(_said(heard), heard.place, message.thread)
    if not seats and heard.policy is Policy.ASK:
        return _ask_for_agent(tx, heard, message)
    reason = unheard(seats)
    verb = "pass_over" if reason else "admit"
    admitted = let_go(tx, message, verb, reason, seats)
    return _told(tx, [admitted], [Clear(heard, seats, reason)])[0]


def _told(tx: Tx, messages: Sequence[Message], said: Sequence[Clear]) -> list[Message]:
    """Give messages to those who hear them."""
    drafts = [
        turns.draft(seat.route, seat.wiring, message, heard.place, heard.sender)
        for message, (heard, seats, _) in zip(messages, said, strict=True)
        for seat in seats
        if seat.route.heard
    ]
    letters = iter(mail.put_each(tx, drafts))
    return [
        msgspec.structs.replace(message, routes=[_told_by(seat, letters) for seat in seats])
        for message, (_, seats, _) in zip(messages, said, strict=True)
    ]


def _told_by(seat: Seat, letters: Iterator[str]) -> Route:
    """The route, with the letter that tells it."""
    if not seat.route.heard:
        return seat.route
    return msgspec.structs.replace(seat.route, letter_id=next(letters))


def _said(heard: Heard) -> Said:
    return Said(heard.text, heard.place.direct, heard.incoming.mentioned, heard.known)


def is_plain(heard: Heard) -> bool:
    """Whether it is words for agents: no sign on a message, no button, no command."""
    return heard.incoming.kind is Kind.TEXT and command_of(heard.text) not in commands.KNOWN


def says_nothing(heard: Heard) -> bool:
    """Whether there is nothing in it to read, as in that somebody came."""
    incoming = heard.incoming
    return incoming.kind is Kind.TEXT and not incoming.files and not heard.text.strip()


def let_go(
    tx: Tx, message: Message, verb: str, reason: str | None, seats: Sequence[Seat] = ()
) -> Message:
    """A message that is held goes where the verb says."""
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


def _as_answer(tx: Tx, heard: Heard, message: Message, who: Person | None) -> Message | None:
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
        queue.queue(tx, heard.place, said, thread=message.thread, key=f"{message.id}:answer")
    return let_go(tx, message, "admit" if counts else "refuse", said)


def _as_command(tx: Tx, heard: Heard, message: Message, who: Person | None) -> Message | None:
    name = command_of(message.text)
    if message.kind is not Kind.TEXT or name not in commands.KNOWN:
        return None
    allowed, said = commands.run(tx, name, heard.place, message.thread, who)
    queue.queue(tx, heard.place, said, thread=message.thread, key=f"{message.id}:command")
    return let_go(tx, message, "admit" if allowed else "refuse", f"the command /{name}")


def hold(tx: Tx, heard: Heard) -> Message:
    """Hold what a stranger said, and ask an owner, once however much the stranger says."""
    waiting = tx.all(sql.HELD_OF_SENDER, sender_id=heard.sender.id, limit=MAX_HELD)
    if len(waiting) >= MAX_HELD:
        return store(tx, heard, "turn_away", f"{MAX_HELD} of its messages wait to be let in")
    why = f"nobody has said whether {heard.sender.called} may talk here"
    message = store(tx, heard, "hold", why)
    if waiting:
        return message
    text = (
        f"May {heard.sender.called} talk to agents on {heard.channel.name}? "
        f"They say in {heard.place.called}: {message.text[:200]}"
    )
    if not _ask(tx, heard, f"sender:{heard.sender.id}:{message.id}", text, [YES, NO]):
        return let_go(tx, message, "refuse", "too many strangers wait to be let in")
    return message


def _ask_for_agent(tx: Tx, heard: Heard, message: Message) -> Message:
    """Hold what was said where no agent listens, and ask an owner which one is to."""
    held = tx.all(sql.HELD_OF_PLACE, place_id=heard.place.id, limit=MAX_HELD)
    if len(held) >= MAX_HELD:
        return let_go(tx, message, "refuse", f"{MAX_HELD} messages wait for an agent here")
    kept = move(tx, sql.MESSAGES, "keep", number_of("msg", message.id), reason=NO_AGENT_YET)
    if any(each.reason == NO_AGENT_YET for each in held):
        return kept
    names = [each.name for each in agents.list_agents(tx, limit=MOST_NAMES).items]
    if not names:
        return let_go(tx, message, "pass_over", "no agent is wired to this place")
    text = (
        f"Which agent is to hear {heard.place.called} on {heard.channel.name}? "
        f"{heard.sender.called} says: {message.text[:200]}"
    )
    if not _ask(tx, heard, f"place:{heard.place.id}:{message.id}", text, [*names, NOBODY]):
        return let_go(tx, message, "refuse", "too many places wait for an agent")
    return kept


def _ask(tx: Tx, heard: Heard, key: str, text: str, options: list[str]) -> bool:
    try:
        question = questions.ask(
            tx, text, options=options, asker=HOST, answerers=ops.owners(tx), key=key
        )
    except Refused:  # so many are asked already that more would only be noise
        return False
    where = heard.channel.config.get("owner_place")
    if isinstance(where, str):
        cards.show(tx, question, ops.meet_place(tx, heard.channel, where))
    return True


def _short(given: str | None) -> str | None:
    return clean_text(given, "The platform's id", most=MAX_EVENT) if given else None


def clean(text: str) -> str:
    """The words as both engines keep them; what is longer than a message may be is in a file."""
    kept = text.replace("\0", "")
    if kept.isascii():
        return kept[:MAX_TEXT]
    return kept.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore")
