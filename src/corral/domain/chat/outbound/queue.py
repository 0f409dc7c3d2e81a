"""What goes out: queued as a letter of its place, and what became of it."""

from typing import Any

import msgspec

from corral.adapters.channels.contract import Kind, pieces_of
from corral.adapters.channels.registry import traits_of
from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.alerts import ops as alerts
from corral.domain.chat import sql
from corral.domain.chat.channels import ops, wirings
from corral.domain.chat.conversations.payloads import asked_in
from corral.domain.chat.model import (
    Channel,
    ChannelState,
    Message,
    MessageState,
    Place,
    PlaceState,
    Talk,
)
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.ids import number_of
from corral.kernel.pagination import LAST_NUMBER
from corral.kernel.text import MAX_BODY, MAX_NAME, clean_text, encode_json


def send(
    tx: Tx,
    text: str,
    *,
    agent: str,
    to: str | None = None,
    session: str | None = None,
    run: str | None = None,
    reply_to: str | None = None,
    edit: str | None = None,
    react: str | None = None,
    key: str | None = None,
) -> list[Message]:
    """An agent says something in a place: by its own name for it, or where its session is answered.

    Refused unless the agent holds the destination, now and again when it is delivered. `edit` and
    `react` name an earlier message (msg_…) whose words are changed, or on which `text` is a sign. A
    long text becomes several messages. The same key is the same message.
    """
    return send_in_thread(
        tx,
        text,
        agent=agent,
        to=to,
        session=session,
        run=run,
        reply_to=reply_to,
        edit=edit,
        react=react,
        key=key,
    )


def send_in_thread(
    tx: Tx,
    text: str,
    *,
    agent: str,
    to: str | None = None,
    thread: str | None = None,
    session: str | None = None,
    run: str | None = None,
    reply_to: str | None = None,
    edit: str | None = None,
    react: str | None = None,
    key: str | None = None,
) -> list[Message]:
    """Send into a named thread; None: the thread in which the session is answered."""
    whose = agents.get(tx, agent)
    for given, what in ((to, "destination"), (session, "session"), (run, "run")):
        _short(given, f"The {what}")
    place, answered = where_to(tx, whose.id, to, session)
    thread = check_thread(tx, place, thread) or answered
    kind, target = _about(tx, place, edit, react, reply_to)
    return queue(
        tx,
        place,
        clean_text(text, "The text", most=MAX_BODY),
        kind=kind,
        agent_id=whose.id,
        thread=thread,
        reply_to=target,
        run_id=run,
        sender=f"session:{session}" if session else f"agent:{whose.name}",
        key=f"{whose.id}:{_short(key, 'The key')}" if key else None,
    )


def check_thread(tx: Tx, place: Place, thread: str | None) -> str | None:
    """Return the thread; raises Refused when the channel of the place has no threads."""
    channel = sql.CHANNELS.get(tx, place.channel_id)
    if thread and not traits_of(channel.kind).threads:
        raise Refused(f"{place.called} is on a channel of kind {channel.kind}, without threads.")
    return _short(thread, "The thread")


def sent_under(tx: Tx, place: Place, agent_id: str, key: str) -> Message | None:
    """What an agent sent to a place under a key of its own; None: nothing."""
    return _queued(tx, place, f"{agent_id}:{key}")


def _queued(tx: Tx, place: Place, key: str) -> Message | None:
    return tx.one(sql.MESSAGE_BY_EVENT, channel_id=place.channel_id, event_id=_event(key))


def _event(key: str) -> str:
    """What a message that goes out is stored under; one that comes in has its platform's id."""
    return f"out:{key}"


def say(
    tx: Tx, place: str, text: str, *, thread: str | None = None, key: str | None = None
) -> list[Message]:
    """Say something in a place in Corral's own name: for people and programs, not for agents."""
    where = ops.get_place(tx, place)
    own = f"{tx.actor}:{_short(key, 'The key')}" if key else None
    words = clean_text(text, "The text", most=MAX_BODY)
    return queue(tx, where, words, thread=_short(thread, "The thread"), key=own)


def _short(given: str | None, what: str) -> str | None:
    return clean_text(given, what, most=2 * MAX_NAME) if given else None


def queue(
    tx: Tx,
    place: Place,
    text: str,
    *,
    kind: Kind = Kind.TEXT,
    agent_id: str | None = None,
    thread: str | None = None,
    reply_to: str | None = None,
    data: dict[str, Any] | None = None,
    run_id: str | None = None,
    sender: str | None = None,
    key: str | None = None,
) -> list[Message]:
    """Queue a message, in pieces that the platform takes; each piece is a letter of the place.

    `sender` is the mailbox that is told should it never arrive.
    """
    channel = sql.CHANNELS.get(tx, place.channel_id)
    tx.serialize(f"said:{place.id}")  # so the order of numbers is that in which it is shown
    made = []
    for number, piece in enumerate(pieces_of(text, traits_of(channel.kind), kind)):
        own = tx.new_id("key") if key is None else f"{key}:{number}" if number else key
        row = _row(tx, place, piece, kind, own)
        row |= {
            "agent_id": agent_id,
            "run_id": run_id,
            "thread": thread,
            "reply_to": reply_to,
            "data": encode_json(data, "The data") if data else None,
        }
        made.append(_queue_one(tx, place, row, sender))
    return made


def _queue_one(tx: Tx, place: Place, row: dict[str, Any], sender: str | None) -> Message:
    event = row["event_id"]
    message = create(
        tx,
        sql.MESSAGES,
        row,
        unless="(channel_id, event_id)",
        begin="queue",
        note={"out": place.id},
    )
    if message is None:
        known = tx.one(sql.MESSAGE_BY_EVENT, channel_id=place.channel_id, event_id=event)
        assert known is not None
        return known
    body = {"message": message.id}
    letter = mail.put_last(tx, place.mailbox, body, key=message.id, sender=sender)
    return _with_letter(tx, message, letter)


def _with_letter(tx: Tx, message: Message, letter: Letter) -> Message:
    told = tx.one(
        sql.SET_LETTER, seq=number_of("msg", message.id), letter=number_of("let", letter.id)
    )
    assert told is not None
    return told


def _row(tx: Tx, place: Place, text: str, kind: Kind, key: str) -> dict[str, Any]:
    return {
        "channel_id": place.channel_id,
        "place_id": place.id,
        "direction": "out",
        "kind": kind,
        "event_id": _event(key),
        "platform_ids": "[]",
        "text": text,
        "routes": "[]",
        "at": tx.now,
        "created_at": tx.now,
    }


# -- how it goes ----------------------------------------------------------------------------------


class Dispatch(msgspec.Struct, frozen=True):
    """A letter that is about to be delivered: the message, and where it goes."""

    letter: Letter
    message: Message
    place: Place
    channel: Channel


def dispatch(tx: Tx, letter: Letter) -> Dispatch | None:
    """What a claimed letter of a place wants to be sent; None when it is refused, which is recorded
    and told to its sender.

    Whether it may go is asked now, of the store and not of the letter, whatever was so when it was
    written.
    """
    message, place = _message_of(tx, letter)
    channel = sql.CHANNELS.get(tx, place.channel_id)
    agent_id = message.agent_id
    why = None
    if channel.state is not ChannelState.ACTIVE:
        why = f"the channel {channel.name} was removed"
    elif place.state is not PlaceState.OPEN:
        why = f"{place.called} is blocked"
    elif agent_id is not None and wirings.destination_of(tx, agent_id, place.id) is None:
        name = agents.get(tx, agent_id).name
        why = f"{name} has no destination for {place.called} ({place.id})"
    if why is None:
        return Dispatch(letter, message, place, channel)
    refuse(tx, letter, message, why)
    return None


def delivered(
    tx: Tx, letter: Letter | str, message: str, ids: list[str], *, fence: int | None = None
) -> Message:
    """The platform has it: the letter is done, and the platform's own ids are kept."""
    mail.ack(tx, letter, fence=fence)
    return _close(tx, message, "deliver", None, ids)


def failed(
    tx: Tx, letter: Letter, message: str, error: str, *, pause_ms: int | None = None
) -> Letter:
    """It did not arrive: again after a pause, or never when that was the last attempt."""
    said = mail.fail(tx, letter, error, pause_ms=pause_ms)
    if said.state is LetterState.DEAD:
        give_up(tx, said, message, error)
    return said


def refuse(tx: Tx, letter: Letter, message: Message, reason: str) -> Letter:
    """It will not be sent: a rule or the platform says no. Its sender is told."""
    said = mail.refuse(tx, letter, reason)
    give_up(tx, said, message.id, reason)
    return said


def settle(tx: Tx, letter: str, message: str, ids: list[str] | None, reason: str) -> Letter:
    """End the doubt about a message: it was found on the platform, or it was not and goes again."""
    said = mail.settle(tx, letter, delivered=ids is not None, reason=reason)
    if ids is not None:
        _close(tx, message, "deliver", None, ids)
    return said


def bury(tx: Tx, letter: Letter, message: str, reason: str) -> Letter:
    """Give up a message of which nobody can say whether it arrived. Its sender is told."""
    said = mail.bury(tx, letter, reason)
    give_up(tx, said, message, reason)
    return said


def give_up(tx: Tx, letter: Letter, message: str, reason: str) -> None:
    """A message will never arrive: that stands in its row, and the operator is told, once."""
    found = sql.MESSAGES.get(tx, number_of("msg", message))
    if found.state is MessageState.QUEUED:
        found = _close(tx, message, "give_up", reason, found.platform_ids)
    alerts.raise_alert(
        tx,
        "undelivered",
        found.id,
        edge=f"{letter.id}:{letter.fence}",
        agent_id=found.agent_id,
        data={"place": found.place_id, "state": letter.state, "reason": reason[:MAX_NAME]},
    )


def in_doubt(tx: Tx, place: Place, *, limit: int) -> list[Letter]:
    """Letters of a place whose sending was begun, and whose outcome nobody has told."""
    return [
        letter
        for message in tx.all(sql.QUEUED_OF_PLACE, place_id=place.id, limit=limit)
        if message.letter_id is not None
        and (letter := mail.find(tx, number_of("let", message.letter_id))) is not None
        and letter.state is LetterState.UNKNOWN
    ]


def doubtful(tx: Tx, letter: Letter) -> Dispatch:
    """What such a letter wanted to be sent."""
    message, place = _message_of(tx, letter)
    return Dispatch(letter, message, place, sql.CHANNELS.get(tx, place.channel_id))


def known_ids(tx: Tx, place: Place) -> set[str]:
    """The platform's ids of what is known to have been sent to a place lately."""
    lately = tx.all(sql.MESSAGES_OF_PLACE, place_id=place.id, before=LAST_NUMBER, limit=200)
    return {id for message in lately if message.direction == "out" for id in message.platform_ids}


def behind(tx: Tx, *, after: str = "msg_0", limit: int = 200) -> tuple[list[str], str | None]:
    """Queued messages whose letter was dropped, or ran out of time; and the place to go on from,
    None at the end."""
    page = tx.all(sql.QUEUED, after=number_of("msg", after), limit=limit)
    ended = [
        message.id
        for message in page
        if message.letter_id is not None
        and (letter := mail.find(tx, number_of("let", message.letter_id))) is not None
        and letter.ended_at is not None
    ]
    return ended, page[-1].id if len(page) == limit else None


def catch_up(tx: Tx, message: str) -> None:
    """Say of such a message what its letter says."""
    found = get(tx, message)
    letter = mail.get(tx, str(found.letter_id))
    if found.state is not MessageState.QUEUED or letter.ended_at is None:
        return
    if letter.state is LetterState.DONE:
        _close(tx, found.id, "deliver", None, found.platform_ids)
    else:
        give_up(tx, letter, found.id, letter.last_error or f"its letter was {letter.state}")


def _close(tx: Tx, message: str, verb: str, reason: str | None, ids: list[str]) -> Message:
    return move(
        tx,
        sql.MESSAGES,
        verb,
        number_of("msg", message),
        note={"reason": reason} if reason else None,
        reason=reason,
        platform_ids=encode_json(ids, "The ids"),
        ended_at=tx.now,
    )


def _message_of(tx: Tx, letter: Letter) -> tuple[Message, Place]:
    """The message of a letter. One that somebody put into a place's mailbox by hand, or that tells
    what never arrived, becomes a message now."""
    body = letter.body
    place = sql.PLACES.get(tx, letter.mailbox.removeprefix("place:"))
    if isinstance(body, dict) and isinstance(id := body.get("message"), str) and "msg_" in id:
        known = tx.one(sql.MESSAGES.by_key, key_=number_of("msg", id))
        if known is not None and known.letter_id == letter.id:
            return known, place
    text, thread = _words(tx, body)
    found = _queued(tx, place, letter.id)
    if found is None:
        row = _row(tx, place, text[: MAX_BODY // 4], Kind.TEXT, letter.id)
        row |= {"thread": thread, "agent_id": _agent_of(tx, letter.sender)}
        found = create(tx, sql.MESSAGES, row, begin="queue", note={"out": place.id})
        assert found is not None
    if found.letter_id != letter.id:
        found = _with_letter(tx, found, letter)
    return found, place


def _words(tx: Tx, body: Any) -> tuple[str, str | None]:
    """A letter that is no message, in words, and the thread that it belongs to."""
    if isinstance(body, str):
        return body, None
    if isinstance(body, dict) and isinstance(body.get("undelivered"), str):
        asked = tx.one(sql.MESSAGES.by_key, key_=_number(body.get("key")))
        words = f" ({asked.text[:60]!r})" if asked else ""
        what = "A task" if str(body.get("key")).startswith("sch_") else f"Your message{words}"
        said = f"{what} could not be answered: {body.get('reason')}"
        return said, asked.thread if asked else None
    if isinstance(body, dict) and isinstance(body.get("text"), str):
        return body["text"], None
    return encode_json(body, "The body"), None


def _number(id: Any) -> int:
    try:
        return number_of("msg", id) if isinstance(id, str) else 0
    except (Invalid, NotFound):
        return 0


def _agent_of(tx: Tx, sender: str | None) -> str | None:
    """The agent that put a letter into a place's mailbox by itself; None: it was no agent."""
    kind, _, name = (sender or "").partition(":")
    if kind == "agent":
        return agents.get(tx, name).id
    if kind == "session":
        talk = tx.one(sql.TALK, session_id=name)
        return talk.agent_id if talk is not None else None
    return None


# -- where to -------------------------------------------------------------------------------------


def address_of(tx: Tx, talk: Talk) -> tuple[Place, str | None] | None:
    """Where a session is answered: where the message came from that it works on now, else where it
    was begun."""
    for fenced in reversed(talk.letters):
        letter = mail.find(tx, number_of("let", fenced.id))
        asked = asked_in(letter) if letter is not None else None
        if asked is not None and asked.place:
            return sql.PLACES.get(tx, asked.place), asked.thread
    if talk.place_id:
        return sql.PLACES.get(tx, talk.place_id), talk.thread or None
    return None


def where_to(
    tx: Tx, agent_id: str, to: str | None, session: str | None
) -> tuple[Place, str | None]:
    """The place and thread that an agent means; Refused unless it holds the destination."""
    talk = tx.one(sql.TALK, session_id=session) if session else None
    answered = address_of(tx, talk) if talk is not None and talk.agent_id == agent_id else None
    if to is None:
        if answered is None:
            raise Refused("This session is answered nowhere; name a destination.")
        place, thread = answered
    else:
        found = wirings.destination_of(tx, agent_id, to)
        if found is None:
            known = wirings.list_destinations(tx, agent=agent_id, limit=20).items
            names = ", ".join(each.name for each in known) or "none yet"
            raise Refused(
                f"There is no destination {to!r} that you may send to; you have {names}.",
                to=to,
                reason="unknown_destination",
            )
        place = sql.PLACES.get(tx, found.place_id)
        thread = answered[1] if answered and answered[0].id == place.id else None
    if wirings.destination_of(tx, agent_id, place.id) is None:
        raise Refused(
            f"You may not send to {place.called} any more; ask for the destination.", to=place.id
        )
    return place, thread


def _about(
    tx: Tx, place: Place, edit: str | None, react: str | None, reply_to: str | None
) -> tuple[Kind, str | None]:
    """What a message does with an earlier one, and the platform's id of that."""
    given = [each for each in (edit, react, reply_to) if each]
    if len(given) > 1:
        raise Invalid("A message changes, signs or answers another; give one of these.")
    if not given:
        return Kind.TEXT, None
    found = get(tx, given[0])
    if found.place_id != place.id or not found.platform_ids:
        raise Refused(f"{found.id} is not in {place.called}, or has not arrived yet.", id=found.id)
    kind = Kind.EDIT if edit else Kind.REACTION if react else Kind.TEXT
    return kind, found.platform_ids[0]


def get(tx: Tx, message: str) -> Message:
    """A message by its id, as it is stored."""
    return sql.MESSAGES.get(tx, number_of("msg", message))
